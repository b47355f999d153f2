"""A group that is reset while somebody still publishes, or subscribes, for what it was before.

The slow process has decided to tell the stream where the group is, and stops. Another one resets
the group further back, and lets it go on: what it tells is of an earlier generation. A round of
retention follows, and then the group reads again what it was reset to.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.sim.answers import cut_of
from tests.sim.lives import Life
from tests.sim.workloads import groups
from tests.sim.workloads.common import read_all, stream_of
from tests.sim.workloads.overtaken import Scene, write
from tests.sim.workloads.retention import retain


def _group_name(life: Life) -> str:
    return f"{life.scope}/again"


def _open(life: Life) -> Any:
    """Return the group, which holds the quiet stream; create it before, whoever else does."""
    name, manager = _group_name(life), life.manager()
    if name not in life.made:
        create = partial(manager.create_reader_group, name, [life.quiet], retention="automatic")
        while not life.call("create_group", create, group=name, streams={life.quiet: {}})[0]:
            life.wait(1.0)
        life.made.add(name)
    return life.until_it_works(lambda: manager.reader_group(name))


def _join(life: Life, group: Any) -> tuple[Any, dict[str, Any]]:
    """Join; return the reader, None if it could not, and what its calls have in the history."""
    who = {"group": _group_name(life), "reader": life.name}
    is_in, reader = life.call(
        "join",
        partial(group.create_reader, life.name, lease=life.lease),
        acknowledge="next",
        streams=[life.quiet],
        retention="automatic",
        **who,
    )
    return (reader if is_in else None), who


def _read(life: Life, reader: Any, who: dict[str, Any]) -> bool:
    """Read until nothing comes; return whether the reader is still in the group."""
    while True:
        is_good, found = groups.ask_next(life, reader, who, 1.0)
        if not is_good:
            if isinstance(found, life.errors.ReinitializationRequired):
                life.call("expire", lambda: None, **who)
                return False
            life.wait(1.0)
        elif found.event is None and found.checkpoint is None:
            return True


def _read_all_and_leave(life: Life, stops: bool = False) -> None:
    """Read all that the group owes, and leave, which publishes that; perhaps stop before that."""
    reader, who = _join(life, _open(life))
    if reader is None or not _read(life, reader, who):
        return
    if stops:
        life.stop_at("commit.before", passing=1)  # the first commit is that it leaves
    groups.leave(life, reader, "next", who)


def _reset(life: Life, cut: Any) -> bool:
    to = {life.quiet: cut}
    return life.call(
        "reset",
        partial(_open(life).reset, to),
        told=int,
        group=_group_name(life),
        to={life.quiet: cut_of(cut)},
    )[0]


def publish(life: Life) -> None:
    """Read what is written, and stop before that is published; then run the retention."""
    write(life, events=2)
    _read_all_and_leave(life, stops=True)
    retain(life, life.quiet)


def subscribe(life: Life) -> None:
    """Read what is written, write more, and reset behind that; stop before the stream knows."""
    write(life, events=2)
    _read_all_and_leave(life)
    write(life, events=2)
    tail = life.until_it_works(stream_of(life, life.quiet).tail)
    life.stop_at("group.change.noted")
    _reset(life, tail)
    retain(life, life.quiet)


def go_back(life: Life) -> None:
    """Reset the group to the head, and see that it is there."""
    head = life.until_it_works(stream_of(life, life.quiet).head)
    _reset(life, head)
    read_all(life, life.quiet)


def read_again(life: Life) -> None:
    """Run the retention, which may take nothing, and read what the group was reset to."""
    life.wait(2.0)
    retain(life, life.quiet)
    _read_all_and_leave(life)


SCENES = (
    Scene("commit.before", publish, go_back, read_again),
    Scene("group.change.noted", subscribe, go_back, read_again),
)
