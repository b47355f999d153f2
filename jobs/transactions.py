"""Starts ``pravega_spark.jobs.transactions`` where a file is needed: spark-submit, Databricks."""

import sys

from pravega_spark.jobs.transactions import main

sys.exit(main())
