"""Finds the configuration of a key-value table, on the driver."""

from __future__ import annotations

from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.key_value.put_future import translated
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration


def configuration_of(root: str, log_name: str) -> KeyValueTableConfiguration:
    """Return the configuration of a table by its change log. Raises NoSuchTable."""
    with translated():
        return table_configuration(existing_view(open_stream(root, log_name)))
