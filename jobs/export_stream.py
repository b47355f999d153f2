"""Starts ``pravega_spark.jobs.export_stream`` where a file is needed: spark-submit, Databricks."""

from pravega_spark.jobs.entry_points import export_stream

export_stream()
