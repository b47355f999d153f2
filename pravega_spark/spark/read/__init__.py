"""Reads streams with Spark: batch and micro-batch readers, offset planning, input partitions."""
