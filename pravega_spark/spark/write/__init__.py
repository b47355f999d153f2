"""Writes streams with Spark: tasks stage chunks, and the driver commits them once."""
