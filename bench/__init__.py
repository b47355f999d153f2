"""Benchmarks: what a stream costs, each time beside a peer or a floor measured in the same run."""
