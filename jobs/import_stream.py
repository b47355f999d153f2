"""Starts ``pravega_spark.jobs.import_stream`` where a file is needed: spark-submit, Databricks."""

from pravega_spark.jobs.entry_points import import_stream

import_stream()
