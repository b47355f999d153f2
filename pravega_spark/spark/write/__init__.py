"""Writing streams with Spark: tasks stage chunks, the driver commits them once."""
