"""Writers of transactions, on one stream and over two."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.workloads.common import KEYS, stream_of

_LAST = 1 << 30
"""The round after which a program begins no other one."""


def transactional_writer(rounds: int, writer_id: str | None) -> Body:
    """Return a program that writes transactions and commits most of them."""

    def body(life: Life) -> None:
        stream, draw, state = stream_of(life), life.source, life.state
        writer = None
        while state.setdefault("round", 0) < rounds:
            state["round"] += 1
            try:
                if writer is None:
                    writer = stream.create_transactional_writer(writer_id)
                transaction = writer.begin_transaction(lease=draw.choice(("10 s", "60 s")))
            except life.errors.PravegaSparkError:
                writer = None
                life.wait(1.0)
                continue
            _play(
                life,
                [life.stream],
                transaction,
                partial(_write_one, transaction),
                partial(stream.transaction, transaction.id) if draw.random() < 0.7 else None,
            )
        if writer is not None:
            life.until_it_works(writer.close)

    return body


def joint_writer(rounds: int) -> Body:
    """Return a program that writes transactions over two streams."""

    def body(life: Life) -> None:
        stream_of(life), stream_of(life, life.other)
        draw, state = life.source, life.state
        writer = None
        while state.setdefault("round", 0) < rounds:
            state["round"] += 1
            try:
                if writer is None:
                    writer = life.manager().create_joint_writer([life.stream, life.other])
                transaction = writer.begin_transaction()
            except life.errors.PravegaSparkError:
                writer = None
                life.wait(1.0)
                continue
            _play(
                life,
                draw.choice(([life.stream, life.other], [life.other, life.stream])),
                transaction,
                transaction.write_event,
            )
        if writer is not None:
            life.until_it_works(writer.close)

    return body


def _write_one(transaction: Any, stream: str, event: str, key: str) -> None:
    transaction.write_event(event, key)


def _play(
    life: Life,
    streams: list[str],
    transaction: Any,
    write: Any,
    other: Callable[[], Any] | None = None,
) -> None:
    """Write a transaction's events and end it; ``other`` makes another handle, as others have."""
    draw, state = life.source, life.state
    name = f"{life.author}-{state['round']}"
    staged: dict[str, list[Any]] = {stream: [] for stream in streams}
    try:
        for number in range(draw.randint(1, 3)):
            for stream in streams:
                event = f"{name}.{number}" if stream == life.stream else f"{name}.{number}u"
                key = draw.choice(KEYS)
                write(stream, event, key)
                staged[stream].append([key, event])
            if draw.random() < 0.3:
                transaction.flush()
            life.wait(draw.choice((0.0, 0.1, 5.0)))
    except life.errors.PravegaSparkError:
        return
    life.call("stage", lambda: None, transaction=name, streams=staged)
    if other is not None and draw.random() < 0.4:
        _prepare(life, transaction, name, other)
    if draw.random() < 0.2:
        life.call("abort", transaction.abort, transaction=name)
    elif len(streams) == 1 and draw.random() < 0.5:
        _decide(life, transaction, name, other)
    else:
        if len(streams) > 1 and draw.random() < 0.4:  # others find it decided, and not carried out
            draw.choice((life.pause_soon, partial(life.strike_soon, 0.5)))()
        is_done, _ = life.call("commit", transaction.commit, transaction=name)
        if not is_done:
            _after_unknown(life, transaction, name, write, streams, other)
    life.wait(draw.choice((0.0, 1.0)))


def _prepare(life: Life, transaction: Any, name: str, other: Callable[[], Any]) -> None:
    """Prepare a transaction, and write to it by another handle: no one may ever see that event."""
    with contextlib.suppress(life.errors.PravegaSparkError):
        transaction.prepare()
        late = other()
        late.write_event(f"{name}.late", KEYS[0])
        late.flush()


def _decide(
    life: Life, transaction: Any, name: str, other: Callable[[], Any] | None = None
) -> None:
    """Commit without waiting; die soon after that, or have another handle abort it: in vain."""
    decided, _ = life.call(
        "commit", partial(transaction.commit, wait=False), transaction=name, wait=False
    )
    what = life.source.choice(("nothing", "nothing", "abort", "die"))
    if decided and other is not None and what == "abort":
        life.call("abort", lambda: other().abort(), transaction=name)
    elif decided and what == "die" and life.strike_soon(0.5):
        life.state["round"] = _LAST  # whoever finds it is another process
        life.wait(10.0)


def _after_unknown(
    life: Life,
    transaction: Any,
    name: str,
    write: Any,
    streams: list[str],
    other: Callable[[], Any] | None,
) -> None:
    """Go on with a transaction whose commit failed: write to it, abort it, or commit it again.

    One that is not decided yet may take the write, and is committed with it. So it is written to
    only if another handle says that it is decided; this one need not know.
    """
    more = ("write",) if len(streams) == 1 else ()
    kind = life.source.choice((*more, "abort", "again"))
    if kind == "write" and other is not None:  # it is in no stage: nobody may ever see it
        with contextlib.suppress(life.errors.PravegaSparkError):
            if other().status.name != "OPEN":
                write(streams[0], f"{name}.late", KEYS[0])
                transaction.flush()
    if kind == "abort":
        life.call("abort", transaction.abort, transaction=name)
    else:
        life.call("commit", transaction.commit, transaction=name)


def decide_and_wait(life: Life, name: str) -> None:
    """Commit without waiting, and do nothing: what is decided becomes visible by itself."""
    transaction = life.until_it_works(
        life.manager().stream(name).create_transactional_writer().begin_transaction
    )
    event = f"{life.name}-{name}-decided"
    transaction.write_event(event, KEYS[0])
    life.call("stage", lambda: None, transaction=event, streams={name: [[KEYS[0], event]]})
    commit = partial(transaction.commit, wait=False)
    life.call("commit", commit, transaction=event, wait=False)
    call = life.begin("settle", stream=name)
    life.wait(20.0)
    call.ok()
