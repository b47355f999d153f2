"""A group where checkpoints acknowledge, and somebody asks for its readers' positions.

The reader buffers what it gets, and dies before a checkpoint. Its position is ahead of what is
acknowledged, so to ask for it releases nothing. A round of retention follows at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.sim.lives import Life
from tests.sim.workloads import groups
from tests.sim.workloads.common import stream_of
from tests.sim.workloads.overtaken import write
from tests.sim.workloads.retention import retain

_ROUNDS = 3
_ATTEMPTS = 4
"""How often what failed is tried again, before the next round."""


def _group_name(life: Life) -> str:
    return f"{life.scope}/buffering"


def _open(life: Life) -> Any:
    """Return the group; create it before, whoever else does. It makes no checkpoint by itself."""
    name, manager = _group_name(life), life.manager()
    stream_of(life, life.quiet)
    if name not in life.made:

        def create() -> None:
            manager.create_reader_group(
                name,
                [life.quiet],
                retention="automatic",
                acknowledge="checkpoint",
                checkpoint_interval=None,
            )

        while not life.call("create_group", create, group=name, streams={life.quiet: {}})[0]:
            life.wait(1.0)
        life.made.add(name)
    return life.until_it_works(lambda: manager.reader_group(name))


def buffering_reader(life: Life) -> None:
    """Read what is written, and for a while more, and die; in the end read all, and leave."""
    group, reader, tried = _open(life), None, 0
    while reader is None:
        tried += 1
        who = {"group": _group_name(life), "reader": f"{life.name}-{tried}"}
        is_in, found = life.call(
            "join",
            partial(group.create_reader, who["reader"], lease=life.lease),
            acknowledge="checkpoint",
            streams=[life.quiet],
            retention="automatic",
            **who,
        )
        if is_in:
            reader = found
        else:
            life.wait(1.0)
    life.state["round"] = life.state.get("round", 0) + 1
    is_last = life.state["round"] > _ROUNDS
    if not is_last:
        write(life, events=2)
    quiet = 0
    while quiet < 40:
        is_good, found = groups.ask_next(life, reader, who, 1.0)
        if not is_good:
            if isinstance(found, life.errors.ReinitializationRequired):
                life.call("expire", lambda: None, **who)
                return
            life.wait(1.0)
        elif found.event is None:
            quiet += 1
            life.wait(0.2)
    if is_last or not life.strike_soon(0.0):
        groups.leave(life, reader, "checkpoint", who)
    else:
        life.wait(10.0)


def asker(life: Life) -> None:
    """Ask for the readers' positions, seldom for a checkpoint, and run the retention."""
    group = _open(life)
    ask = partial(groups.ask_positions, life, group=group.name)
    for number in range(2 * _ROUNDS):
        life.wait(10.0)
        name = f"{life.name}-{number}"
        if life.source.random() < 0.2:
            ask("checkpoint", partial(group.initiate_checkpoint, name), name=name)
        else:
            for _ in range(_ATTEMPTS):
                if ask("stream_cuts", group.generate_stream_cuts):
                    break
        life.wait(8.0)  # until the reader has published, if it does
        for _ in range(_ATTEMPTS):
            if retain(life, life.quiet):
                break
            life.wait(1.0)
