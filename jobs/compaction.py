"""Starts ``pravega_spark.jobs.compaction`` where a file is needed: spark-submit, Databricks."""

from pravega_spark.jobs.entry_points import compaction

compaction()
