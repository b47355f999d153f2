"""Lets Spark find ``format("pravega")`` by itself: no registration, no jar.

Spark 4 imports every top-level module named ``pyspark_*`` and registers its ``DefaultSource``. It
does so unguarded, when a session first uses *any* Python data source, so this module never raises:
where ours cannot be imported (an old Spark, say), the others must go on working.
``import pravega_spark.spark.source`` then tells what is missing.
"""

from contextlib import suppress

with suppress(Exception):
    from pravega_spark.spark.source import PravegaDataSource as DefaultSource  # noqa: F401
