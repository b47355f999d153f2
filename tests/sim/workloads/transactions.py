"""Writers of transactions, on one stream and over two."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.workloads.common import KEYS, stream_of


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


def _play(life: Life, streams: list[str], transaction: Any, write: Any) -> None:
    """Write a transaction's events and end it."""
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
    if draw.random() < 0.2:
        life.call("abort", transaction.abort, transaction=name)
    elif len(streams) == 1 and draw.random() < 0.3:
        life.call("commit", lambda: transaction.commit(wait=False), transaction=name, wait=False)
    else:
        is_done, _ = life.call("commit", transaction.commit, transaction=name)
        if not is_done:
            _after_unknown(life, transaction, name, write, streams)
    life.wait(draw.choice((0.0, 1.0)))


def _after_unknown(life: Life, transaction: Any, name: str, write: Any, streams: list[str]) -> None:
    """Go on with a transaction whose commit failed: write to it, abort it, or commit it again.

    A joint one that is not decided yet may take the write, and is committed with it.
    """
    more = ("write",) if len(streams) == 1 else ()
    kind = life.source.choice((*more, "abort", "again"))
    if kind == "write":  # it is in no stage: nobody may ever see it
        with contextlib.suppress(life.errors.PravegaSparkError):
            write(streams[0], f"{name}.late", KEYS[0])
            transaction.flush()
    if kind == "abort":
        life.call("abort", transaction.abort, transaction=name)
    else:
        life.call("commit", transaction.commit, transaction=name)
