"""A property that is computed once, without a lock.

``functools.cached_property`` has one lock for all objects of a class before Python 3.12: threads
wait for each other, and a forked child forever if another thread computed in its parent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_Value = TypeVar("_Value")


class lazy_property(Generic[_Value]):
    """Makes a method a property that keeps its value in the object.

    Threads that read it for the first time at once may each compute it.
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> lazy_property[_Value]: ...

    @overload
    def __get__(self, owner: object, kind: type) -> _Value: ...

    def __get__(self, owner: object | None, kind: type) -> lazy_property[_Value] | _Value:
        """Compute the value, which hides this property from then on."""
        if owner is None:
            return self
        value = owner.__dict__[self._name] = self._compute(owner)
        return value
