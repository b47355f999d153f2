"""Where a run of the demo writes: the stream under its root, everything else in one folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from flights.dataset import InputError
from flights.scaling import policy
from pravega_spark import RetentionPolicy, StreamConfiguration, StreamManager
from pravega_spark.values.names import split_stream

WORK = Path("out", "demo")
"""Relative to the current folder; every run empties it."""
MARKER = ".made-by-the-demo"
GROUP = "dashboards"
"""Name of the reader group, in the scope of the stream."""
TYPED = "-typed"
"""What the name of the typed stream has after that of the first one."""


@dataclass(frozen=True)
class Workspace:
    """Stream and folder of one run; both exist and are empty."""

    root: str
    stream: str
    group: str
    """The reader group of the query that reads the stream."""
    segments: int
    target: int
    """Events a second above which a segment is split."""
    work: Path

    @property
    def typed(self) -> str:
        """The stream with the same flights as columns."""
        return self.stream + TYPED

    def path(self, name: str) -> str:
        """Return the path of a file or folder in the demo's folder."""
        return str(self.work / name)


def prepare(root: str | None, stream: str, segments: int, events: int) -> Workspace:
    """Empty the demo's folder and create the stream; a root of the user's own is not emptied.

    The stream's scaling target is one that a replay of ``events`` exceeds, and its retention keeps
    what its subscribers have not consumed.

    Raises InputError if this would delete or change anything that the demo did not create, and
    the errors of StreamManager for an unusable root, name or number.
    """
    scope, _ = split_stream(stream)
    scaling = policy(events, segments)
    configuration = StreamConfiguration(
        scaling=scaling, retention=RetentionPolicy.by_consumption(), tags=frozenset({"demo"})
    )
    group = f"{scope}/{GROUP}"
    work = WORK.resolve()
    if work.exists() and any(work.iterdir()) and not (work / MARKER).exists():
        raise InputError(f"{work} was not made by the demo, so it is not emptied: move it away.")
    if root is None:
        _empty(work)
        manager = StreamManager(work / "streams")
    else:
        _check_root(root, work)
        manager = StreamManager(root)
    manager.create_scope(scope)
    if group in manager.list_reader_groups(scope):
        raise InputError(
            f"reader group {group} exists in {root} already, and the demo leaves it alone: choose "
            "another scope with --stream, or another --root."
        )
    for name in (stream, stream + TYPED):
        if manager.stream_exists(name):
            raise InputError(
                f"stream {name} exists in {root} already, and the demo leaves it alone: choose "
                "another with --stream, or another --root."
            )
    manager.create_stream(stream, configuration)
    if root is not None:
        _empty(work)
    return Workspace(manager.root, stream, group, segments, scaling.target, work)


def _check_root(root: str, work: Path) -> None:
    if root.startswith("memory:"):
        raise InputError(f"--root {root} is visible to one process only, and the demo has several.")
    if "://" not in root and Path(root).resolve().is_relative_to(work):
        raise InputError(f"--root {root} is in {work}, which the demo empties: choose another.")


def _empty(work: Path) -> None:
    if work.exists():
        shutil.rmtree(work)
    work.mkdir(parents=True)
    (work / MARKER).touch()
