"""Commits that come late: of a file that a sweep has passed, of a sweep beside which a backup has
begun, and those whose process hears nothing of them."""

from __future__ import annotations

from functools import partial

from tests.sim.answers import position_of
from tests.sim.lives import Life
from tests.sim.storage import HELD_BACK, UNHEARD
from tests.sim.workloads import appends, backups, tables
from tests.sim.workloads.common import stream_of
from tests.sim.workloads.overtaken import Scene, sweep, write

_AGED = 66.0
"""Seconds after which what was written is older than what sweeps keep, by any clock."""
_MARKS_AGED = 4_000.0
"""Seconds after which a sweep may delete the commits below a mark."""
_LONG = 6_000.0
_FOLDED = 700.0
"""Seconds after which a change is old enough for a fold."""
_ROUNDS = 3


def write_twice(life: Life) -> None:
    """Write, so that the log knows the writer, and again; stop when the second file is stored.

    Both files are of the version at which the writer was opened.
    """
    write(life)
    writer = life.until_it_works(stream_of(life, life.quiet).create_writer)
    name = f"{life.name}/{life.state['round']}"
    for number in range(2):
        if number:
            life.stop_at("append.staged")
        event = f"{name}.{number}"
        life.call(
            "write",
            lambda event=event: writer.write_event(event, "k0").result(),  # type: ignore[misc]
            told=lambda pointer: [position_of(pointer)],
            stream=life.quiet,
            writer=f"{name}/twice",
            events=[["k0", event]],
        )
    life.until_it_works(writer.close)


def sweep_past(life: Life) -> None:
    """Let the horizon pass the version at which the file was stored, and no later one."""
    life.wait(_AGED)
    sweep(life)


def move_marks(life: Life) -> None:
    """Have sweeps move the marks of old commits, and stop when the second move is decided.

    A backup that begins then goes on when the commits before that could be deleted.
    """
    _write_and_sweep(life)
    _let_marks_age(life)
    _write_and_sweep(life, stop_at="sweep.history")
    if life.meanwhile("backup.pinned"):
        _let_marks_age(life)
        _write_and_sweep(life)
        life.go_on("backup.pinned")


def _write_and_sweep(life: Life, stop_at: str = "") -> None:
    for _ in range(2):
        write(life)
    life.wait(_AGED)
    if stop_at:
        life.stop_at(stop_at)
    _sweep(life)


def _sweep(life: Life) -> None:
    for _ in range(5):
        if sweep(life):
            return
        life.wait(1.0)


def _let_marks_age(life: Life) -> None:
    _sweep(life)  # a mark ages from the first sweep on that has seen it
    life.wait(_MARKS_AGED)


def back_up(life: Life) -> None:
    """Make a copy of the stream, and stop when its version is pinned; the settings come first."""
    copy = f"{life.author}-{life.state['round']}"
    target = f"{life.root}-{copy}"
    life.stop_at("backup.pinned", passing=1, seconds=_LONG)
    backup = partial(life.manager().backup, target, life.quiet)
    if life.call("backup", backup, copy=copy, update=False)[0]:
        backups.read_copy(life, target, copy, life.quiet)


def update_unheard(life: Life) -> None:
    """Change an entry on the version that it has, first by a commit that is held back, and then by
    one that another process goes past."""
    for how in (HELD_BACK, UNHEARD):
        table = tables.opened(life)
        (known,) = life.until_it_works(partial(table.get_all, ["a"], fresh=True))
        life.lose_commit(how)
        tables.put_if(life, table, "a", f"{life.name}:{life.state['round']}-{how}", known)
        life.until_it_works(table.close)


def update_another(life: Life) -> None:
    """Change another entry of the table."""
    table = tables.opened(life)
    tables.put(life, table, "b", f"{life.name}:{life.state['round']}")
    life.until_it_works(table.close)


def restore_folded(life: Life) -> None:
    """At the end, fold the table, and restore a copy of it."""
    if life.state["round"] < _ROUNDS:
        return
    manager, copy = life.manager(), f"{life.author}-folded"
    life.wait(_FOLDED)
    fold = partial(manager.maintain, kinds=("folding",), full=True)
    life.call("maintain", fold, root="")
    target = f"{life.root}-{copy}"
    if life.call("backup", partial(manager.backup, target), copy=copy, update=False)[0]:
        backups.restore(life, target, copy)


def append_unheard(life: Life) -> None:
    """Append where no event is yet, and then at the tail, by a commit that another goes past."""
    last = write(life)
    if last is None:
        return
    stream = stream_of(life, life.quiet)
    writer = life.until_it_works(stream.create_writer)
    session = f"{life.name}/{life.state['round']}"
    for beyond in (1, 0):
        expected = life.package.EventPointer(
            last.stream, last.life, last.segment_id, last.offset + 1 + beyond
        )
        if not beyond:
            life.lose_commit(UNHEARD)
        appends.write_if(
            *(life, writer, ["k0", f"{session}.{beyond}"], expected),
            {"position": position_of(expected)},
            stream=life.quiet,
            session=session,
        )
    life.until_it_works(writer.close)


SCENES = (
    Scene(UNHEARD, update_unheard, update_another, restore_folded, rounds=_ROUNDS),
    Scene("append.staged", write_twice, sweep_past),
    Scene("sweep.history", move_marks, back_up, seconds=_LONG, rounds=2),
    Scene(UNHEARD, append_unheard, write),
)
