"""A key management system whose master keys are in a file, so that every process can use it.

Its wrapping is a toy: wrapped bytes say nothing to a reader without the key, and are not checked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import ClassVar

VARIABLE = "FILE_KMS_KEYS"
FACTORY = f"{__name__}:client"
"""The value of PRAVEGA_SPARK_KMS."""


class FileKms:
    """A client as pyarrow describes it; ``calls`` counts those of this process."""

    calls: ClassVar[Counter[tuple[str, str]]] = Counter()

    def __init__(self, path: Path) -> None:
        self.path = path

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        self.calls["wrap", master_key_identifier] += 1
        nonce = os.urandom(16)
        mixed = self._mixed(key_bytes, nonce, master_key_identifier)
        return base64.b64encode(nonce + mixed).decode()

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        self.calls["unwrap", master_key_identifier] += 1
        data = base64.b64decode(wrapped_key)
        return self._mixed(data[16:], data[:16], master_key_identifier)

    def _mixed(self, data: bytes, nonce: bytes, name: str) -> bytes:
        secret = json.loads(self.path.read_text())[name]
        stream = hashlib.sha256(nonce + secret.encode()).digest()
        return bytes(a ^ b for a, b in zip(data, stream, strict=False))


def client(connection: object) -> FileKms:
    """The factory."""
    return FileKms(Path(os.environ[VARIABLE]))


class MasterKeys:
    """The file of keys, as its administrator changes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(first="a secret", second="another secret")

    def set(self, **keys: str) -> None:
        """Have these keys, by name, and no others."""
        self.path.write_text(json.dumps(keys))
