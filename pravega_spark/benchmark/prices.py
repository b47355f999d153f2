"""What a storage charges: a list of prices that its owner can replace.

A list is a file of TOML::

    name = "our bucket, October"

    [storage]
    put_per_1000 = 0.005
    get_per_1000 = 0.0004
    list_per_1000 = 0.005
    delete_per_1000 = 0.0
    gb_month = 0.023
    gb_written = 0.0
    gb_read = 0.0
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pravega_spark.errors import InvalidInput

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars for 1,000 requests of a kind, and for 10^9 bytes; HEAD is priced as GET.

    The defaults are an example: public list prices of S3 Standard in one region.
    """

    name: str = "S3 Standard, us-east-1, list prices of 2025 as an example"
    put_per_1000: float = 0.005
    get_per_1000: float = 0.0004
    list_per_1000: float = 0.005
    delete_per_1000: float = 0.0
    gb_month: float = 0.023
    gb_written: float = 0.0
    gb_read: float = 0.0

    def requests(self, calls: Mapping[str, float]) -> float:
        """Return the dollars of requests, by their kinds ``PUT``, ``GET``, ``LIST``, ``DELETE``."""
        each = {
            "PUT": self.put_per_1000,
            "GET": self.get_per_1000,
            "LIST": self.list_per_1000,
            "DELETE": self.delete_per_1000,
        }
        return sum(count * each[kind] for kind, count in calls.items()) / 1_000

    def transfer(self, written_bytes: float, read_bytes: float) -> float:
        """Return the dollars of moving bytes to the storage and from it."""
        return (written_bytes * self.gb_written + read_bytes * self.gb_read) / GB

    def a_month(self, stored_bytes: float) -> float:
        """Return the dollars of storing bytes for a month."""
        return stored_bytes * self.gb_month / GB


def read_prices(path: Path) -> Prices:
    """Read a list of prices; what its table ``storage`` lacks is as in the defaults.

    Other tables are left alone. Raises InvalidInput for a file that is no such list.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read as prices: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}.") from error
    name, storage = found.get("name", str(path)), found.get("storage")
    if not isinstance(name, str) or not isinstance(storage, dict):
        raise InvalidInput(f"{path} needs a table [storage]; its `name` is a text.")
    known = {field.name for field in fields(Prices)} - {"name"}
    for field, value in storage.items():
        _check(path, field, value, known)
    return Prices(name=name, **{field: float(value) for field, value in storage.items()})


def _check(path: Path, field: str, value: Any, known: set[str]) -> None:
    if field not in known:
        raise InvalidInput(
            f"{path}: [storage] has the unknown price {field!r}; it has {', '.join(sorted(known))}."
        )
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise InvalidInput(f"{path}: {field} must be dollars, 0 or more, got {value!r}.")
