"""What a program knows in its next life."""

from __future__ import annotations

from pathlib import Path

from tests.soak.lives import Kept


def test_next_life_knows_what_the_last_one_set(tmp_path: Path) -> None:
    first = Kept(tmp_path / "state")
    first["event"] = first.setdefault("event", 0) + 1
    first["gone"] = True
    del first["gone"]
    assert dict(Kept(tmp_path / "state")) == {"event": 1}
