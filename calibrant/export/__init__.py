"""Model and scales to quantized ONNX, record and checks."""
