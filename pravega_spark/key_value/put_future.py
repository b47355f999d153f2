"""The future of a put: a write of the change log whose result is the new version of the key."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import cast

from pravega_spark.engine.writing.write_futures import WriteFuture
from pravega_spark.errors import (
    NoSuchStream,
    NoSuchTable,
    PravegaSparkError,
    StaleIdentity,
    StreamSealed,
    TableSealed,
)
from pravega_spark.key_value.table_entry import KeyVersion
from pravega_spark.model import EventPointer
from pravega_spark.names import table_of_log


class PutFuture(WriteFuture[KeyVersion]):
    """The outcome of a put or a removal without a condition; can also be awaited."""

    def result(self, timeout: float | None = None) -> KeyVersion:
        """Return the version of the key once the change is durable, or raise why it is not."""
        failure = self.exception(timeout)
        if failure is not None:
            raise failure
        found = cast("EventPointer", super().result(timeout))
        return KeyVersion(found.life, found.segment_id, found.offset)

    def exception(self, timeout: float | None = None) -> PravegaSparkError | None:
        """Wait for the outcome; return the error of a failed change, None for a durable one."""
        failure = super().exception(timeout)
        return None if failure is None else of_table(failure)


def of_table(error: PravegaSparkError) -> PravegaSparkError:
    """Return an error of the change log as the table's."""
    if isinstance(error, StaleIdentity) and error.name is not None and "/" in error.name:
        stale = copy.copy(error)
        stale.name = table_of_log(error.name) or error.name
        return stale
    if not isinstance(error, (NoSuchStream, StreamSealed)) or error.stream is None:
        return copy.copy(error)
    table = table_of_log(error.stream) or error.stream
    found: PravegaSparkError
    if isinstance(error, NoSuchStream):
        found = NoSuchTable(str(error), table=table)
    else:
        found = TableSealed(
            f"table {table} was sealed: it can be read, and accepts no more changes. Create a new "
            "table.",
            table=table,
        )
    found.__cause__ = error
    return found


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise errors of the change log as the table's."""
    try:
        yield
    except PravegaSparkError as error:
        found = of_table(error)
        if type(found) is type(error) and not isinstance(error, StaleIdentity):
            raise
        raise found from error
