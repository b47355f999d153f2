"""``python -m pravega_spark.jobs.transactions`` as a file, for spark-submit and for Databricks."""

import sys

from pravega_spark.jobs.transactions import main

sys.exit(main())
