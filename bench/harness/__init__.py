"""What the benchmarks share: inputs, measuring, floors, and the report of the results."""
