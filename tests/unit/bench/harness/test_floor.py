from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bench.harness.context import Context
from bench.harness.floor import AppendFloor, last_append


def test_floor_of_an_append_writes_the_bytes_of_its_chunk_and_its_commit(
    tmp_path: Path,
) -> None:
    context = Context(True, Console(quiet=True), tmp_path)
    stream = context.create("append", 4)
    with context.manager.create_writer(stream) as writer:
        for event in (b"first", b"last"):
            writer.write_event(event, "key").result()
    chunk, commit = last_append(context.manager, stream)
    floor = AppendFloor(tmp_path / "floor", chunk, commit)
    floor()
    floor()
    for folder, data in (("data", chunk), ("log", commit)):
        files = list((tmp_path / "floor" / folder).iterdir())
        assert [file.read_bytes() for file in files] == [data, data]
    assert chunk.startswith(b"PAR1")
    assert b'"commitInfo"' in commit
