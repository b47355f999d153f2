"""Benchmarks: each figure is measured beside a peer or a floor in the same run."""
