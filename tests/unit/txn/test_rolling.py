"""Rolling commits: a late transaction's events follow all earlier ones and precede later ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.engine.writing.append import append
from pravega_spark.event_reader import EventReader
from pravega_spark.txn import sweeper
from pravega_spark.txn.transaction import Transaction
from tests.harness import stream_cuts as cuts
from tests.harness.small_streams import events_of, scale, staged, write
from tests.harness.transaction_world import World, begun, recorded_transactions, written

KEYS = [f"k{n}" for n in range(24)]
LOW = [key for key in KEYS if position(key) < 0.5]
HIGH = [key for key in KEYS if position(key) >= 0.5]
assert LOW
assert HIGH


@pytest.fixture
def world() -> World:
    return World()


def halve(stream: StreamLog, segment_id: int) -> None:
    keys = next(s.key_range for s in stream.view().active.segments if s.segment_id == segment_id)
    middle = (keys.low + keys.high) / 2
    scale(stream, [segment_id], [(keys.low, middle), (middle, keys.high)])


def by_key(stream: StreamLog) -> dict[str | None, list[bytes]]:
    """Return the events of each key in the order of a reader."""
    found: dict[str | None, list[bytes]] = {}
    for event in EventReader(stream).events():
        found.setdefault(event.routing_key, []).append(event.data)
    return found


def layout(stream: StreamLog) -> list[tuple[int, int, list[int]]]:
    """Return the number, reference and segment numbers of every epoch."""
    view = stream.view()
    epochs = [view.epoch(n) for n in range(view.oldest_epoch, view.active.number + 1)]
    return [(e.number, e.reference, [s.number for s in e.segments]) for e in epochs]


# ------------------------------------------------------------------------------ without a roll


def test_events_of_active_segments_are_appended_to_them(world: World) -> None:
    txn = written(world.stream, [(key, b"x") for key in LOW])
    halve(world.stream, 1)
    txn.commit()
    assert len(events_of(world.process(), 0)) == len(LOW)
    assert world.process().view().active.number == 1


def test_events_of_merged_segments_move_to_the_merged_one_without_a_new_epoch(world: World) -> None:
    txn = written(world.stream, [(key, b"x") for key in KEYS])
    scale(world.stream, [0, 1], [(0, 1)])
    write(world.process(), [(key, b"before") for key in KEYS])
    txn.commit()
    write(world.process(), [(key, b"after") for key in KEYS])
    assert layout(world.process()) == [(0, 0, [0, 1]), (1, 1, [2])]
    assert by_key(world.process()) == {key: [b"before", b"x", b"after"] for key in KEYS}


def test_events_of_a_segment_split_and_merged_again_need_no_new_epoch(
    world: World,
) -> None:
    txn = written(world.stream, [(key, b"x") for key in KEYS])
    halve(world.stream, 0)
    first, second, _ = world.stream.view().active.segment_ids
    scale(world.stream, [first, second], [(0, 0.5)])
    txn.commit()
    assert world.process().view().active.number == 2
    assert by_key(world.process()) == {key: [b"x"] for key in KEYS}


def test_transaction_without_events_never_rolls(world: World) -> None:
    txn = begun(world.stream)
    halve(world.stream, 0)
    txn.commit()
    assert world.process().view().active.number == 1


# ---------------------------------------------------------------------------------- with a roll


def test_commit_rolls_over_a_split_segment(world: World) -> None:
    write(world.process(), [(key, b"old") for key in KEYS])
    txn = written(world.stream, [(key, b"late") for key in KEYS])
    halve(world.stream, 0)
    write(world.process(), [(key, b"before") for key in KEYS])
    waiting = world.process()
    waiting.view()
    chunks = staged(waiting, [(key, b"after") for key in KEYS])
    txn.commit()
    append(waiting, 1, 0, chunks)  # staged for the earlier segments

    stream = world.process()
    assert by_key(stream) == {key: [b"old", b"before", b"late", b"after"] for key in KEYS}
    assert layout(stream) == [
        (0, 0, [0, 1]),
        (1, 1, [2, 3, 1]),
        (2, 0, [0, 1]),  # the old layout, duplicated for the late events
        (3, 1, [2, 3, 1]),  # the active layout, duplicated
    ]
    (commit,) = world.commits("COMMIT TRANSACTION")
    assert commit.info["operationParameters"]["rolled"] == "true"
    assert set(recorded_transactions(commit)[0]["rowsBySegment"]) == {"0#2", "1#2"}
    view = stream.view()
    times = [view.epoch(n).created_ms for n in range(4)]
    assert times == sorted(set(times))
    assert view.record.next_segment_number == 4


def test_transactions_of_the_interrupted_layout_are_appended_to_its_duplicate(
    world: World,
) -> None:
    early = written(world.stream, [(key, b"1") for key in KEYS])
    halve(world.stream, 0)
    late = written(world.process(), [(key, b"2") for key in KEYS])
    early.commit()
    assert world.process().view().active.number == 3
    late.commit()
    assert world.process().view().active.number == 3
    assert by_key(world.process()) == {key: [b"1", b"2"] for key in KEYS}


def test_one_commit_of_several_epochs_keeps_their_order_with_the_fewest_duplicates(
    world: World,
) -> None:
    first = written(world.process(), [(key, b"1") for key in KEYS])
    second = written(world.process(), [(key, b"2") for key in KEYS])
    halve(world.stream, 0)
    third = written(world.process(), [(key, b"3") for key in KEYS])
    write(world.process(), [(key, b"0") for key in KEYS])
    for txn in (first, third, second):
        txn.commit(wait=False)
    sweeper.sweep_transactions(world.process())
    write(world.process(), [(key, b"4") for key in KEYS])

    stream = world.process()
    assert by_key(stream) == {key: [b"0", b"1", b"3", b"2", b"4"] for key in KEYS}
    assert [reference for _, reference, _ in layout(stream)] == [0, 1, 0, 1]
    for segment_id in stream.view().epoch(2).segment_ids:
        found = [event for _, event in events_of(stream, segment_id)]
        assert found == sorted(found, key=[b"1", b"3", b"2"].index)


def test_layout_is_duplicated_once_if_the_last_transaction_needs_it(world: World) -> None:
    scale(world.stream, [1], [(0.5, 0.75), (0.75, 1)])
    old = written(world.process(), [(key, b"1") for key in KEYS])
    low, right, far = world.stream.view().active.segment_ids
    scale(world.stream, [low, right, far], [(0, 0.25), (0.25, 0.5), (0.5, 1)])
    new = written(world.process(), [(key, b"2") for key in HIGH])
    old.commit(wait=False)
    new.commit()  # its segment is split in the old layout, so the commit must leave that first
    references = [reference for _, reference, _ in layout(world.process())]
    assert references == [0, 1, 2, 1, 2]
    found = by_key(world.process())
    assert all(found[key] == [b"1", b"2"] for key in HIGH)
    write(world.process(), [(key, b"3") for key in HIGH])
    found = by_key(world.process())
    assert all(found[key] == [b"1", b"2", b"3"] for key in HIGH)


def test_next_late_transaction_rolls_again(world: World) -> None:
    several = [written(world.process(), [(key, b"%d" % n) for key in LOW]) for n in range(3)]
    halve(world.stream, 0)
    for txn in several:
        txn.commit()
    assert world.process().view().active.number == 1 + 2 * len(several)
    assert by_key(world.process()) == {key: [b"0", b"1", b"2"] for key in LOW}


def test_commit_rolls_over_a_truncation(world: World) -> None:
    write(world.process(), [(key, b"gone") for key in KEYS])
    txn = written(world.stream, [(key, b"late") for key in KEYS])
    halve(world.stream, 0)
    write(world.process(), [(key, b"gone too") for key in KEYS])
    stream = world.process()
    truncate(stream, cuts.tail(stream.view()))
    txn.write_event(b"later", KEYS[0])
    txn.commit()
    assert by_key(world.process()) == {
        **{key: [b"late"] for key in KEYS},
        KEYS[0]: [b"late", b"later"],
    }


def test_event_without_a_key_moves_with_its_chunk(world: World) -> None:
    txn = written(world.stream, [(None, b"x"), (None, b"y")])
    halve(world.stream, 0)
    halve(world.stream, 1)
    txn.commit()
    assert by_key(world.process()) == {None: [b"x", b"y"]}


# --------------------------------------------------------------------------------- any history

STEPS = st.lists(
    st.tuples(st.sampled_from(["scale", "begin", "commit", "decide", "write"]), st.integers(0, 7)),
    min_size=6,
    max_size=18,
)


@pytest.mark.medium
@given(STEPS)
def test_every_key_is_read_in_the_order_of_appends_and_commits(
    steps: list[tuple[str, int]],
) -> None:
    world = World()
    stream = world.process()
    opened: list[tuple[bytes, Transaction]] = []
    waiting: list[bytes] = []
    expected: list[bytes] = []
    for number, (step, which) in enumerate(steps):
        name = b"%d" % number
        if step == "begin":
            opened.append((name, written(world.process(), [(key, name) for key in KEYS])))
        elif step == "write":
            write(stream, [(key, name) for key in KEYS])
            expected.append(name)
        elif step == "scale":
            segments = stream.view().active.segments
            if which % 2 and len(segments) > 1:
                a, b = segments[which % (len(segments) - 1) :][:2]
                ranges = [(a.key_range.low, b.key_range.high)]
                scale(stream, [a.segment_id, b.segment_id], ranges)
            elif len(segments) < 6:
                halve(stream, segments[which % len(segments)].segment_id)
        elif opened:
            name, txn = opened.pop(which % len(opened))
            txn.commit(wait=step == "commit")
            waiting.append(name)
            if step == "commit":
                expected += waiting
                waiting = []
    sweeper.sweep_transactions(stream)
    assert by_key(world.process()) in (
        dict.fromkeys(KEYS, expected + waiting),
        {},
    )
