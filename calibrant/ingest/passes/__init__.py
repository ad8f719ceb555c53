"""Passes that normalise a float model, so that every layer's parameters are initializers of its own and every name is unique."""
