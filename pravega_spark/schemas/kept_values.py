"""Whether a value that was encoded by a schema comes back as it was given: nothing cut or left out.

Encoders of Avro make an integer of 1.7, leave out fields that the schema lacks, take a time without
a zone for one of the host's, and cut microseconds. Other readers will see the value that comes
back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, time
from enum import Enum
from typing import Any
from uuid import UUID

import numpy as np

from pravega_spark.values.checks import shown


def what_is_lost(given: Any, found: Any, path: str = "") -> str | None:
    """Return what of a value did not come back, or None; ``path`` names the value.

    Another form of the same value counts as it: a tuple for a list, the nearest float of 4 bytes,
    a time in another zone, a whole number that the schema takes for a time, fields that the schema
    fills in, and the notations by which a value names its branch of a union.
    """
    if isinstance(given, Mapping):
        return _of_mapping(given, found, path)
    if isinstance(given, (list, tuple)) and not isinstance(found, (list, tuple)):
        is_branch = isinstance(given, tuple) and len(given) == 2
        return what_is_lost(given[1], found, path) if is_branch else _changed(given, found, path)
    if isinstance(given, (list, tuple)):
        if len(given) != len(found):
            return _changed(given, found, path)
        each = enumerate(zip(given, found, strict=True))
        lost = (what_is_lost(one, other, f"{path}[{n}]") for n, (one, other) in each)
        return next((text for text in lost if text), None)
    return None if _is_same(given, found) else _changed(given, found, path)


def _of_mapping(given: Mapping[Any, Any], found: Any, path: str) -> str | None:
    if not isinstance(found, Mapping):
        return _changed(given, found, path)
    for name, value in given.items():
        where = f"{path}.{name}" if path else str(name)
        if name not in found:
            if name == "-type":
                continue
            return f"the schema has no field {where}, whose value is {shown(value)}"
        lost = what_is_lost(value, found[name], where)
        if lost:
            return lost
    return None


def _is_same(given: Any, found: Any) -> bool:
    if isinstance(given, Enum):
        given = given.value
    if isinstance(given, float) and isinstance(found, float):
        if given == found or (math.isnan(given) and math.isnan(found)):
            return True
        with np.errstate(over="ignore"):
            return math.isfinite(found) and float(np.float32(given)) == found
    if isinstance(given, (bytes, bytearray, memoryview)):
        return not isinstance(found, (bytes, str)) or bytes(given) == found
    if isinstance(found, UUID):
        return str(found) == str(given).lower()
    if isinstance(given, UUID):
        return bool(str(given) == found)
    if isinstance(found, str) and isinstance(given, (date, time)):  # in JSON
        return bool(given.isoformat() == found)
    if (
        isinstance(given, int)
        and not isinstance(given, bool)
        and not isinstance(found, (int, float))
    ):
        return isinstance(found, (date, time))  # a time by its number
    if isinstance(given, datetime) != isinstance(found, datetime):
        return False
    if isinstance(given, bool) != isinstance(found, bool):
        return False
    return bool(given == found)


def _changed(given: Any, found: Any, path: str) -> str:
    return f"{path or 'the value'} is {shown(given)}, and would come back as {shown(found)}"
