"""A program's KMS client, whose failures become errors that name the key and say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from pyarrow.parquet.encryption import KmsClient

from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.retries import pause_seconds
from pravega_spark.errors import KeyUnavailable, KmsUnavailable

RETRY_SECONDS: Final = 10.0
"""A KMS that cannot be reached is asked again for this long; an outage of minutes is an error."""

_Answer = TypeVar("_Answer")


class GuardedKms(KmsClient):  # type: ignore[misc]
    """Passes calls on; repeats those whose connection failed. Raises KeyUnavailable."""

    def __init__(self, client: Any, runtime: Runtime = SYSTEM) -> None:
        """Take an object with ``wrap_key`` and ``unwrap_key`` as pyarrow's KmsClient has them.

        Raises KmsUnavailable for any other object.
        """
        super().__init__()
        for method in ("wrap_key", "unwrap_key"):
            if not callable(getattr(client, method, None)):
                raise KmsUnavailable(
                    "the factory of the KMS client must return an object with the methods "
                    "wrap_key and unwrap_key; it returned an object of type "
                    f"{type(client).__name__}, which has no {method}. Correct the factory, and "
                    "call again."
                )
        self._client = client
        self._runtime = runtime

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str | bytes:
        """Return the key, wrapped with the master key of this name."""
        wrap: Callable[..., str | bytes] = self._client.wrap_key
        name = master_key_identifier
        answer = self._ask(lambda: wrap(key_bytes, name), name)
        if not _is_text(answer):
            raise _wrong("wrap_key", "a text, or bytes in UTF-8, that are not empty", answer, name)
        return answer

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        """Return the key that :meth:`wrap_key` wrapped."""
        unwrap: Callable[..., bytes] = self._client.unwrap_key
        name = master_key_identifier
        answer = self._ask(lambda: unwrap(wrapped_key, name), name)
        if not isinstance(answer, bytes):
            raise _wrong("unwrap_key", "the bytes that wrap_key was given", answer, name)
        return answer

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
                    "the data that it encrypts is lost; otherwise give this process the right to "
                    "use it.",
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


def _is_text(answer: object) -> bool:
    """Return whether an envelope can hold the answer; files with any other have no key again."""
    try:
        text = answer.encode() if isinstance(answer, str) else answer
        return isinstance(text, bytes) and text.decode() != ""
    except UnicodeError:
        return False


def _wrong(method: str, wanted: str, answer: object, name: str) -> KmsUnavailable:
    """Return the error of an answer, of which it shows the type alone: it may hold a key."""
    kind = type(answer).__name__
    if isinstance(answer, str | bytes):
        kind = f"other or empty {kind}"
    return KmsUnavailable(
        f"{method} of the KMS client must return {wanted}; for the key {name!r} it returned "
        f"{kind}. Correct the client, and call again.",
        key=name,
    )


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
