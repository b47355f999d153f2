from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bench.harness.context import Context
from bench.harness.fleet import COMMITS, fleet
from pravega_spark import StreamManager
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.scaling.auto import explain_scaling


def test_every_fourth_stream_of_a_fleet_has_to_split(tmp_path: Path) -> None:
    root, names = fleet(Context(True, Console(quiet=True), tmp_path), 5, "fleet")
    manager, store = StreamManager(root), LocalStore(root)
    rows = {name: sum(1 for _ in manager.read(name)) // COMMITS for name in names}
    assert list(rows.values()) == [750, 150, 150, 150, 750]
    split = [bool(explain_scaling(StreamLog(store, name)).decision.requests) for name in names]
    assert split == [True, False, False, False, True]
