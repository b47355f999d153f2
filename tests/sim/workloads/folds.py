"""The change log of a table, of which retention may take what a fold has committed, and no more."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.sim.lives import Life
from tests.sim.workloads import tables

_ROUNDS = 3


def _put(life: Life, table: Any, key: str) -> None:
    life.state["value"] = life.state.get("value", 0) + 1
    tables.put(life, table, key, f"{life.author}:{life.state['value']}")


def _get_all(life: Life, table: Any) -> None:
    """Get all keys as they are now; the first time in a process that is what the storage has."""

    def told(found: Any) -> Any:
        return [e and [e.value.decode(), tables._version(e.version)] for e in found]

    keys = list(tables.KEYS)
    get = partial(table.get_all, keys, fresh=True)
    life.call("get", get, told=told, table=life.table, keys=keys, fresh=True)


def _retain(life: Life) -> None:
    maintain = partial(life.manager().maintain, kinds=("retention",), full=True)
    life.call("maintain", maintain, root="")


def follower(life: Life) -> None:
    """Have a group read the change log to its end, and run the retention; die, and look again."""
    table = tables.opened(life)
    _get_all(life, table)
    life.state["round"] = life.state.get("round", 0) + 1
    if life.state["round"] > _ROUNDS:
        return
    for key in tables.KEYS[: life.source.randint(1, 3)]:
        _put(life, table, key)
    manager, name, log = life.manager(), f"{life.scope}/copying", table.changelog.name
    create = partial(manager.create_reader_group, name, [log], retention="automatic")
    life.until_it_works(create)
    _read_to_the_end(life, life.until_it_works(lambda: manager.reader_group(name)))
    _retain(life)
    life.strike_soon(0.0)
    life.wait(1.0)
    follower(life)


def _read_to_the_end(life: Life, group: Any) -> None:
    """Read all that there is, and leave, which releases it. The group is no part of the history:
    what it reads is no text."""
    join = partial(group.create_reader, life.name, lease=life.lease)
    reader = life.until_it_works(join, "IllegalState")
    if isinstance(reader, Exception):
        return
    found = life.until_it_works(partial(reader.read_next_event, timeout=1.0))
    while found.event is not None or found.checkpoint is not None:
        read = partial(reader.read_next_event, timeout=1.0)
        found = life.until_it_works(read, "ReinitializationRequired")
        if isinstance(found, Exception):
            return
    life.until_it_works(reader.close)


def _fold(life: Life) -> None:
    """Fold, as two rounds of maintenance do at once after the claim of one has ended."""
    key_value = partial(life.module("key_value.lifecycle").TableLifecycle, life.manager()._root)

    def fold() -> None:
        log, view = key_value(life.table).existing()
        configuration = life.module("key_value.shared_table").table_configuration(view)
        folded = life.module("key_value.folded_table").folded_table(log, configuration)
        life.module("key_value.fold").fold(log, folded, life=view.life)

    life.call("maintain", fold, root="")


def first_folder(life: Life) -> None:
    """Fold, and stop with what was read; the other folder reads more meanwhile."""
    table = tables.opened(life)
    while life.state.setdefault("round", 0) < _ROUNDS:
        life.state["round"] += 1
        _put(life, table, "a")
        life.stop_at("fold.read")
        _fold(life)
        life.wait(20.0)


def second_folder(life: Life) -> None:
    """Fold what the first one has not read, and stop until that one has committed."""
    table = tables.opened(life)
    for _ in range(_ROUNDS):
        if life.meanwhile("fold.read"):
            _put(life, table, "b")
            life.stop_at("fold.written")
            _fold(life)
            life.wait(10.0)


def conductor(life: Life) -> None:
    """Let the first folder commit and then the second one; run the retention, and look anew."""
    while life.state.setdefault("round", 0) < _ROUNDS:
        life.state["round"] += 1
        if life.meanwhile("fold.written"):
            life.go_on("fold.read")
            life.wait(15.0)
            life.go_on("fold.written")
            life.wait(5.0)
            _retain(life)
        _get_all(life, tables.opened(life))
        life.strike_soon(0.0)
        life.wait(1.0)
