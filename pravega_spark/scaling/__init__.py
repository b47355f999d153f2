"""Scaling: segments are split and merged, by hand or by their load."""
