"""Keeps the garbage collections of Spark's Python workers short."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any, Final

FREEZES: Final = 8
"""How many collections freeze what they leave: some happen while modules are still imported."""
_OLDEST: Final = 2
"""The generation whose collection looks at all objects."""


class ImportFreezer:
    """Freezes what the first full collections of a process leave alive: mostly imported modules.

    Spark collects the garbage of a Python worker after each piece of work, four times in a
    micro-batch. Each time Python looks at the 60,000 objects of the imported modules, for 30 ms.
    It does not look at frozen ones. Right after a collection none of them is garbage yet.
    """

    def __init__(self) -> None:
        self._left = FREEZES

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        """Freeze after a full collection; Python calls this before and after each collection."""
        if phase != "stop" or info["generation"] != _OLDEST or self._left == 0:
            return
        self._left -= 1
        gc.freeze()
