"""The benchmarks, one module for each subject; ``bench.harness.registry`` finds them."""
