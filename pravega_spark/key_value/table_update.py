"""Conditional updates of a table: what is asked for, and whether it may be done. Pure, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pravega_spark.arguments import check_list, shown
from pravega_spark.errors import BadKeyVersion, InvalidInput, NoSuchKey
from pravega_spark.key_value.change_codec import Change
from pravega_spark.key_value.table_entry import KeyVersion
from pravega_spark.key_value.table_key import Key, KeyCodec, TableKey
from pravega_spark.limits import MAX_ATOMIC_WRITE_BYTES, MAX_TABLE_UPDATE_KEYS


@dataclass(frozen=True, slots=True)
class TableInsert:
    """Set the value of a key that must not exist."""

    key: Key
    value: bytes | str
    secondary_key: bytes | str = b""


@dataclass(frozen=True, slots=True)
class TablePut:
    """Set the value of a key; with a version only if the key has that one."""

    key: Key
    value: bytes | str
    version: KeyVersion | str = KeyVersion.NO_VERSION
    secondary_key: bytes | str = b""


@dataclass(frozen=True, slots=True)
class TableRemove:
    """Remove a key; with a version only if the key has that one."""

    key: Key
    version: KeyVersion | str = KeyVersion.NO_VERSION
    secondary_key: bytes | str = b""


TableModification = TableInsert | TablePut | TableRemove
"""One part of an update."""


class Step(NamedTuple):
    """A part of an update as it is decided: the key must have the version, then gets the value."""

    key: TableKey
    value: bytes | None
    version: KeyVersion


class UpdateEncoder:
    """Checks and encodes the updates of one table."""

    __slots__ = ("_codec", "_value_limit")

    def __init__(self, codec: KeyCodec, value_limit: int) -> None:
        """Take the rules of the table."""
        self._codec = codec
        self._value_limit = value_limit

    def steps(self, modifications: Sequence[TableModification]) -> tuple[Step, ...]:
        """Return an update as steps; raise InvalidInput for one that is not allowed."""
        table = self._codec.table
        given = check_list("an update", modifications)
        if len(given) > MAX_TABLE_UPDATE_KEYS:
            raise InvalidInput(
                f"an update of table {table} has {len(given)} keys; at most "
                f"{MAX_TABLE_UPDATE_KEYS} are allowed. Divide it over several updates, or put keys "
                "without a condition."
            )
        steps = tuple(map(self._step, given))
        counts = Counter(step.key for step in steps)
        if len(counts) < len(steps):
            twice = self._codec.decode(counts.most_common(1)[0][0].primary)
            raise InvalidInput(
                f"an update of table {table} names the key {shown(twice)} twice; give its last "
                "change alone."
            )
        size = sum(len(s.key.primary) + len(s.key.secondary) + len(s.value or b"") for s in steps)
        if size > MAX_ATOMIC_WRITE_BYTES:
            raise InvalidInput(
                f"an update of table {table} has {size} bytes; at most {MAX_ATOMIC_WRITE_BYTES} "
                "are allowed. Divide it over several updates."
            )
        return steps

    def _step(self, one: object) -> Step:
        if isinstance(one, TableInsert):
            version, value = KeyVersion.NOT_EXISTS, self.value(one.value)
        elif isinstance(one, TablePut):
            version, value = self._version(one.version), self.value(one.value)
        elif isinstance(one, TableRemove):
            version = self._version(one.version)
            key = self._codec.encode(one.key, one.secondary_key)
            if version == KeyVersion.NOT_EXISTS:
                raise InvalidInput(
                    f"a removal of table {self._codec.table} names the version of a key that does "
                    "not exist; there is nothing to remove."
                )
            return Step(key, None, version)
        else:
            raise InvalidInput(
                f"an update of table {self._codec.table} consists of TableInsert, TablePut and "
                f"TableRemove, got {shown(one)}."
            )
        return Step(self._codec.encode(one.key, one.secondary_key), value, version)

    def value(self, value: object) -> bytes:
        """Return a value as bytes; raise InvalidInput for one that the table does not take."""
        if isinstance(value, str):
            try:
                value = value.encode()
            except UnicodeEncodeError:
                raise InvalidInput(
                    f"the value {shown(value)} for table {self._codec.table} has no UTF-8 form: "
                    "replace the lone surrogates in it."
                ) from None
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidInput(
                f"a value of table {self._codec.table} must be bytes or str, not "
                f"{type(value).__name__}: {shown(value)}."
            )
        data = bytes(value)
        if len(data) > self._value_limit:
            raise InvalidInput(
                f"a value of {len(data)} bytes for table {self._codec.table} is larger than "
                f"{self._value_limit} bytes, its max_value_bytes; store it elsewhere and put a "
                "reference."
            )
        return data

    def _version(self, version: object) -> KeyVersion:
        if isinstance(version, str):
            return KeyVersion.parse(version)
        if not isinstance(version, KeyVersion):
            raise InvalidInput(
                f"a version of a key must be a KeyVersion or its text, got {shown(version)}."
            )
        return version


class UpdateCheck:
    """Decides updates one after the other on one version of a table."""

    def __init__(self, codec: KeyCodec, life: int, found: Mapping[TableKey, Change]) -> None:
        """Take the entries of all keys that the updates name, as far as they exist."""
        self._codec = codec
        self._life = life
        self._found = found
        self._written: dict[TableKey, bytes | None] = {}
        """What updates before this one write in the same commit."""

    def accept(self, steps: Sequence[Step]) -> None:
        """Take an update as part of the commit; raise BadKeyVersion or NoSuchKey if it fails."""
        for step in steps:
            if step.version != KeyVersion.NO_VERSION:
                self._check(step)
        self._written.update((step.key, step.value) for step in steps)

    def _check(self, step: Step) -> None:
        key, wanted = step.key, step.version
        current: KeyVersion | None
        if key in self._written:  # its version is decided by the commit, so no caller can name it
            current = None if self._written[key] is not None else KeyVersion.NOT_EXISTS
        else:
            change = self._found.get(key)
            current = KeyVersion.NOT_EXISTS
            if change is not None:
                current = KeyVersion(self._life, change.segment_id, change.offset)
        if current == wanted:
            return
        known = self._codec.decode(key.primary)
        fields: dict[str, object] = {
            "table": self._codec.table,
            "key": known,
            "version": None if current is None else str(current),
        }
        if current == KeyVersion.NOT_EXISTS:
            raise NoSuchKey(
                f"table {self._codec.table}: key {shown(known)} does not exist, and the update "
                f"names its version {wanted}. Get it again and decide again.",
                **fields,  # type: ignore[arg-type]
            )
        has = "another version" if current is None else f"the version {current}"
        needs = "must not exist" if wanted == KeyVersion.NOT_EXISTS else f"must have {wanted}"
        raise BadKeyVersion(
            f"table {self._codec.table}: key {shown(known)} has {has}, and for the update it "
            f"{needs}. Get it again and decide again.",
            **fields,  # type: ignore[arg-type]
        )
