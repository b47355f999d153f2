"""Benchmarks: each figure is measured beside a peer or a floor in the same run."""

import os

# A benchmark measures what it names: only those of maintenance maintain their roots.
os.environ["PRAVEGA_SPARK_MAINTAIN"] = "off"
