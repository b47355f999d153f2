"""A bounded cache from which any value leaves, by chance.

If the one that was used longest ago left, a scan of a few more values than are kept would find none
that it left: at 1,060 values where 1,024 are kept, every look at all of them would make each again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")

_WEIGHED_BESIDE = 2
"""The other values that are weighed when one comes, since a value grows while it is kept."""
_USES = 8
"""One use in this many weighs the value that is used; a use has no time for more."""


class _Entry(Generic[_Value]):
    __slots__ = ("place", "value", "weight")

    def __init__(self, value: _Value, place: int) -> None:
        self.value, self.place, self.weight = value, place, 0


class ChanceCache(Generic[_Key, _Value]):
    """Values by key, of which those stay whose weights together are at most ``most``.

    The value that came or was weighed last stays, at any weight. A use costs the same however
    many are kept. Not thread-safe.
    """

    def __init__(
        self,
        most: int,
        chance: Callable[[], float],
        weigh: Callable[[_Value], int] = lambda value: 1,
    ) -> None:
        """Start empty; ``chance`` returns a number in [0, 1)."""
        self._most, self._chance, self._weigh = most, chance, weigh
        self._entries: dict[_Key, _Entry[_Value]] = {}
        self._keys: list[_Key] = []
        self._uses = 0
        self.weight = 0
        """What the values weigh together, as they were weighed last."""

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        """Return whether the value of a key is kept, without using it."""
        return key in self._entries

    def get(self, key: _Key) -> _Value | None:
        """Return the value of a key and use it; None if it is not kept."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._uses += 1
        if self._uses % _USES == 0:
            self._note(entry, self._weigh(entry.value))
            self._make_room(entry)
        return entry.value

    def put(self, key: _Key, value: _Value) -> None:
        """Keep the value of a key that has none; until it is weighed it counts as others do."""
        usual = self.weight // max(1, len(self._keys))
        entry = self._entries[key] = _Entry(value, len(self._keys))
        self._keys.append(key)
        self._note(entry, max(usual, self._weigh(value)))
        for other in (self._any() for _ in range(_WEIGHED_BESIDE)):
            if other is not entry:
                self._note(other, self._weigh(other.value))
        self._make_room(entry)

    def _make_room(self, used: _Entry[_Value]) -> None:
        while self.weight > self._most and len(self._keys) > 1:
            other = self._any()
            if other is not used:
                self._drop(other)

    def _note(self, entry: _Entry[_Value], weight: int) -> None:
        self.weight += weight - entry.weight
        entry.weight = weight

    def _any(self) -> _Entry[_Value]:
        return self._entries[self._keys[int(self._chance() * len(self._keys))]]

    def _drop(self, entry: _Entry[_Value]) -> None:
        dropped, last = self._keys[entry.place], self._keys.pop()
        if last != dropped:
            self._keys[entry.place] = last
            self._entries[last].place = entry.place
        self.weight -= self._entries.pop(dropped).weight
