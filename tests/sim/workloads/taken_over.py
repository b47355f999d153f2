"""A writer or a reader that another one has taken over from, and goes on as if it were not so.

The slow program stops amid its work, as those of ``overtaken`` do, while another one opens its
writer id, joins by its reader id, or gets its segments. The last scene has no other reader: the
group's state is out of reach at each marker, and the reader reads on before it answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tests.sim.lives import Body, Life
from tests.sim.workloads import appends, groups
from tests.sim.workloads.common import KEYS, stream_of
from tests.sim.workloads.overtaken import Scene, fast_one, slow_one

_ID = "taken"
"""Of the writer, and of the reader, that two programs are at once."""
_COMMIT, _STAGED, _PREPARED = "commit.before", "append.staged", "positions.prepared"
_ATTEMPTS = 60
"""How often a reader tries to join, once a second."""
_LEASES_SECONDS = 32.0
"""Three leases, and a little: who has seen a reader do nothing for so long expires it."""
_CUT_OFF_SECONDS = 4.0
"""Shorter than a lease."""


def write_by_id(life: Life) -> None:
    """Write, stop in the second write, and write once more."""
    writing, number = _opened(life)
    for count in range(3):
        if count == 1:
            life.stop_at(_STAGED)
        if not _write_next(writing, number + count):
            return
    life.until_it_works(writing.writer.close)


def open_id(life: Life) -> None:
    """Open the writer's id, let the one before go on, and write after it has tried to."""
    writing, number = _opened(life)
    life.go_on(_STAGED)
    life.wait(6.0)
    if _write_next(writing, number):
        life.until_it_works(writing.writer.close)


def _opened(life: Life) -> tuple[appends.Writing, int]:
    """Open a session of the writer; return it, and how many events the writer has."""
    stream, state = stream_of(life, life.quiet), life.state
    while True:
        state["session"] = state.get("session", 0) + 1  # one that was not heard of may be there
        who = {"stream": life.quiet, "session": f"{life.name}/{state['session']}"}
        is_open, writer = life.call(
            "open_writer",
            partial(stream.create_writer, _ID),
            told=lambda writer: writer.last_event_number,
            writer=_ID,
            **who,
        )
        if is_open:
            return appends.Writing(life, writer, _ID, **who), writer.last_event_number
        life.wait(1.0)


def _write_next(writing: appends.Writing, last: int) -> bool:
    number = last + 1
    return writing.write([[KEYS[number % 3], f"{_ID}-{number}"]]) and writing.settle()


def read_by_id(life: Life) -> None:
    """Read in the group, stop before one of its commits, and read on."""
    _write(life, 24)
    reader = groups.join(life, _group(life, "next"), _ID, "next")
    if reader is not None:
        life.stop_at(_COMMIT, passing=life.source.randint(0, 2))
        _read(life, reader, _ID, "next", 20.0)


def join_by_id(life: Life) -> None:
    """Join by the same id once the reader has expired, let that go on, and read beside it."""
    reader = _joined(life, _group(life, "next"), _ID, "next")
    life.go_on(_COMMIT)
    if reader is not None:
        _read(life, reader, _ID, "next", 10.0)


def read_in_transactions(life: Life) -> None:
    """Read in transactions, and stop when one has prepared what it acknowledges."""
    _read_in_transactions(life, 10.0, stops=True)


def abort_and_read(life: Life) -> None:
    """Take over the segments of the reader when it has expired, which aborts its transaction."""
    _read_in_transactions(life, _LEASES_SECONDS)


def _read_in_transactions(life: Life, seconds: float, *, stops: bool = False) -> None:
    _write(life, 4)
    stream_of(life, life.other)
    reader_id = f"{life.name}-{life.state['round']}"
    reader = _joined(life, _group(life, "transaction"), reader_id, "transaction")
    if reader is None:
        return
    if stops:
        life.stop_at(_PREPARED)
    until = life.now() + int(seconds * 1e9)
    groups.read_in_transactions(life, reader, reader_id, until)


def lonely_reader(life: Life) -> None:
    """Read what was written before, cut off at each marker for a time."""
    life.retry_timeout = "1 s"  # else it waits, and does not read on
    _write(life, 40)
    group = _group(life, "checkpoint")
    for _ in range(2):
        life.state["reader"] = life.state.get("reader", 0) + 1
        reader_id = f"{life.author}-{life.state['reader']}"
        reader = _joined(life, group, reader_id, "checkpoint")
        if reader is not None:
            _read(life, reader, reader_id, "checkpoint", 30.0, cuts_off=True)


def _group(life: Life, acknowledge: str) -> Any:
    return groups.opened(life, acknowledge, checkpoint_interval="5 s")


def _write(life: Life, events: int) -> None:
    """Write events in calls of four."""
    stream, state = stream_of(life), life.state
    writer = life.until_it_works(stream.create_writer)
    state["writer"] = state.get("writer", 0) + 1
    writing = appends.Writing(life, writer, f"{life.name}/{state['writer']}")
    for _ in range(events // 4):
        state["call"] = state.get("call", 0) + 1
        texts = [f"{life.author}-{state['call']}-{number}" for number in range(4)]
        key = life.source.choice(KEYS)
        if not (writing.write([[key, text] for text in texts]) and writing.settle()):
            return
    life.until_it_works(writer.close)


def _joined(life: Life, group: Any, reader_id: str, acknowledge: str) -> Any:
    """Join a group, as soon as the id is free; return the reader, or None."""
    for _ in range(_ATTEMPTS):
        reader = groups.join(life, group, reader_id, acknowledge)
        if reader is not None:
            return reader
        life.wait(1.0)
    return None


def _read(
    life: Life,
    reader: Any,
    reader_id: str,
    acknowledge: str,
    seconds: float,
    *,
    cuts_off: bool = False,
) -> None:
    until = life.now() + int(seconds * 1e9)
    at_marker = partial(life.cut_off, _CUT_OFF_SECONDS) if cuts_off else bool
    groups.read(life, reader, reader_id, until, acknowledge, (0.2, 0.5), at_marker)


class Cast(NamedTuple):
    """How the group of a scene acknowledges, and what makes its programs."""

    acknowledge: str
    programs: tuple[Callable[[], Body], ...]


def _two(acknowledge: str, scene: Scene) -> Cast:
    return Cast(acknowledge, (partial(slow_one, scene), partial(fast_one, scene)))


CASTS = (
    _two("next", Scene(_STAGED, write_by_id, open_id)),
    _two("next", Scene(_COMMIT, read_by_id, join_by_id)),
    _two("transaction", Scene(_PREPARED, read_in_transactions, abort_and_read)),
    Cast("checkpoint", (lambda: lonely_reader, lambda: groups.eager_checkpointer)),
)
