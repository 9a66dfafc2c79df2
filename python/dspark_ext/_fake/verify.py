"""Fake kernels of the verify family."""
