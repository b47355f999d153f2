"""``python -m pravega_spark.cli``, for use if the script ``pravega-spark`` is not on the path."""

from __future__ import annotations

import sys

from pravega_spark.cli import main

sys.exit(main())
