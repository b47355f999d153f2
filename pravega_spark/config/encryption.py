"""The encryption of a stream's events at rest: which master key, by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.checks import shown
from pravega_spark.values.limits import MAX_KEY_NAME_LENGTH

_NAME: Final = re.compile(r"[A-Za-z0-9._/-]+")
"""Parquet's encryption separates the names of keys by other characters."""


@dataclass(frozen=True, slots=True)
class EncryptionPolicy:
    """The master key that the data keys of a stream's chunks are wrapped with.

    ``key`` is the name by which the key management system of each process knows it
    (:func:`pravega_spark.set_kms`): 1 to 256 letters, digits, ``.``, ``_``, ``/`` and ``-``.
    """

    key: str

    def __post_init__(self) -> None:
        """Raise InvalidConfiguration for a name that is none."""
        is_name = isinstance(self.key, str) and len(self.key) <= MAX_KEY_NAME_LENGTH
        if not is_name or _NAME.fullmatch(self.key) is None:
            raise InvalidConfiguration(
                f"the name of a key has 1 to {MAX_KEY_NAME_LENGTH} letters, digits and ._/-, got "
                f"{shown(self.key)}; let the KMS client map it to another id."
            )

    def to_json(self) -> dict[str, Any]:
        """Encode as JSON values."""
        return {"key": self.key}
