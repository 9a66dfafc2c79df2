"""Fake kernels of the sampling family."""
