"""``python -m pravega_spark.jobs.retention`` as a file, for spark-submit and for Databricks."""

import sys

from pravega_spark.jobs.retention import main

sys.exit(main())
