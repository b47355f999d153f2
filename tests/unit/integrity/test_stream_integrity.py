"""Damage of every kind is found and named, and a stream in use is sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark.cli import main
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.integrity.log_integrity import Integrity
from pravega_spark.integrity.stream_integrity import check_stream
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_source import folded_table
from pravega_spark.manager import StreamManager
from pravega_spark.policies import ScalingPolicy, StreamConfiguration


@pytest.fixture
def root(tmp_path: Path) -> Path:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(ScalingPolicy.fixed(2)))
    with manager.create_writer("s/a") as writer:
        for i in range(40):
            writer.write_event(b"%d" % i, routing_key=str(i)).result()
    manager.scale_stream("s/a", [0], [(0.0, 0.25), (0.25, 0.5)])
    manager.truncate_stream("s/a", manager.create_reader("s/a").next_cut(manager.head("s/a"), 5))
    return tmp_path / "root"


def checked(root: Path, *, deep: bool = False) -> Integrity:
    manager = StreamManager(root)
    return check_stream(open_stream(manager.root, "s/a"), deep=deep)


def chunk(root: Path) -> Path:
    """The chunk that was written last; those of the first events are below the head."""
    files = (root / "s/a/events/data").rglob("*.parquet")
    return max(files, key=lambda path: path.stat().st_mtime_ns)


def commit(root: Path, version: int) -> Path:
    return root / f"s/a/events/_delta_log/{version:020d}.json"


def test_a_stream_that_was_scaled_and_truncated_is_sound(root: Path) -> None:
    found = checked(root, deep=True)
    assert found.damage == []
    assert found.events == StreamManager(root).stream_info("s/a").events < 40
    assert found.commits == (found.version or 0) + 1
    assert main(["fsck", "--root", str(root)]) == 0


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(4, len(data) // 2):  # a single bit may be one of a page's statistics
        data[at] ^= 0x55
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "deep", "reason"),
    [
        (Path.unlink, False, "is missing"),
        (_cut, False, "the log records"),
        (_flip, True, ""),
    ],
    ids=["removed", "cut", "flipped"],
)
def test_a_damaged_chunk_is_named(
    root: Path, spoil: Callable[[Path], None], deep: bool, reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = chunk(root)
    spoil(path)
    (damage,) = checked(root, deep=deep).damage
    assert str(path).endswith(damage.path)
    assert reason in damage.reason
    assert main(["fsck", "s/a", "--root", str(root), *(["--deep"] if deep else [])]) == 1
    assert path.name in capsys.readouterr().err


@pytest.mark.parametrize("spoil", [Path.unlink, _cut], ids=["removed", "cut"])
def test_a_damaged_commit_is_named(root: Path, spoil: Callable[[Path], None]) -> None:
    spoil(commit(root, 7))
    found = checked(root)
    assert any(
        f"{7:020d}.json" in damage.path or "version 7" in damage.reason for damage in found.damage
    )


def test_an_unknown_stream_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", "s/none", "--root", str(root)]) == 1
    assert "s/none" in capsys.readouterr().err


def test_all_streams_are_checked_and_reported_as_json(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fsck", "--root", str(root), "--output", "json"]) == 0
    assert '"damage": []' in capsys.readouterr().out


@pytest.fixture
def kinds(root: Path) -> Path:
    """The root, with a group and a folded key-value table."""
    manager = StreamManager(root)
    group = manager.create_reader_group("s/g", ["s/a"])
    group.create_reader("r").close()
    manager.create_key_value_table("s/k")
    with manager.key_value_table("s/k") as table:
        for number in range(20):
            table.put(b"%d" % number, b"value")
        table.flush()
        fold(table._stream, folded_table(table._stream, table.configuration))
    return root


def test_groups_tables_and_indexes_are_sound_and_counted(
    kinds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fsck", "--deep", "--root", str(kinds)]) == 0
    names = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == [
        *("s (index)", "s/a", "s/g (reader group)", "s/k (table)", "s/k (folded table)"),
    ]


@pytest.mark.parametrize(
    ("folder", "pattern"),
    [
        ("s/_scope", "_delta_log/*0.json"),
        ("s/_reader_groups/g", "_delta_log/*0.json"),
        ("s/_kv_tables/k/events", "data/**/*.parquet"),
        ("s/_kv_tables/k/table", "**/*.parquet"),
    ],
)
@pytest.mark.parametrize("spoil", [Path.unlink, _cut, _flip], ids=["removed", "cut", "flipped"])
def test_damage_of_groups_tables_and_indexes_is_named_and_hides_no_stream(
    kinds: Path,
    folder: str,
    pattern: str,
    spoil: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = sorted((kinds / folder).glob(pattern))[-1]
    spoil(path)
    assert main(["fsck", "--deep", "--root", str(kinds)]) == 1
    text, error = capsys.readouterr()
    assert folder in error
    assert "s/a " in text
