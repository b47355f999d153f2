"""Starts ``pravega_spark.jobs.maintenance`` where a file is needed: spark-submit, Databricks."""

from pravega_spark.jobs.entry_points import maintenance

maintenance()
