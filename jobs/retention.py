"""Starts ``pravega_spark.jobs.retention`` where a file is needed: spark-submit, Databricks."""

import sys

from pravega_spark.jobs.retention import main

sys.exit(main())
