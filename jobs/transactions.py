"""Starts ``pravega_spark.jobs.transactions`` where a file is needed: spark-submit, Databricks."""

from pravega_spark.jobs.entry_points import transactions

transactions()
