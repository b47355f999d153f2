"""The root that a server shows: its manager, and its opened streams."""

from __future__ import annotations

from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import without_credentials
from pravega_spark.manager import StreamManager, root_of


class ServedRoot:
    """The state that all routes share; thread-safe."""

    def __init__(self, manager: StreamManager) -> None:
        """Take the manager of the root; nothing is read yet."""
        self.manager = manager
        self.opened = root_of(manager)
        self.store = self.opened.store

    @property
    def url(self) -> str:
        """The URL of the root, without credentials."""
        return without_credentials(self.manager.root)

    def log(self, stream: str) -> StreamLog:
        """Return an open stream, which need not exist."""
        return self.opened.stream(stream)

    def view(self, stream: str) -> StreamView:
        """Return the newest view of a stream: one storage call if it is known.

        Raises NoSuchStream.
        """
        return begun_view(self.log(stream))
