"""A program's KMS client, whose failures become errors that name the key and say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from pyarrow.parquet.encryption import KmsClient

from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store.retries import pause_seconds
from pravega_spark.errors import KeyUnavailable, KmsUnavailable

RETRY_SECONDS: Final = 10.0
"""A KMS that cannot be reached is asked again for this long; an outage of minutes is an error."""

_Answer = TypeVar("_Answer")


class GuardedKms(KmsClient):  # type: ignore[misc]
    """Passes calls on; repeats those whose connection failed. Raises KeyUnavailable."""

    def __init__(self, client: Any, runtime: Runtime = SYSTEM) -> None:
        """Take an object with ``wrap_key`` and ``unwrap_key`` as pyarrow's KmsClient has them."""
        super().__init__()
        self._client = client
        self._runtime = runtime

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str | bytes:
        """Return the key, wrapped with the master key of this name."""
        wrap: Callable[..., str | bytes] = self._client.wrap_key
        return self._ask(lambda: wrap(key_bytes, master_key_identifier), master_key_identifier)

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        """Return the key that :meth:`wrap_key` wrapped."""
        unwrap: Callable[..., bytes] = self._client.unwrap_key
        return self._ask(lambda: unwrap(wrapped_key, master_key_identifier), master_key_identifier)

    def _ask(self, call: Callable[[], _Answer], name: str) -> _Answer:
        began, failures = self._runtime.monotonic(), 0
        while True:
            try:
                return call()
            except KeyUnavailable:
                raise
            except (LookupError, PermissionError) as error:
                raise KeyUnavailable(
                    f"the KMS refuses the key {name!r}: {_text(error)}. If the key was destroyed, "
                    "what it encrypts is gone; otherwise give this process the right to use it.",
                    key=name,
                ) from error
            except Exception as error:
                failures += 1
                left = began + RETRY_SECONDS - self._runtime.monotonic()
                if left <= 0 or not isinstance(error, ConnectionError | TimeoutError):
                    raise KmsUnavailable(
                        f"the KMS failed for the key {name!r}: {_text(error)}. Call again when it "
                        "answers.",
                        key=name,
                    ) from error
                self._runtime.sleep(min(left, pause_seconds(self._runtime, failures)))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
