"""Profiles of the command line: named roots with their storage options, in a TOML file.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pravega_spark.errors import InvalidInput

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
        raise InvalidInput(f"{path} is no TOML: {error}.") from error


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
        raise InvalidInput(f"{where} has {unknown[0]!r}, but only {' and '.join(_FIELDS)} exist.")
    root, options = given.get("root"), given.get("storage_options", {})
    if not isinstance(root, str) or not root:
        raise InvalidInput(f"{where} needs a `root`: a folder or a URL.")
    if not isinstance(options, dict):
        raise InvalidInput(f"{where}: `storage_options` must be a table.")
    return Profile(root, options)
