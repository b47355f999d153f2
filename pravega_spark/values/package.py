"""What this package is: its version, and how the packages that its extras name are installed."""

from __future__ import annotations

__version__ = "0.2.0"
"""The version, in this place alone: the build, commits and chunks take it from here."""


def install_extra(extra: str) -> str:
    """Return the command that installs the packages of an extra, for errors that miss one of them.

    pip takes an installed package for its name, wherever that came from, and asks no index for it.
    Code that runs from an archive or a folder is not installed, and only a checkout can be.
    """
    from importlib.metadata import PackageNotFoundError, version  # as slow as the rest

    try:
        version("pravega-spark")
    except PackageNotFoundError:
        return f"pip install '.[{extra}]' in a checkout of pravega_spark"
    return f"pip install 'pravega-spark[{extra}]'"
