"""Settings that hold for all tests."""

from hypothesis import settings

# The first example of a test may compile kernels, which takes seconds and says nothing about the code.
settings.register_profile("calibrant", deadline=None)
settings.load_profile("calibrant")
