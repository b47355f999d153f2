"""Lets Spark find ``format("pravega")`` without registration and without a jar.

When a session first uses a Python data source, Spark 4 imports every top-level module named
``pyspark_*`` and registers its ``DefaultSource``. It does not catch errors, so this module never
raises: otherwise a failed import (on an old Spark, for instance) would break all other Python
sources. ``import pravega_spark.spark.source`` shows what is missing.
"""

from contextlib import suppress

with suppress(Exception):
    from pravega_spark.spark.source import PravegaDataSource as DefaultSource  # noqa: F401
