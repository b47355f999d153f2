"""Scaling: segments split and merge, by hand or following the load."""
