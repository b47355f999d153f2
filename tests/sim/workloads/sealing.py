"""A stream that is sealed while others write to it, and deleted."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.workloads.common import KEYS, stream_of


def late_writer(rounds: int) -> Body:
    """Return a program that writes to the stream until it is sealed."""

    def body(life: Life) -> None:
        stream, draw, state = stream_of(life, life.sealed), life.source, life.state
        errors, writer, handle = life.errors, None, ""
        for _ in range(rounds):
            state["event"] = state.setdefault("event", 0) + 1
            event, key = f"{life.author}-{state['event']}", draw.choice(KEYS)
            if draw.random() < 0.2 and _late_transaction(life, stream, f"{event}t"):
                return
            try:
                if writer is None:
                    writer, handle = stream.create_writer(), f"{life.name}/{state['event']}"
            except errors.StreamSealed:
                return
            except errors.PravegaSparkError:
                life.wait(1.0)
                continue
            is_done, found = life.call(
                "write",
                partial(_written, writer, event, key),
                told=lambda pointer: [[str(pointer.segment_id), pointer.offset]],
                stream=life.sealed,
                writer=handle,
                events=[[key, event]],
            )
            if not is_done:
                writer = None
                if isinstance(found, errors.StreamSealed):
                    return
            life.wait(draw.choice((0.0, 0.3, 1.0)))

    return body


def _late_transaction(life: Life, stream: Any, name: str) -> bool:
    """Play a transaction that is open for a while; return whether the stream is sealed."""
    try:
        transaction = stream.create_transactional_writer().begin_transaction(lease="60 s")
        transaction.write_event(name, KEYS[0])
        transaction.flush()
    except life.errors.StreamSealed:
        return True
    except life.errors.PravegaSparkError:
        return False
    life.call("stage", lambda: None, transaction=name, streams={life.sealed: [[KEYS[0], name]]})
    life.wait(life.source.choice((0.0, 2.0, 8.0)))
    life.call("commit", transaction.commit, transaction=name)
    return False


def _written(writer: Any, event: str, key: str) -> Any:
    return writer.write_event(event, key).result()


def _written_to(stream: Any, event: str) -> Any:
    return _written(stream.create_writer(), event, "k")


def sealer(seconds: float) -> Body:
    """Return a program that seals the stream after a time."""

    def body(life: Life) -> None:
        stream = stream_of(life, life.sealed)
        life.wait(life.source.uniform(0.0, seconds))
        while not life.call("seal", stream.seal, stream=life.sealed)[0]:
            life.wait(1.0)

    return body


def recreator(rounds: int) -> Body:
    """Return a program that creates a stream of its own, changes it, seals and deletes it."""

    def body(life: Life) -> None:
        draw, manager, package = life.source, life.manager(), life.package
        for number in range(rounds):
            name = f"{life.scope}/{life.name.replace('.', '-')}-{number}"
            stream = stream_of(life, name)
            event = f"{life.name}-{number}"
            life.call(
                "write",
                partial(_written_to, stream, event),
                told=lambda pointer: [[str(pointer.segment_id), pointer.offset]],
                stream=name,
                writer=life.name,
                events=[["k", event]],
            )
            if draw.random() < 0.5:
                changed = package.RetentionPolicy.by_size("1 MiB")
                life.call(
                    "update_stream",
                    partial(stream.update, retention=changed),
                    stream=name,
                )
            while not life.call("seal", stream.seal, stream=name)[0]:
                life.wait(1.0)
            life.call("delete_stream", stream.delete, stream=name)
            _table_of_its_own(life, f"{name}-kv")
            life.call("sweep_scope", lambda: manager.sweep_scope(life.scope), scope=life.scope)
            life.wait(draw.choice((0.5, 5.0)))

    return body


def _table_of_its_own(life: Life, name: str) -> None:
    """Create a key-value table, use it, change it, and delete it."""
    manager, package = life.manager(), life.package
    made = package.KeyValueTableConfiguration(key_type="string")
    life.until_it_works(lambda: manager.create_key_value_table(name, made))
    table = life.until_it_works(lambda: manager.key_value_table(name))
    life.call(
        "update",
        lambda: table.put("a", life.name).result(),
        told=lambda version: [[version.segment_id, version.offset]],
        table=name,
        changes=[{"key": "a", "value": life.name}],
    )
    life.until_it_works(table.close)
    life.call(
        "update_table",
        lambda: manager.update_key_value_table(name, add_tags=["changed"]),
        table=name,
    )
    life.call("delete_table", lambda: manager.delete_key_value_table(name), table=name)
