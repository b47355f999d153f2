"""Readers of a group, by each kind of acknowledgement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.sim.answers import cut_of, position_of
from tests.sim.lives import Body, Life
from tests.sim.workloads.common import stream_of, text_of

_CREATED_SECONDS = 100.0
"""For a group to be created: who does so may have been killed for good."""


def member(acknowledge: str, seconds: float) -> Body:
    """Return a program that reads in the group for a time, by ids that all members use."""

    def body(life: Life) -> None:
        stream_of(life), stream_of(life, life.other)
        draw, group = life.source, opened(life, acknowledge)
        until = life.now() + int(seconds * 1e9)
        while life.now() < until:
            reader_id = f"r{draw.randint(1, 4)}"  # perhaps another one's that has expired
            reader = join(life, group, reader_id, acknowledge)
            if reader is None:
                life.wait(1.0)
                continue
            stay = min(until, life.now() + int(draw.choice((5, 60)) * 1e9))
            if acknowledge == "transaction":
                read_in_transactions(life, reader, reader_id, stay)
            else:
                read(life, reader, reader_id, stay, acknowledge)

    return body


def opened(
    life: Life,
    acknowledge: str,
    streams: Sequence[str] = (),
    end: tuple[str, Any] | None = None,
    **other: Any,
) -> Any:
    """Return the group; create it before, from its streams' first events on, whoever else does.

    ``end`` is the cut at which it ends in each of them, as a text and as histories have it.
    """
    manager = life.manager()
    if life.group not in life.made:
        names = streams or [life.stream]
        told: dict[str, Any] = {"streams": {name: {} for name in names}}
        given: Any = names
        if end is not None:
            given = dict.fromkeys(names, (None, end[0]))
            told["ends"] = dict.fromkeys(names, end[1])
        create = partial(
            manager.create_reader_group,
            life.group,
            given,
            acknowledge=acknowledge,
            retention=life.group_retention,
            **{"checkpoint_interval": "10 s", **other},
        )
        _create(life, create, told)
    life.made.add(life.group)
    return life.until_it_works(lambda: manager.reader_group(life.group))


def _create(life: Life, create: Callable[[], Any], told: dict[str, Any]) -> None:
    while True:
        is_done, error = life.call("create_group", create, group=life.group, **told)
        if is_done or type(error).__name__ == "ConfigMismatch":
            return
        life.wait(1.0)


def is_there(life: Life) -> bool:
    """Wait for the group, which somebody else creates; return whether it is there."""
    until = life.now() + int(_CREATED_SECONDS * 1e9)
    while life.group not in life.made and life.now() < until:
        life.wait(1.0)
    return life.group in life.made


def join(life: Life, group: Any, reader_id: str, acknowledge: str) -> Any:
    """Add a reader to the group; return it, or None if it could not join."""
    is_done, reader = life.call(
        "join",
        partial(group.create_reader, reader_id, lease=life.lease),
        group=life.group,
        reader=reader_id,
        acknowledge=acknowledge,
        streams=[life.stream],
        retention=life.group_retention,
    )
    return reader if is_done else None


def ask_next(life: Life, reader: Any, who: dict[str, Any], timeout: float) -> tuple[bool, Any]:
    """Ask a reader for its next event or marker."""
    return life.call("next", partial(reader.read_next_event, timeout=timeout), told=_told, **who)


def read(
    life: Life,
    reader: Any,
    reader_id: str,
    until: int,
    acknowledge: str,
    waits: Sequence[float] = (0.0, 0.01, 0.5),
    at_marker: Callable[[], object] = bool,
) -> None:
    """Ask for events for a time, with a wait after each call, and leave."""
    who = {"group": life.group, "reader": reader_id}
    draw = life.source
    if acknowledge == "checkpoint" and draw.random() < 0.3:
        life.strike_soon(30.0)  # then nobody may miss what it has buffered
    while life.now() < until:
        is_done, found = ask_next(life, reader, who, draw.choice((0.0, 1.0)))
        if not is_done and isinstance(found, life.errors.ReinitializationRequired):
            life.call("expire", lambda: None, **who)
            return
        if is_done and found.checkpoint is not None:
            at_marker()
        life.wait(draw.choice(waits))
    leave(life, reader, acknowledge, who)


def leave(life: Life, reader: Any, acknowledge: str, who: dict[str, Any]) -> None:
    """Close a reader. A ``close`` where asking for the next event acknowledges does not say
    whether the reader was still in the group, so only the others are recorded as a ``leave``."""
    if acknowledge == "next" and life.source.random() < 0.3:
        life.call("expire", partial(life.until_it_works, reader.close), **who)
        return
    while True:
        close = reader.close
        if acknowledge == "next":
            close = partial(reader.close_at, reader.position)
        is_done, found = life.call("leave", close, **who)
        if is_done:
            return
        if not isinstance(found, life.errors.StoreError | life.errors.CommitUnknown):
            life.call("expire", lambda: None, **who)
            return
        life.wait(1.0)


def read_in_transactions(
    life: Life, reader: Any, reader_id: str, until: int, pause: float = 0.0
) -> None:
    """Read and acknowledge by transactions that write one event for each that was read.

    With a ``pause`` it commits all of them, and waits for so many seconds after one that read
    nothing; else it aborts some, also after a commit that failed, and may die amid a commit.
    """
    who, draw, state = {"group": life.group, "reader": reader_id}, life.source, life.state
    writer = None
    while life.now() < until:
        try:
            writer = writer or life.manager().create_joint_writer([life.other])
            transaction = writer.begin_transaction(readers=[reader])
        except life.errors.ReinitializationRequired:
            break
        except life.errors.PravegaSparkError:
            writer = None
            life.wait(1.0)
            continue
        state["number"] = state.setdefault("number", 0) + 1
        name = f"{life.author}-{state['number']}"
        reads, staged = [], []
        is_good = True
        for _ in range(draw.randint(1, 3)):
            is_good, found = ask_next(life, reader, who, 0.5)
            if not is_good:
                break
            if found.event is not None:
                text = text_of(found.event.data)
                reads.append([life.stream, text])
                staged.append([None, f"{name}.{text}"])
        try:
            for _, event in staged:
                transaction.write_event(life.other, event)
        except life.errors.PravegaSparkError:
            is_good = False
        if staged:
            life.call("stage", lambda: None, transaction=name, streams={life.other: staged})
        if is_good and (pause or draw.random() < 0.8):
            if reads and not pause and draw.random() < 0.15:
                life.strike_soon(0.3)
            is_done, _ = life.call("commit", transaction.commit, transaction=name, reads=reads)
            if not is_done and draw.random() < 0.5:
                life.call("abort", transaction.abort, transaction=name)
        else:
            life.call("abort", transaction.abort, transaction=name)
        life.wait(draw.choice((0.0, 0.5)) if reads else pause or 0.3)
    if life.call("leave", reader.close, **who)[0] is False:
        life.call("expire", lambda: None, **who)


def drain(life: Life, acknowledge: str) -> None:
    """Read all that the group owes, when all is calm; then again from a checkpoint of before."""
    group = life.until_it_works(lambda: life.manager().reader_group(life.group))
    _drain(life, group, acknowledge, "drain")
    checkpoint = life.until_it_works(group.last_checkpoint)
    if checkpoint is None or life.source.random() < 0.5:
        return
    cuts = {stream: cut_of(cut) for stream, cut in checkpoint.stream_cuts.items()}
    life.call("reset", partial(group.reset, checkpoint), group=life.group, to=cuts)
    _drain(life, group, acknowledge, "again")


def _drain(life: Life, group: Any, acknowledge: str, reader_id: str) -> None:
    """Join, read until nothing comes for two minutes, and leave."""
    who = {"group": life.group, "reader": reader_id}
    call = life.begin("drain", **who)
    _, reader = life.call(
        "join",
        partial(group.create_reader, reader_id, lease="10 s"),
        acknowledge=acknowledge,
        streams=[life.stream],
        **who,
    )
    if acknowledge == "transaction":
        read_in_transactions(life, reader, reader_id, life.now() + int(60e9), 8.0)
        call.ok()
        return
    quiet_since = life.now()
    while life.now() - quiet_since < 40e9:
        is_done, found = ask_next(life, reader, who, 5.0)
        if is_done and found.event is not None:
            quiet_since = life.now()
        elif found.checkpoint is None if is_done else _is_deleted(life, found):
            life.wait(1.0)
    call.ok()
    life.call("leave", reader.close, **who)


def _is_deleted(life: Life, error: BaseException) -> bool:
    return isinstance(error, life.errors.NoSuchStream)


def _told(found: Any) -> Any:
    if found.checkpoint is not None:
        return {"checkpoint": found.checkpoint}
    event = found.event
    if event is None:
        return None
    stream, position = event.pointer.stream, position_of(event)
    return {"stream": stream, "position": position, "event": text_of(event.data)}


def ask_positions(life: Life, operation: str, begin: Callable[[], Any], **arguments: Any) -> bool:
    """Ask a group for a checkpoint or for its readers' positions; return whether it told them."""

    def ask() -> Any:
        try:
            return begin().result(30.0)
        except TimeoutError:
            raise life.errors.CheckpointFailed("it took too long") from None

    def told(found: Any) -> Any:
        return {stream: cut_of(cut) for stream, cut in found.stream_cuts.items()}

    return life.call(operation, ask, told=told, **arguments)[0]


def checkpointer(rounds: int, waits: Sequence[float] = (1.0, 10.0)) -> Body:
    """Return a program that asks the group for checkpoints, and changes it now and then."""

    def body(life: Life) -> None:
        stream_of(life)
        manager = life.manager()
        for number in range(rounds):
            life.wait(life.source.choice(waits))
            name = f"{life.name}-{number}"

            def checkpoint(name: str = name) -> Any:
                return manager.reader_group(life.group).initiate_checkpoint(name)

            def cuts() -> Any:
                return manager.reader_group(life.group).generate_stream_cuts()

            ask_positions(life, "checkpoint", checkpoint, group=life.group, name=name)
            if life.source.random() < 0.4:
                ask_positions(life, "stream_cuts", cuts, group=life.group)
            if life.changes_groups and life.source.random() < 0.25:
                interval = life.source.choice(("5 s", "20 s", None))

                def update(interval: str | None = interval) -> Any:
                    return manager.reader_group(life.group).update(checkpoint_interval=interval)

                life.call("update_group", update, group=life.group)

    return body


def eager_checkpointer(life: Life) -> None:
    """Ask for checkpoints all the time, once the group is there."""
    if is_there(life):
        checkpointer(8, waits=(0.5, 5.0))(life)
