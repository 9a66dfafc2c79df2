"""Fake kernels of the attention family."""
