"""The principal: who the commits of this process say they are from, for audits.

Nothing proves it: a process that may write to a log may write any name. It tells processes apart
that already have rights of their own.
"""

from __future__ import annotations

import os

from pravega_spark.errors import InvalidInput
from pravega_spark.values.checks import check_text, shown
from pravega_spark.values.limits import MAX_PRINCIPAL_LENGTH
from pravega_spark.values.names import has_utf8

PRINCIPAL_VARIABLE = "PRAVEGA_SPARK_PRINCIPAL"
"""The variable with the principal, for jobs, the command line and Spark's executors."""

_given: list[str] = []
"""What a program named: one principal, or none."""


def set_principal(name: str | None) -> None:
    """Name the principal of this process: ``userName`` of each commit from now on.

    ``DESCRIBE HISTORY`` shows it. It is any text of 1 to 256 characters, such as a service's or a
    user's name. None returns to the variable PRAVEGA_SPARK_PRINCIPAL; an empty one is none. Raises
    InvalidInput.
    """
    _given[:] = [] if name is None else [_checked("the principal", name)]


def principal() -> str | None:
    """Return the principal of this process, or None. Raises InvalidInput for a bad variable."""
    if _given:
        return _given[0]
    found = os.environ.get(PRINCIPAL_VARIABLE)
    return _checked(PRINCIPAL_VARIABLE, found) if found else None


def _checked(what: str, name: str) -> str:
    check_text(what, name)
    if not 0 < len(name) <= MAX_PRINCIPAL_LENGTH or not has_utf8(name) or not name.isprintable():
        raise InvalidInput(
            f"{what} must be a text of 1 to {MAX_PRINCIPAL_LENGTH} printable characters, got "
            f"{shown(name)}."
        )
    return name
