"""Copies of a root: made while it is written to, finished by another process, brought up to
date, restored where they were not finished, and written to beside the root."""

from __future__ import annotations

from typing import Any

from tests.sim.answers import cut_of
from tests.sim.lives import Body, Life
from tests.sim.workloads.common import stream_of, text_of


def archivist(rounds: int) -> Body:
    """Return a program that makes a copy, reads it, lives on in it, and makes another one."""

    def body(life: Life) -> None:
        stream_of(life), stream_of(life, life.other)
        draw, state = life.source, life.state
        while state.setdefault("round", 0) < rounds:
            copy = f"{life.author}-{state['round']}"
            target = life.place_of(copy)
            manager = life.manager()
            is_update = state.get("complete") == copy
            is_begun = state.get("begun") == copy and not is_update
            if is_begun and draw.random() < 0.5:
                _restore_last(life, target, copy)
                continue
            state["begun"] = copy
            life.wait(draw.choice((1.0, 10.0, 200.0 if is_begun else 1.0)))

            def backup(manager: Any = manager, target: str = target, more: bool = is_update) -> Any:
                return manager.backup(target, life.copied, update=more, keep=life.pinned_for)

            amid = draw.choice((life.strike_soon, life.pause_soon, bool))
            amid()
            is_done, found = life.call("backup", backup, copy=copy, update=is_update)
            if not is_done:
                if not isinstance(found, life.errors.StoreError):
                    state["round"] += 1
                elif draw.random() < 0.2:
                    _restore_last(life, target, copy)
                continue
            for name in (life.stream, life.other):
                read_copy(life, target, copy, name)
            if not is_update and draw.random() < 0.5:
                state["complete"] = copy
                continue
            state["round"] += 1
            _live_on(life, target, copy)

    return body


def _restore_last(life: Life, target: str, copy: str) -> None:
    """Restore a copy of a round that ends by that, also if the process is killed amid it: nobody
    backs up into a copy whose restore has begun."""
    life.state["round"] += 1
    restore(life, target, copy)


def read_copy(life: Life, target: str, copy: str, name: str) -> None:
    """Read a stream of a copy, as a call of the history."""

    def read() -> Any:
        with life.package.StreamManager(target) as manager:
            stream = manager.stream(name)
            head = stream.head()
            return head, list(stream.create_reader().events(head)), stream.transactions()

    def told(found: Any) -> Any:
        head, events, waiting = found
        rows = [[str(e.segment_id), e.offset, e.routing_key, text_of(e.data)] for e in events]
        return {"from": cut_of(head), "events": rows, "open": len(waiting)}

    life.call("read_copy", read, told=told, copy=copy, stream=name)


def _live_on(life: Life, target: str, copy: str) -> None:
    """Write to the copy, which is a root of its own: nothing of it is ever seen in the first."""

    def work() -> None:
        with life.package.StreamManager(target) as manager:
            writer = manager.stream(life.stream).create_writer()
            for number in range(3):
                writer.write_event(f"of-{copy}-{number}", "k0")
            writer.close()
            manager.maintain(full=True)

    life.call("live_on", work, copy=copy)
    if life.source.random() < 0.5:
        restore(life, target, copy, life.source.choice(("", life.stream)))


def restore(life: Life, target: str, copy: str, stream: str = "") -> None:
    """Take a copy for a root, or back to what is whole: all of it, or one stream.

    It may be what a backup that was not finished has left.
    """

    def work() -> None:
        with life.package.StreamManager(target) as manager:
            if stream:
                manager.restore_stream(stream)
            else:
                manager.restore()

    life.call("restore", work, copy=copy)
