"""``python -m pravega_spark.jobs.scaling`` as a file, for spark-submit and for Databricks."""

import sys

from pravega_spark.jobs.scaling import main

sys.exit(main())
