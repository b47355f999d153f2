"""The options ``--root`` and ``--profile`` of all commands, and the roots that they name.

The file is ``$PRAVEGA_SPARK_CONFIG``, or ``pravega-spark/config.toml`` in the user's folder of
configurations (``$XDG_CONFIG_HOME``, by default ``~/.config``)::

    default = "local"

    [profiles.local]
    root = "/data/streams"

    [profiles.production]
    root = "s3://bucket/streams"

    [profiles.production.storage_options]
    endpoint_url = "https://s3.example"
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pravega_spark.cli.near_names import OPENED
from pravega_spark.errors import InvalidInput

if TYPE_CHECKING:
    from pravega_spark.engine.store import Store
    from pravega_spark.manager import StreamManager


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_CONFIG = "PRAVEGA_SPARK_CONFIG"
_FIELDS = ("root", "storage_options")


@dataclass(frozen=True)
class Profile:
    """A root, and the options of its storage."""

    root: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)


def config_path() -> Path:
    """Return where the file of profiles is, whether it exists or not."""
    given = os.environ.get(_CONFIG)
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "pravega-spark" / "config.toml"


def find_profile(name: str | None) -> Profile | None:
    """Return the profile of this name, or the default one; None if there is no default.

    Raises InvalidInput for a name that the file does not have, for a file that is malformed or
    cannot be read, and for one that the variable names and that does not exist.
    """
    path = config_path()
    config = _read(path)
    name = name or config.get("default")
    if name is None:
        return None
    profiles = config.get("profiles", {})
    if not isinstance(profiles, dict) or not isinstance(name, str):
        raise InvalidInput(f"{path}: `default` must be a text and `profiles` a table.")
    if name not in profiles:
        raise InvalidInput(f"{path} has no profile {name!r}. {_others(name, list(profiles))}")
    return _profile(f"{path}: profile {name!r}", profiles[name])


def _read(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return config
    except FileNotFoundError:
        if os.environ.get(_CONFIG):
            raise InvalidInput(
                f"{_CONFIG} names {path}, which does not exist: create it, or unset the variable."
            ) from None
        return {}
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read as profiles: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}.") from error


def _others(name: str, known: list[str]) -> str:
    if not known:
        return "It has no profile at all: add a table [profiles.NAME] with a `root`."
    near = difflib.get_close_matches(name, known, 1)
    return f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(sorted(known))}."


def _profile(where: str, given: object) -> Profile:
    if not isinstance(given, dict):
        raise InvalidInput(f"{where} must be a table with a `root`.")
    unknown = sorted(set(given) - set(_FIELDS))
    if unknown:
        raise InvalidInput(
            f"{where} has the unknown field {unknown[0]!r}; a profile has {' and '.join(_FIELDS)}."
        )
    root, options = given.get("root"), given.get("storage_options", {})
    if not isinstance(root, str) or not root:
        raise InvalidInput(f"{where} needs a `root`: a folder or a URL.")
    if not isinstance(options, dict):
        raise InvalidInput(f"{where}: `storage_options` must be a table.")
    return Profile(root, options)


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


def open_root(root: str | None, *, maintain: bool = False) -> OpenedRoot:
    """Open the root that exists; UsageError without one, InvalidInput without our marker.

    Only with ``maintain`` does this process maintain it, whatever the root's setting is.
    """
    from pravega_spark.engine.store.root_marker import MARKER_KEY, missing_marker

    found = new_root(root, maintain=maintain)
    if not found.store.exists(MARKER_KEY):
        raise missing_marker(found.store)
    return found


def check_begun(store: Store, streams: Iterable[str]) -> None:
    """Raise CorruptLog for a stream that a command which only looks at it would begin."""
    from pravega_spark.engine.stream import repair
    from pravega_spark.engine.stream.stream_log import open_stream

    for name in streams:
        repair.check_begun(open_stream(store, name))


def new_root(root: str | None, *, maintain: bool = False) -> OpenedRoot:
    """Open a root that the first scope may make."""
    from pravega_spark.config.root_settings import AUTO, OFF
    from pravega_spark.engine.store import open_store
    from pravega_spark.manager import StreamManager

    profile = root_profile(root)
    options = dict(profile.storage_options)
    manager = StreamManager(
        profile.root, storage_options=options or None, maintain=AUTO if maintain else OFF
    )
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[OPENED] = manager
    return OpenedRoot(manager, open_store(profile.root, **options))
