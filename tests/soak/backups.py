"""A program that backs streams up while they are used, and reads them in the copy."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.sim.answers import cut_of
from tests.sim.lives import Body, Life
from tests.sim.workloads.common import stream_of


def backup(rounds: int) -> Body:
    """Return a program whose reads are of copies: each was begun before its backup was.

    So a copy has all that was acknowledged before its backup began, and nothing in part.
    """

    def body(life: Life) -> None:
        for name in (life.stream, life.other):
            stream_of(life, name)
        for _ in range(rounds):
            life.wait(life.source.choice((1.0, 2.0)))
            name = life.source.choice((life.stream, life.other))
            folder = Path(tempfile.mkdtemp(prefix="soak-copy-"))
            try:
                life.call("read", partial(_copied, life, name, folder), told=_told, stream=name)
            finally:
                shutil.rmtree(folder)

    return body


def _copied(life: Life, name: str, folder: Path) -> Any:
    life.manager().backup(folder / "copy", name)
    with life.package.StreamManager(folder / "copy") as copy:
        head, reader = copy.head(name), copy.create_reader(name)
        return head, list(reader.events(head)), reader.position


def _told(found: Any) -> Any:
    head, events, end = found
    rows = [[str(e.segment_id), e.offset, e.routing_key, e.data.decode()] for e in events]
    return {"from": cut_of(head), "to": cut_of(end), "events": rows}
