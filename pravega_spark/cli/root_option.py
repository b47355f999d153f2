"""The options ``--root`` and ``--profile`` of all commands, and the root that they name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pravega_spark.cli.lazy_commands import OPENED
from pravega_spark.cli.profiles import Profile, find_profile

if TYPE_CHECKING:
    from pravega_spark.engine.store import Store
    from pravega_spark.manager import StreamManager

_Command = TypeVar("_Command", bound=Callable[..., Any])
_PROFILE = "pravega_spark.profile"
ROOT, PROFILE = "PRAVEGA_SPARK_ROOT", "PRAVEGA_SPARK_PROFILE"


class OpenedRoot(NamedTuple):
    """A root that exists."""

    manager: StreamManager
    store: Store


def root_option(command: _Command) -> _Command:
    """Add ``--root``, the parameter ``root`` of the command, and ``--profile``."""
    root = click.option(
        "--root",
        metavar="FOLDER|URL",
        help=f"The root of the streams, such as s3://bucket/streams.  [env var: {ROOT}]",
    )
    profile = click.option(
        "--profile",
        metavar="NAME",
        expose_value=False,
        callback=_note,
        help=f"A root that the configuration file names.  [env var: {PROFILE}]",
    )
    return root(profile(command))


def _note(context: click.Context, _: click.Parameter, value: str | None) -> None:
    context.meta[_PROFILE] = value


def root_profile(root: str | None) -> Profile:
    """Return the root to use: ``--root``, ``--profile``, the variables, or the default profile.

    A root that is named takes the storage options of a profile that is named beside it. Raises
    UsageError if nothing names a root.
    """
    context = click.get_current_context(silent=True)
    named = context.meta.get(_PROFILE) if context else None
    if root is not None:
        found = find_profile(named) if named else None
        return Profile(root, found.storage_options if found else {})
    variable = os.environ.get(ROOT)
    if variable and not named:
        return Profile(variable)
    found = find_profile(named or os.environ.get(PROFILE))
    if found is None:
        raise click.UsageError(
            f"Missing option '--root' (or the variable {ROOT}, or a profile: see --help)."
        )
    return found


def open_root(root: str | None) -> OpenedRoot:
    """Open the root that exists; UsageError without one, InvalidInput without our marker."""
    from pravega_spark.engine.store.root_marker import MARKER_KEY, missing_marker

    found = new_root(root)
    if not found.store.exists(MARKER_KEY):
        raise missing_marker(found.store)
    return found


def check_begun(store: Store, streams: Iterable[str]) -> None:
    """Raise CorruptLog for a stream that a command which only looks at it would begin."""
    from pravega_spark.engine.stream import repair
    from pravega_spark.engine.stream.open_streams import open_stream

    for name in streams:
        repair.check_begun(open_stream(store, name))


def new_root(root: str | None) -> OpenedRoot:
    """Open a root that the first scope may make."""
    from pravega_spark.engine.store import open_store
    from pravega_spark.manager import StreamManager

    profile = root_profile(root)
    options = dict(profile.storage_options)
    manager = StreamManager(profile.root, storage_options=options or None)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[OPENED] = manager
    return OpenedRoot(manager, open_store(profile.root, **options))
