"""Models that hold QuantizeLinear and DequantizeLinear: what the pairs say, and the float model without them."""
