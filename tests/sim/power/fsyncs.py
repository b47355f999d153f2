"""The fsyncs of the local store by what they make durable: each can be left out of a record."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.sim.power.system_calls import SystemCall

Lost = Callable[[SystemCall, str], bool]
_FILE = re.compile(r"/(#\d+|[^/]*\.[^/]*)$")


def _is_file(path: str) -> bool:
    return _FILE.search(path) is not None


def content_of_commits(_: SystemCall, path: str) -> bool:
    return _is_file(path) and "/_delta_log/" in path


def content_of_chunks(_: SystemCall, path: str) -> bool:
    return _is_file(path) and "/data/" in path


def content_of_the_rest(_: SystemCall, path: str) -> bool:
    return _is_file(path) and "/data/" not in path and "/_delta_log/" not in path


def names_of_commits(_: SystemCall, path: str) -> bool:
    return path.endswith("/_delta_log")


def names_of_chunks(_: SystemCall, path: str) -> bool:
    return re.search(r"/data/[^/.#]+$", path) is not None


def folders_above(call: SystemCall, path: str) -> bool:
    others = (content_of_commits, content_of_chunks, content_of_the_rest)
    names = (names_of_commits, names_of_chunks)
    return not any(kind(call, path) for kind in (*others, *names))


FSYNCS: Mapping[str, Lost] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        *(content_of_commits, content_of_chunks, content_of_the_rest),
        *(names_of_commits, names_of_chunks, folders_above),
    )
}
