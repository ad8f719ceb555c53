"""Automatic fallback: which layers to leave in float so that a quantized model reaches a goal, searched over fits of one run."""
