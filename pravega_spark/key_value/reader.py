"""TableReader: a key-value table as of one version of its change log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from pravega_spark.errors import InvalidInput
from pravega_spark.key_value.changes import Change, EntriesAtVersion
from pravega_spark.key_value.entry import KeyVersion, TableEntry
from pravega_spark.key_value.keys import Key, KeyBounds, KeyCodec, TableKey, bounds, token_of
from pravega_spark.values.checks import check_list, shown
from pravega_spark.values.limits import MAX_TABLE_UPDATE_KEYS
from pravega_spark.values.segments import StreamCut

_Item = TypeVar("_Item")


class TableIterator(Iterator[_Item], Generic[_Item]):
    """Yields entries, or keys, in the order of keys; ``continuation`` resumes after the last one.

    The token is a text. Another process may continue with it, on any version of the table.
    """

    def __init__(self, items: Iterator[tuple[TableKey, _Item]]) -> None:
        self._items = items
        self._last: TableKey | None = None

    def __next__(self) -> _Item:
        self._last, item = next(self._items)
        return item

    @property
    def continuation(self) -> str | None:
        """The token of the last one that was returned; None before the first."""
        return None if self._last is None else token_of(self._last)


class TableReader:
    """Reads a table at one version; made by ``KeyValueTable.at``. Thread-safe.

    Later writes are not seen. Values that this process did not keep in memory are read
    from the change log: if that is truncated meanwhile, they raise TruncatedData.
    """

    def __init__(self, state: EntriesAtVersion, codec: KeyCodec) -> None:
        self._state = state
        self._codec = codec

    @property
    def version(self) -> int:
        """The version of the change log that is read."""
        return self._state.version

    @property
    def cut(self) -> StreamCut:
        """The cut of the change log after which the changes that are not in here begin."""
        return self._state.view.tail

    def get(self, key: Key, secondary_key: bytes | str = b"") -> TableEntry | None:
        """Return the entry of a key, or None."""
        stored = self._codec.encode(key, secondary_key)
        change = self._state.find([stored]).get(stored)
        return None if change is None else self._entry(stored, change)

    def get_all(self, keys: Iterable[Any]) -> list[TableEntry | None]:
        """Return the entries of at most 256 keys, in their order; None where there is none.

        A key with a secondary part is given as a pair.
        """
        stored = stored_keys(self._codec, keys)
        found = self._state.find(stored)
        return [self._entry(key, found[key]) if key in found else None for key in stored]

    def exists(self, key: Key, secondary_key: bytes | str = b"") -> bool:
        """Return whether the key has an entry."""
        return bool(self._state.find([self._codec.encode(key, secondary_key)]))

    def entries(self, *, after: str | None = None, **given: Any) -> TableIterator[TableEntry]:
        """Iterate over entries, in the order of their keys; see ``KeyValueTable.entries``."""
        return TableIterator(
            (key, self._entry(key, change)) for key, change in self._scan(after, given)
        )

    def keys(self, *, after: str | None = None, **given: Any) -> TableIterator[Any]:
        """Iterate over keys in order; a key with a secondary part is a pair."""
        return TableIterator((key, self._key(key)) for key, _ in self._scan(after, given))

    def _scan(self, after: str | None, given: dict[str, Any]) -> Iterator[tuple[TableKey, Change]]:
        found: KeyBounds = bounds(self._codec, **given)
        if after is not None:
            found = found.after(self._codec, after)
        return self._state.scan(found.low, found.high)

    def _key(self, key: TableKey) -> Any:
        primary = self._codec.decode(key.primary)
        return (primary, key.secondary) if self._codec.has_secondary else primary

    def _entry(self, key: TableKey, change: Change) -> TableEntry:
        return TableEntry(
            self._codec.decode(key.primary),
            self._state.value(change),
            KeyVersion(self._state.view.life, change.segment_id, change.offset),
            key.secondary,
            change.timestamp_us,
        )


def stored_keys(codec: KeyCodec, keys: Iterable[Any]) -> list[TableKey]:
    """Return keys as they are stored; raise InvalidInput unless they are a list of at most 256."""
    given = check_list("keys", keys)
    if len(given) > MAX_TABLE_UPDATE_KEYS:
        raise InvalidInput(
            f"one call gets at most {MAX_TABLE_UPDATE_KEYS} keys of table {codec.table}, not "
            f"{len(given)}; divide them over several calls, or iterate."
        )
    if not codec.has_secondary:
        return [codec.encode(key) for key in given]
    for key in given:
        if not isinstance(key, tuple) or len(key) != len(TableKey._fields):
            raise InvalidInput(
                f"a key of table {codec.table} is a pair (primary, secondary), got {shown(key)}."
            )
    return [codec.encode(*key) for key in given]
