"""Draft heads as torch modules.

`compact` holds the head of the demo, small enough for a CPU.
"""
