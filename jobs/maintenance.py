"""Starts ``pravega_spark.jobs.maintenance`` where a file is needed: spark-submit, Databricks."""

import sys

from pravega_spark.jobs import early_signals

early_signals.listen()  # before the imports that take long

from pravega_spark.jobs.maintenance import main  # noqa: E402

sys.exit(main())
