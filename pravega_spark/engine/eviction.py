"""Which value leaves a bounded cache: any, by chance.

If the one that was used longest ago left, a scan of a few more values than are kept would find none
that it left: at 1,060 streams every look at all of them would open each again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, TypeVar

_Key = TypeVar("_Key", bound=Hashable)


def make_room(values: MutableMapping[_Key, Any], most: int, chance: Callable[[], float]) -> None:
    """Remove values until fewer than ``most`` are left; the caller holds the cache's lock.

    ``chance`` returns a number in [0, 1).
    """
    while len(values) >= most:
        del values[list(values)[int(chance() * len(values))]]
