"""AMCT's configuration and record formats."""
