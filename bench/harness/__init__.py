"""What the benchmarks share: inputs, floors, timing, and the report of the results."""
