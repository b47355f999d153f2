"""The fsyncs of the local store by what they make durable: each can be left out of a record."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.sim.power.system_calls import SystemCall

Lost = Callable[[SystemCall, str], bool]
_GROUPS = "/_reader_groups/"
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


def chunks_of_large_events(call: SystemCall, path: str) -> bool:
    return "/large/" in path and content_of_chunks(call, path)


def chunks_of_bytes(call: SystemCall, path: str) -> bool:
    return "/bytes/" in path and content_of_chunks(call, path)


def commits_of_groups(call: SystemCall, path: str) -> bool:
    return _GROUPS in path and content_of_commits(call, path)


def rows_of_groups(call: SystemCall, path: str) -> bool:
    return _GROUPS in path and content_of_chunks(call, path)


def names_of_group_commits(call: SystemCall, path: str) -> bool:
    return _GROUPS in path and names_of_commits(call, path)


FSYNCS: Mapping[str, Lost] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        *(content_of_commits, content_of_chunks, content_of_the_rest),
        *(names_of_commits, names_of_chunks, folders_above),
        *(chunks_of_large_events, chunks_of_bytes),
        *(commits_of_groups, rows_of_groups, names_of_group_commits),
    )
}
