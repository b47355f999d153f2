"""Several files of a local disk at once: their fsyncs wait for the disk together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import pyarrow as pa

from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.engine.store.local_files import StagedFile

Anchor = Callable[[str], object]
"""Makes a folder reachable after a crash."""


def publish(files: Mapping[str, bytes | pa.Buffer], anchor: Anchor, *, nameless: bool) -> set[str]:
    """Write new files durably, name them by their paths, and return their folders.

    The caller fsyncs the folders, which must exist.
    """
    folders: dict[str, list[StagedFile]] = {}
    with ExitStack() as discarded:
        written: dict[str, StagedFile] = {}
        for path, data in files.items():
            folder = os.path.dirname(path)
            file = written[path] = StagedFile(folder, nameless=nameless)
            discarded.callback(file.discard)
            folders.setdefault(folder, []).append(file)
            file.write(data)
        for folder, staged in folders.items():
            finish_in(folder, staged, anchor)
        for path, file in written.items():
            if not file.link(path):
                file.replace(path)
    return set(folders)


def finish_in(
    folder: str,
    staged: Iterable[StagedFile],
    anchor: Anchor | None,
    others: Sequence[Callable[[], object]] = (),
) -> None:
    """Finish written files durably while their folder is anchored and ``others`` run.

    The fsyncs run in parallel: concurrent ones share one write of the file system's journal. An
    error of the others counts most.
    """
    work = [*others[1:]]
    if anchor is not None:
        work.append(partial(anchor, folder))
    work += [partial(file.finish, durable=True) for file in staged]
    work += others[:1]  # the last one runs in this thread, and its error is raised
    SYSTEM.each(lambda call: call(), work)
