"""The loggers of this package, and the fields of their records for JSON formatters.

The fields are operation, scope, stream, version, and others. Every line of this package carries the
first four as attributes of its record, so a formatter may name them; a field that a line has no
value for is empty, or None for a version.
"""

from __future__ import annotations

import logging

from pravega_spark.primitives.printable import is_printable, printable
from pravega_spark.values.names import split_path


def own_logger(name: str) -> logging.Logger:
    """Return the logger of a module: its lines are printable, with any value that they quote."""
    logger = logging.getLogger(name)
    logger.addFilter(_make_printable)
    return logger


def _make_printable(record: logging.LogRecord) -> bool:
    """Put the line itself into a record whose line is not printable; let all records through."""
    line = record.getMessage()
    if not is_printable(line):
        record.msg, record.args = printable(line), None
    return True


def log_fields(
    operation: str,
    path: str = "",
    version: int | None = None,
    *,
    group: str = "",
    **others: object,
) -> dict[str, object]:
    """Return the fields of a line, for ``extra``.

    ``path`` is a stream's name, or the path of any table below the root; ``group`` the name of a
    group in a scope, whose scope it is then. The other fields must not have the name of an
    attribute that records have.
    """
    scope, stream = split_path(path or group)
    fields: dict[str, object] = {
        "operation": operation,
        "scope": scope,
        "stream": stream if path else "",
        "version": version,
    }
    if group:
        fields["group"] = group
    return fields | others
