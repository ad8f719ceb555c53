"""Model and scales to quantized ONNX, record and checks."""

from calibrant._room import make_callable

make_callable(__name__)
