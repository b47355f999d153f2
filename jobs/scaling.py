"""Starts ``pravega_spark.jobs.scaling`` where a file is needed: spark-submit, Databricks."""

import sys

from pravega_spark.jobs.scaling import main

sys.exit(main())
