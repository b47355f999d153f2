"""Which markers of checkpoints a reader sees, and that every loop in a page goes on after one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pravega_spark.errors import InvalidInput
from pravega_spark.reader_groups.state import SegmentKey
from tests.harness.group_world import NAME, World, drain

REPOSITORY = Path(__file__).parents[3]
PAGES = [
    path
    for folder in ("docs", "notebooks", "examples", "jobs", "pravega_spark", "site_pages")
    for path in (REPOSITORY / folder).rglob("*.*")
    if path.suffix in (".md", ".py", ".ipynb")
]
LOOP = re.compile(r"^ *while (?P<condition>.*\bread_(?:next_event|events)\(.*):.*$", re.MULTILINE)


def test_loop_of_the_page_reads_a_backlog_that_lasts_longer_than_the_checkpoint_interval() -> None:
    page = (REPOSITORY / "docs/reader-groups.md").read_text(encoding="utf-8")
    (loop,) = re.findall(r'with group\.create_reader\("reader-1"\).*?\n\n', page, re.DOTALL)[:1]
    world = World()
    events = world.write(100)
    group = world.created(checkpoint_interval="30 s")
    read, checkpoints = list[bytes](), set[str]()

    def handle(position: object, data: bytes) -> None:
        read.append(data)
        world.runtime.sleep(1)
        last = group.last_checkpoint()
        checkpoints.update(() if last is None else (last.name,))
        if len(read) == 50:
            group.initiate_checkpoint("by hand")

    exec(loop, {"group": group, "print": handle})
    assert read == events
    assert "by hand" in checkpoints
    assert len(checkpoints) >= 3, "and automatic ones, which nobody has seen"
    assert group.lag().events == 0


def test_every_loop_over_events_goes_on_after_a_marker() -> None:
    found = {
        (path.relative_to(REPOSITORY).as_posix(), loop["condition"])
        for path in PAGES
        for loop in LOOP.finditer(path.read_text(encoding="utf-8"))
    }
    assert len(found) >= 7
    short = {path for path, condition in found if "read.checkpoint" not in condition}
    assert short == {"notebooks/transactions.py"}, "where transactions acknowledge, none is shown"


@pytest.mark.parametrize("acknowledge", ["next", "checkpoint"])
@pytest.mark.parametrize("asks", [False, True])
def test_automatic_markers_are_shown_where_they_acknowledge_or_somebody_asked(
    acknowledge: str, asks: bool
) -> None:
    world = World()
    world.write(60)
    group = world.created(checkpoint_interval="10 s", acknowledge=acknowledge)
    reader = group.create_reader("a", automatic_markers=asks)
    markers = []
    for _ in range(50):
        world.runtime.sleep(1)
        markers += [reader.read_next_event(0).checkpoint]
    shown = [name for name in markers if name]
    assert bool(shown) == (asks or acknowledge == "checkpoint")
    last = group.last_checkpoint()
    assert last is not None
    if not asks and acknowledge == "next":
        assert last.stream_cuts[NAME].positions[0] >= 40, "the events before the call count"


@pytest.mark.parametrize("acknowledge", ["next", "checkpoint"])
def test_checkpoint_that_somebody_initiates_is_shown_to_a_reader_that_asked_for_nothing(
    acknowledge: str,
) -> None:
    world = World()
    world.write(10)
    group = world.created(acknowledge=acknowledge)
    reader = group.create_reader("a")
    reader.read_next_event(0)
    pending = group.initiate_checkpoint("by hand")
    world.runtime.sleep(4)
    assert reader.read_next_event(0).checkpoint == "by hand"
    assert not pending.done(), "the next call answers it"
    assert reader.read_next_event(0).event is not None
    assert pending.result(0).stream_cuts[NAME].positions == {0: 1}


def test_reader_that_asked_for_markers_answers_after_its_sibling_that_did_not() -> None:
    world = World(segments=2)
    world.write(40)
    group = world.created(checkpoint_interval="10 s")
    quiet = group.create_reader("quiet")
    asking = group.create_reader("asking", automatic_markers=True)
    for _ in range(12):
        world.runtime.sleep(1)
        assert quiet.read_next_event(0).checkpoint is None
    marker = next(
        read.checkpoint for read in iter(lambda: asking.read_next_event(0), None) if read.checkpoint
    )
    assert marker.startswith("automatic-")
    state = group.state()
    assert state.awaited == {marker: ["asking"]}
    asking.read_next_event(0)
    assert group.state().awaited == {}
    assert len(drain(quiet) + drain(asking)) > 0
    assert set(group.state().owners) == {SegmentKey(NAME, 0), SegmentKey(NAME, 1)}


def test_option_is_a_flag() -> None:
    group = World().created()
    with pytest.raises(InvalidInput, match="automatic_markers"):
        group.create_reader("a", automatic_markers="no")  # type: ignore[arg-type]
