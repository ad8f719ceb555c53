"""How much each quantized layer of a fit hurts, seen three ways: from statistics, alone, and in the whole model (docs/sensitivity.md)."""
