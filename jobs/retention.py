"""Starts ``pravega_spark.jobs.retention`` where a file is needed: spark-submit, Databricks."""

from pravega_spark.jobs.entry_points import retention

retention()
