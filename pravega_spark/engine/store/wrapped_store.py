"""What a wrapper around a store passes on unchanged."""

from __future__ import annotations

from collections.abc import Callable

from pravega_spark.engine.store.base import Dated, Store


class WrappedStore:
    """A store around another one, ``inner``; a subclass adds the calls that it changes."""

    def __init__(self, inner: Store) -> None:
        """Take the store that does the work."""
        self.inner = inner

    @property
    def url(self) -> str:
        """The root as a URL."""
        return self.inner.url

    @property
    def storage(self) -> str:
        """The kind and identity of the storage."""
        return self.inner.storage

    @property
    def is_local(self) -> bool:
        """Whether a call costs microseconds."""
        return self.inner.is_local

    @property
    def has_clock(self) -> bool:
        """Whether the storage has a clock of its own."""
        return self.inner.has_clock

    @property
    def dated(self) -> Dated | None:
        """The date of the newest response."""
        return self.inner.dated

    @property
    def retry_seconds(self) -> float:
        """For how long a call is repeated."""
        return self.inner.retry_seconds

    def stamp(self, key: str) -> object:
        """Return the stamp of an object."""
        return self.inner.stamp(key)

    def hold_to(self, check: Callable[[], None]) -> None:
        """Pass the check on."""
        self.inner.hold_to(check)

    def expect(self, prefix: str, *, is_there: bool) -> None:
        """Pass the folder on."""
        self.inner.expect(prefix, is_there=is_there)
