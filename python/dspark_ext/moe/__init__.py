"""Mixture of experts: routing, dispatch and the expert layer, with their parallel forms."""
