"""Reading streams with Spark: batch and micro-batch readers, planned offsets, input partitions."""
