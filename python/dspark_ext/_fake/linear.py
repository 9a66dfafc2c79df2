"""Fake kernels of the linear family."""
