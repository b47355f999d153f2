"""Lets Spark find ``format("pravega_kvt")``, as ``pyspark_pravega`` does for ``pravega``."""

from contextlib import suppress

with suppress(Exception):
    from pravega_spark.spark.key_value.source import KeyValueDataSource as DefaultSource  # noqa: F401
