"""The key management system (KMS) of this process, and the properties of encrypted files.

A program or an environment variable names it, never the storage: a process that can write to a root
must not choose the code that its readers run. Each file has separate data keys. They are wrapped
with a key-encryption key of this process, which the KMS wraps with the stream's master key, so the
KMS is asked once in a cache's lifetime, and not for each file. A whole cache is given up then,
since pyarrow may use an entry of its own for longer; a file that is open keeps the keys that it
has.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.errors import InvalidInput, KeyUnavailable, KmsUnavailable
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.checks import shown
from pravega_spark.values.units import parse_duration_ms

KMS_VARIABLE: Final = "PRAVEGA_SPARK_KMS"
"""The variable with ``module:factory``, for jobs, the command line and Spark's executors."""
ENCRYPTED_COLUMNS: Final = ("routing_key", "event")
"""The encrypted columns of raw events; of typed ones, all columns of the user are."""

_CACHE_LIFETIME: Final = "10 minutes"
_given: list[_KmsSource] = []
"""What a program set: one source, or none."""
_made: dict[tuple[int, str], _KeyCache] = {}
"""By process and variable; a lock of the cache that is held at a fork stays held in the child."""
_renewing = new_lock()
"""Held while a thread makes a cache, so that others do not make one too."""


class ChunkKey(NamedTuple):
    """The name of the master key that a chunk is encrypted with, and the stream for errors."""

    stream: str
    name: str


class _KmsSource(NamedTuple):
    factory: Callable[[Any], Any]
    cache_lifetime: timedelta


class _KeyCache(NamedTuple):
    crypto: Any
    connection: Any
    cache_lifetime: timedelta
    ends: float
    """When no file may take a key from it any more, in seconds of the boot clock."""


def set_kms(
    factory: Callable[[Any], Any] | None, *, cache_lifetime: str | float = _CACHE_LIFETIME
) -> None:
    """Set what makes the KMS client of this process, which reads and writes encrypted streams.

    ``factory`` takes a ``pyarrow.parquet.encryption.KmsConnectionConfig`` and returns an object
    with the methods of pyarrow's ``KmsClient``: ``wrap_key(key_bytes, master_key_identifier)`` and
    ``unwrap_key(wrapped_key, master_key_identifier)``. A method raises LookupError or
    PermissionError for a key that this process cannot have, and ConnectionError or TimeoutError to
    be called again for 10 seconds. Unwrapped keys stay in memory for ``cache_lifetime``, a duration
    such as "10 minutes". None returns to the variable PRAVEGA_SPARK_KMS. Raises InvalidInput.
    """
    if factory is None:
        _given[:] = []
    elif callable(factory):
        _given[:] = [_KmsSource(factory, _lifetime(cache_lifetime))]
    else:
        raise InvalidInput(
            f"the factory of a KMS client must be callable or None, got {shown(factory)}."
        )
    _made.clear()


def encryption_properties(key: ChunkKey, columns: Sequence[str] = ENCRYPTED_COLUMNS) -> Any:
    """Return pyarrow's properties of one file to write, which has these encrypted columns.

    Raises KeyUnavailable.
    """
    from pyarrow.parquet.encryption import EncryptionConfiguration

    try:
        cache = _cache()
        configuration = EncryptionConfiguration(
            footer_key=key.name,
            column_keys={key.name: list(columns)},
            plaintext_footer=True,
            double_wrapping=True,
            cache_lifetime=cache.cache_lifetime,
        )
        return cache.crypto.file_encryption_properties(cache.connection, configuration)
    except KeyUnavailable as error:
        raise type(error)(
            f"stream {key.stream} cannot be written: {error.message}",
            key=key.name,
            stream=key.stream,
        ) from error


def decryption_properties() -> Any:
    """Return pyarrow's properties of files to read. Raises KmsUnavailable without a KMS."""
    from pyarrow.parquet.encryption import DecryptionConfiguration

    cache = _cache()
    configuration = DecryptionConfiguration(cache_lifetime=cache.cache_lifetime)
    return cache.crypto.file_decryption_properties(cache.connection, configuration)


def _cache() -> _KeyCache:
    text = "" if _given else os.environ.get(KMS_VARIABLE, "")
    if not (_given or text):
        raise KmsUnavailable(
            "this process has no KMS, which encrypted streams need. Call pravega_spark.set_kms, or "
            f"set the variable {KMS_VARIABLE} to module:factory."
        )
    process = os.getpid()
    found = _made.get((process, text))
    if found is not None and SYSTEM.monotonic() < found.ends:
        return found
    source = _given[0] if _given else _KmsSource(_named(text), _lifetime(_CACHE_LIFETIME))
    with _renewing:
        present = _made.get((process, text))
        if present is None or present is found:
            present = _made[process, text] = _new_cache(source)
        return present


def _new_cache(source: _KmsSource) -> _KeyCache:
    from pyarrow.parquet.encryption import CryptoFactory, KmsConnectionConfig

    from pravega_spark.engine.guarded_kms import GuardedKms

    def client(connection: Any) -> GuardedKms:
        try:
            made = source.factory(connection)
        except Exception as error:
            raise KmsUnavailable(
                f"the KMS client cannot be made: {type(error).__name__}: {error}. Correct the "
                "factory that set_kms was given, or its surroundings, and call again."
            ) from error
        return GuardedKms(made)

    ends = SYSTEM.monotonic() + source.cache_lifetime.total_seconds()
    return _KeyCache(CryptoFactory(client), KmsConnectionConfig(), source.cache_lifetime, ends)


def _named(text: str) -> Callable[[Any], Any]:
    """Return the function that the variable names as ``module:factory``."""
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"{KMS_VARIABLE} must name an importable factory of a KMS client as module:factory, "
            f"got {shown(text)}: {error}."
        ) from error
    if not callable(found):
        raise InvalidInput(f"{KMS_VARIABLE} must name a function, got {shown(text)}.")
    return cast("Callable[[Any], Any]", found)


def _lifetime(given: str | float) -> timedelta:
    return timedelta(milliseconds=parse_duration_ms("the lifetime of cached keys", given))
