"""Clocks, threads, processes, tracing and failpoints of the engine."""
