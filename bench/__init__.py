"""Measurements of the kernels against plain numpy, side by side in one run: ``python -m bench``."""
