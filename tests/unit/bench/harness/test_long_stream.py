from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bench.harness.context import Context
from bench.harness.long_stream import long_stream


def test_stream_built_in_bulk_is_a_sound_stream(tmp_path: Path) -> None:
    context = Context(True, Console(quiet=True), tmp_path)
    name = long_stream(context, 300)
    assert [event.offset for event in context.manager.read(name)] == list(range(300))
    assert list(tmp_path.glob("streams/bench/*/events/_pravega/state/*.json"))
