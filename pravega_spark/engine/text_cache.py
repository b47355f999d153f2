"""A cache bounded by how much text it was made from, not by how many values it holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def cached_by_text(limit: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Keep what a function made of its last argument, a text, for ``limit`` characters at most.

    What was asked for lately stays. No lock is taken, for a fork would copy a held one: threads
    that meet make a value twice, or forget one too early.
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        kept: _Kept[_T] = _Kept(limit)

        @wraps(function)
        def cached(*arguments: _P.args, **options: _P.kwargs) -> _T:
            assert not options, "arguments are given by place: they are the key"
            found = kept.get(arguments)
            if found is None:
                found = (function(*arguments, **options),)
                kept.keep(arguments, found, len(str(arguments[-1])))
            return found[0]

        cached.kept = kept  # type: ignore[attr-defined]
        return cached

    return decorate


class _Kept(Generic[_T]):
    """Two generations: when the younger one holds half of the limit, the older is forgotten."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._young: dict[object, tuple[tuple[_T], int]] = {}
        self._old: dict[object, tuple[tuple[_T], int]] = {}
        self._size = 0

    @property
    def size(self) -> int:
        """How many characters the kept values were made from."""
        return sum(size for part in (self._young, self._old) for _, size in part.values())

    def get(self, key: object) -> tuple[_T] | None:
        """Return what is kept, as one of the younger from now on."""
        found = self._young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is None:
                return None
            self.keep(key, *found)
        return found[0]

    def keep(self, key: object, value: tuple[_T], size: int) -> None:
        """Keep a value, unless it alone is more than half of the limit."""
        if size > self._half:
            return
        if self._size + size > self._half:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[key] = value, size
        self._size += size
