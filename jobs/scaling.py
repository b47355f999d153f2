"""Starts ``pravega_spark.jobs.scaling`` where a file is needed: spark-submit, Databricks."""

from pravega_spark.jobs.entry_points import scaling

scaling()
