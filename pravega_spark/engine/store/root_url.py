"""The URL of a root, with what belongs to it where only the URL is handed on."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from pravega_spark.errors import InvalidInput

if TYPE_CHECKING:
    from fsspec.spec import AbstractFileSystem

FileSystem: TypeAlias = "AbstractFileSystem"
"""A file system of fsspec."""


class RootUrl(str):
    """The URL of a root, with what is needed beside it where only the URL is handed on.

    Spark's queries have one with their time-outs, so that their plans and tasks hold no other
    storage option, which may be a secret. A store on a file system that was handed in has one with
    that, so that whoever opens the store's URL again, also in another process, gets it.
    """

    timeouts: Mapping[str, float]
    """``retry_timeout``, ``connect_timeout`` and ``read_timeout``, as far as given, in seconds."""
    filesystem: FileSystem | None
    """The file system that was handed in."""

    def __new__(
        cls,
        url: str,
        timeouts: Mapping[str, float] = MappingProxyType({}),
        filesystem: FileSystem | None = None,
    ) -> RootUrl:
        """Join them; a URL that has a file system keeps it."""
        made = super().__new__(cls, url)
        made.timeouts = dict(timeouts)
        made.filesystem = filesystem_of(url) if filesystem is None else filesystem
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all; the file system by its own ``__reduce__``. Raises PicklingError."""
        if self.filesystem is not None:
            _check_pickles(self.filesystem)
        return RootUrl, (str(self), self.timeouts, self.filesystem)


def filesystem_of(url: object) -> FileSystem | None:
    """Return the file system with which the root was opened; None if by its URL alone."""
    return url.filesystem if isinstance(url, RootUrl) else None


def root_as_text(url: str, whose: str) -> str:
    """Return a root as a text, for ``whose`` options; raise InvalidInput if it is more than that.

    An option of Spark is a text, so that a file system, which may hold a secret, is in no plan.
    """
    if filesystem_of(url) is not None:
        raise InvalidInput(
            f"{url} was opened with a file system that was handed in, and {whose} takes a root as "
            "a text alone. Read and write it by pravega_spark.read_frame and write_frame; or let "
            "each process find its credentials, and give str(root)."
        )
    return str(url)


def _check_pickles(filesystem: FileSystem) -> None:
    try:
        pickle.dumps(filesystem)
    except Exception as error:  # of whatever its arguments are
        raise pickle.PicklingError(
            f"the {type(filesystem).__name__} that was handed in cannot go to another process: one "
            f"of its arguments cannot be pickled ({type(error).__name__}: {error}). Make it of "
            "texts, such as key= or profile=, or let each process find its credentials."
        ) from error
