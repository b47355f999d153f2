"""Key-value tables and shared states."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.workloads.common import stream_of

KEYS = ("a", "b", "c")


def opened(life: Life) -> Any:
    """Return the table; create it before, whoever else does."""
    stream_of(life)
    manager = life.manager()
    if life.table not in life.made:
        made = life.package.KeyValueTableConfiguration(partitions=life.segments, key_type="string")
        life.until_it_works(lambda: manager.create_key_value_table(life.table, made))
        life.made.add(life.table)
    return life.until_it_works(lambda: manager.key_value_table(life.table))


def _version(version: Any) -> Any:
    return [version.segment_id, version.offset]


def put(life: Life, table: Any, key: str, value: str) -> None:
    """Set an entry, whatever it was, as a call of the history."""
    life.call(
        "update",
        lambda: table.put(key, value).result(),
        told=lambda version: [_version(version)],
        table=life.table,
        changes=[{"key": key, "value": value}],
    )


def put_if(life: Life, table: Any, key: str, value: str, entry: Any) -> None:
    """Set an entry if it is still the one that is given, as a call of the history."""
    updates = life.module("key_value.updates")
    if entry is None:
        step, expected = updates.TableInsert(key, value), "absent"
    else:
        step, expected = updates.TablePut(key, value, entry.version), _version(entry.version)
    life.call(
        "update",
        partial(table.update, [step]),
        told=lambda versions: [_version(v) for v in versions],
        table=life.table,
        changes=[{"key": key, "value": value, "expected": expected}],
    )


def table_user(rounds: int) -> Body:
    """Return a program that changes entries, on the versions that it knows, and gets them."""

    def body(life: Life) -> None:
        table, draw, state = opened(life), life.source, life.state
        updates = life.module("key_value.updates")
        known: dict[str, Any] = {}
        kinds = ["update", "update", "get", "scan", "put"]
        if life.has_long_waits:  # then there are changes after a fold, too
            kinds += ["scan", "get"]
            rounds_left = rounds + 8
        else:
            rounds_left = rounds
        for _ in range(rounds_left):
            life.wait(draw.choice((0.0, 0.3, 2.0, 250.0 if life.has_long_waits else 0.3)))
            state["value"] = state.setdefault("value", 0) + 1
            kind = draw.choice(kinds)
            if kind == "get":
                keys, fresh = draw.sample(KEYS, 2), draw.random() < 0.6
                is_done, found = life.call(
                    "get",
                    partial(table.get_all, keys, fresh=fresh),
                    told=lambda found: [
                        None if e is None else [e.value.decode(), _version(e.version)]
                        for e in found
                    ],
                    table=life.table,
                    keys=keys,
                    fresh=fresh,
                )
                if is_done:
                    known.update(zip(keys, found, strict=True))
            elif kind == "scan":
                life.call(
                    "scan",
                    lambda: list(table.entries()),
                    told=lambda found: {
                        e.key: [e.value.decode(), _version(e.version)] for e in found
                    },
                    table=life.table,
                )
            elif kind == "put":
                put(life, table, draw.choice(KEYS), f"{life.name}:{state['value']}")
            else:
                changes: list[dict[str, Any]] = []
                steps = []
                for key in draw.sample(KEYS, draw.choice((1, 2))):
                    value = f"{life.name}:{state['value']}"
                    entry = known.get(key)
                    if entry is None:
                        changes.append({"key": key, "value": value, "expected": "absent"})
                        steps.append(updates.TableInsert(key, value))
                    elif draw.random() < 0.25:
                        changes.append(
                            {"key": key, "value": None, "expected": _version(entry.version)}
                        )
                        steps.append(updates.TableRemove(key, entry.version))
                    else:
                        changes.append(
                            {"key": key, "value": value, "expected": _version(entry.version)}
                        )
                        steps.append(updates.TablePut(key, value, entry.version))
                is_done, _ = life.call(
                    "update",
                    partial(table.update, steps),
                    told=lambda versions: [_version(v) for v in versions],
                    table=life.table,
                    changes=changes,
                )
                if not is_done and draw.random() < 0.7:  # as others have changed them
                    keys = list(KEYS)
                    found = life.until_it_works(partial(table.get_all, keys, fresh=True))
                    known = dict(zip(keys, found, strict=True))
        life.until_it_works(table.close)

    return body


def folder(rounds: int) -> Body:
    """Return a program that folds the table's changes once they are old, and sweeps the log."""

    def body(life: Life) -> None:
        opened(life)
        manager = life.manager()
        for _ in range(rounds):
            life.wait(life.source.choice((200.0, 650.0)))
            if life.source.random() < 0.3:  # then another fold may come first
                life.pause_soon()
            life.call(
                "maintain",
                lambda: manager.maintain(kinds=("folding", "retention", "sweeping"), full=True),
                root="",
            )

    return body


def state_user(rounds: int) -> Body:
    """Return a program that adds to a list that all share."""

    def body(life: Life) -> None:
        one = life.package.ScalingPolicy.fixed(1)
        stream, draw, state = (
            stream_of(life, life.shared_state, scaling=one),
            life.source,
            life.state,
        )
        shared = life.until_it_works(lambda: stream.state_synchronizer(lambda s, u: [*s, u]))
        life.until_it_works(lambda: shared.initialize([]))
        for _ in range(rounds):
            life.wait(draw.choice((0.0, 0.3, 2.0)))
            if draw.random() < 0.3:

                def fetch() -> Any:
                    shared.fetch_updates()
                    return shared.get_state()

                life.call("fetch_updates", fetch, told=list, state=life.shared_state)
                continue
            if draw.random() < 0.2:
                life.until_it_works(shared.compact)
                continue
            state["update"] = state.setdefault("update", 0) + 1
            update = f"{life.author}-{state['update']}"

            def generator(known: Any, updates: list[Any], update: str = update) -> Any:
                updates.append(update)
                return list(known)

            life.call(
                "update_state",
                partial(shared.update_state, generator),
                told=list,
                state=life.shared_state,
                update=update,
            )

    return body
