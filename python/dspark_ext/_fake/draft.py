"""Fake kernels of the draft family."""
