"""The options of keys and values of ``pravega-spark kvt``, and entries as records."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from pravega_spark.arguments import is_whole, shown
from pravega_spark.cli.value_forms import BASE64, FORMS, HEX, TEXT, of_bytes, to_bytes
from pravega_spark.errors import InvalidInput
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.key_value.table_entry import TableEntry
from pravega_spark.key_value.table_key import Key, KeyType

_Command = TypeVar("_Command", bound=Callable[..., Any])

_DIGITS: Final = re.compile("-?[0-9]{1,400}")
"""A whole number as a text; zeros may lead, as in columns of one width."""

keys_option = click.option(
    "-k",
    "--keys",
    "key_form",
    type=click.Choice((TEXT, HEX, BASE64)),
    default=TEXT,
    show_default=True,
    help="The form of keys of bytes, and of secondary keys.",
)
values_option = click.option(
    "-v",
    "--values",
    "value_form",
    type=click.Choice(FORMS),
    default=TEXT,
    show_default=True,
    help="The form of values.",
)


@dataclass(frozen=True, slots=True)
class KeyForm:
    """How the keys of one table are written."""

    table: KeyValueTable
    form: str

    @property
    def _type(self) -> KeyType:
        return KeyType(self.table.configuration.key_type)

    def primary(self, value: object) -> Key:
        """Return a primary key of a JSON record, or of an argument. Raises InvalidInput."""
        if self._type is KeyType.LONG:
            return _whole(self.table.name, value)
        if self._type is KeyType.BYTES:
            return to_bytes(f"a key of table {self.table.name}", self.form, value)
        if type(value) is not str:  # a number is none
            raise InvalidInput(f"a key of table {self.table.name} is a text, got {shown(value)}.")
        return value

    def secondary(self, value: object) -> bytes:
        """Return a secondary key; None is none. Raises InvalidInput."""
        what = f"a secondary key of table {self.table.name}"
        return b"" if value is None else to_bytes(what, self.form, value)

    def record(self, entry: TableEntry, value_form: str | None) -> dict[str, Any]:
        """Return an entry as a record; ``value_form`` None omits the value."""
        key = entry.key
        if isinstance(key, bytes):
            key = of_bytes(f"a key of table {self.table.name}", self.form, key)
        record: dict[str, Any] = {"key": key}
        if self.table.configuration.secondary_key_length:
            what = f"a secondary key of table {self.table.name}"
            record["secondary_key"] = of_bytes(what, self.form, entry.secondary_key)
        if value_form is not None:
            what = f"the value of key {key!r} of table {self.table.name}"
            record["value"] = of_bytes(what, value_form, entry.value)
        return {
            **record,
            "version": str(entry.version),
            "timestamp_ms": entry.timestamp_us // 1_000,
        }


def _whole(table: str, value: object) -> int:
    if is_whole(value) or (isinstance(value, str) and _DIGITS.fullmatch(value)):
        return int(value)  # type: ignore[call-overload, no-any-return]
    raise InvalidInput(f"a key of table {table} is a whole number, got {shown(value)}.")
