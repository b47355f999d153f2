"""What a table returns: an entry, its version, and the future of a put."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from typing import ClassVar, NamedTuple, cast

from pravega_spark.engine.writing.futures import WriteFuture
from pravega_spark.errors import (
    InvalidInput,
    NoSuchStream,
    NoSuchTable,
    PravegaSparkError,
    StaleIdentity,
    StreamSealed,
    TableSealed,
)
from pravega_spark.key_value.keys import Key
from pravega_spark.values.checks import shown
from pravega_spark.values.names import table_of_log
from pravega_spark.values.segments import EventPointer, parse_segment, segment_text

_TEXT = re.compile(r"([0-9]{1,19}):([0-9]+#[0-9]+)=([0-9]{1,19})")


class _Place(NamedTuple):
    life: int
    segment_id: int
    offset: int


class KeyVersion(_Place):
    """The version of an entry: the place of the change that wrote it. Opaque: only compare it.

    Its text has the form ``1:0#0=42``. ``NOT_EXISTS`` is the version of a key without an entry, and
    ``NO_VERSION`` stands for any version.
    """

    __slots__ = ()
    NOT_EXISTS: ClassVar[KeyVersion]
    NO_VERSION: ClassVar[KeyVersion]

    def __str__(self) -> str:
        if self.life == 0:
            return "not-exists" if self == KeyVersion.NOT_EXISTS else "no-version"
        return f"{self.life}:{segment_text(self.segment_id)}={self.offset}"

    def __repr__(self) -> str:
        """Show the text."""
        return f"KeyVersion({str(self)!r})"

    @classmethod
    def parse(cls, text: str) -> KeyVersion:
        """Parse the text of a version; raise InvalidInput for any other text."""
        for special in (cls.NOT_EXISTS, cls.NO_VERSION):
            if text == str(special):
                return special
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidInput(
                f"{shown(text)} is not a version of a key; write, for example, '1:0#0=42'."
            )
        return cls(int(match[1]), parse_segment(match[2]), int(match[3]))


KeyVersion.NOT_EXISTS = KeyVersion(0, 0, -2)
KeyVersion.NO_VERSION = KeyVersion(0, 0, -1)


class TableEntry(NamedTuple):
    """One entry of a table: its key, value and version."""

    key: Key
    value: bytes
    version: KeyVersion
    secondary_key: bytes = b""
    timestamp_us: int = 0
    """When the value was put, by the clock of its writer, in microseconds since 1970."""


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
