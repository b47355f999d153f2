"""Monitoring with Spark: metadata frames, the lag of queries, and their checkpoint folders."""
