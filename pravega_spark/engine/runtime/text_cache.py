"""A cache bounded by the length of the texts that its values were decoded from."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_ENTRY_CHARACTERS = 256
"""An entry counts as this much more than its text: a record of a few characters takes some hundred
bytes, and in a long life most are never asked for again."""
_LOOKUPS = 8_192
"""An entry that was not asked for in this many lookups, or twice as many, is dropped: otherwise the
records that a long-lived process has ever seen would fill the cache. The samples of a stream, of
which a decision reads all, are at most 2,000, so they stay."""


def cached_by_text(limit: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Cache a function whose last argument is a text, for ``limit`` characters of text at most.

    Recently used values stay. There is no lock, because a fork would copy a locked one. So
    concurrent threads may compute a value twice, or drop one too early.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        cache: _TextCache[_T] = _TextCache(limit)

        @wraps(function)
        def cached(*arguments: _P.args, **options: _P.kwargs) -> _T:
            assert not options, "arguments are positional, because they are the key"
            found = cache.get(arguments)
            if found is None:
                found = (function(*arguments, **options),)
                cache.put(arguments, found, len(str(arguments[-1])) + _ENTRY_CHARACTERS)
            return found[0]

        cached.cache = cache  # type: ignore[attr-defined]
        return cached

    return decorate


class _TextCache(Generic[_T]):
    """Two generations of entries.

    When the younger one holds half of the limit, or is old, it replaces the older one.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._young: dict[object, tuple[tuple[_T], int]] = {}
        self._old: dict[object, tuple[tuple[_T], int]] = {}
        self._size = self._lookups = 0

    @property
    def size(self) -> int:
        """The size of the cached values, as counted against the limit."""
        return sum(size for part in (self._young, self._old) for _, size in part.values())

    def get(self, key: object) -> tuple[_T] | None:
        """Return a cached value in a 1-tuple, or None; a hit moves it to the younger generation."""
        self._lookups += 1
        if self._lookups >= _LOOKUPS:
            self._age()
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is None:
                return None
            self.put(key, *found)
        return found[0]

    def put(self, key: object, value: tuple[_T], size: int) -> None:
        """Cache a value, unless it alone exceeds half of the limit."""
        if size > self._half:
            return
        if self._size + size > self._half:
            self._age()
        self._young[key] = value, size
        self._size += size

    def _age(self) -> None:
        self._old, self._young, self._size, self._lookups = self._young, {}, 0, 0
