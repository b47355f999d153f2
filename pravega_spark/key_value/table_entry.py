"""What a table returns: an entry, and the version that a condition names."""

from __future__ import annotations

import re
from typing import ClassVar, NamedTuple

from pravega_spark.arguments import shown
from pravega_spark.errors import InvalidInput
from pravega_spark.key_value.table_key import Key
from pravega_spark.model import parse_segment, segment_text

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
        """Return the text that :meth:`parse` reads."""
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
            raise InvalidInput(f"{shown(text)} is no version of a key; write such as '1:0#0=42'.")
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
