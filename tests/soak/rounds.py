"""Rounds: a scope of its own, a history of its own, and the programs that each process plays."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.sim.lives import Body, Life
from tests.sim.workloads import (
    appends,
    autoscaling,
    backups,
    byte_streams,
    event_times,
    groups,
    layouts,
    retention,
    sealing,
    tables,
    transactions,
)
from tests.sim.workloads.mix import auditor
from tests.soak import kinds, spark_programs

SCOPES = 4
"""Scopes that rounds use in turn, each in a new life: a root stays as small as it can be."""


@dataclass(frozen=True)
class Round:
    """What all processes are told when a round begins."""

    number: int
    phase: str
    """``play``, then ``audit`` and ``clear``, which one process does alone."""
    folder: str
    seed: int
    size: int
    """How much each program does: 10 is a round of about half a minute."""

    @property
    def scope(self) -> str:
        return f"r{self.number % SCOPES}"

    @property
    def recorded(self) -> Path:
        """The file into which all processes record."""
        return Path(self.folder, f"round-{self.number}.recorded")

    @property
    def history(self) -> Path:
        """The history, once the round has ended."""
        return Path(self.folder, f"round-{self.number}.jsonl")

    def state(self, author: str) -> Path:
        """Where a program keeps what its next life knows."""
        return Path(self.folder, f"round-{self.number}-{self.phase}-{author}.state")

    def kept(self, author: str) -> Path:
        """The folder of a program in this round."""
        return Path(self.folder, f"round-{self.number}-{self.phase}-{author}.kept")

    def done(self, process: str) -> Path:
        """The file that a process makes when its programs have ended."""
        return Path(self.folder, f"round-{self.number}-{self.phase}-{process}.done")

    def line(self) -> str:
        return json.dumps(asdict(self))


def working(folder: Path, process: str, life: int) -> Path:
    """Return the file that a process makes once a call of its life has succeeded."""
    return folder / f"{process}.{life}.works"


Programs = Mapping[str, Callable[[int], Body]]
"""By the program's name: its body, of a size."""


def _group(kind: str, body: Callable[[], Body]) -> Body:
    """A body whose group is the one of its kind of acknowledgement."""

    def play(life: Life) -> None:
        life.group_name = f"g-{kind}"
        body()(life)

    return play


def _members(acknowledge: str) -> Callable[[int], Body]:
    return lambda size: _group(acknowledge, partial(groups.member, acknowledge, seconds=2.0 * size))


def _checkpoints(acknowledge: str) -> Callable[[int], Body]:
    return lambda size: _group(acknowledge, partial(groups.checkpointer, size // 2))


def _users(kind: kinds.Kind, share: float = 2.0) -> Callable[[int], Body]:
    return lambda size: kinds.user(kind, max(2, int(share * size)))


SPARK = "spark"
CAST: Mapping[str, Programs] = {
    "writers": {
        "n1": lambda size: appends.nameless_writer(2 * size),
        "n2": lambda size: appends.nameless_writer(2 * size),
        "c1": lambda size: appends.conditional_writer(3 * size),
        "w1": lambda size: appends.named_writer("shared-id", 5 * size),
        "l1": _users(kinds.LARGE, 0.5),
        "i1": _users(kinds.SECRET),
        "v1": lambda size: sealing.late_writer(2 * size),
    },
    "transactions": {
        "t1": lambda size: transactions.transactional_writer(2 * size, None),
        "t2": lambda size: transactions.transactional_writer(2 * size, "transactions-id"),
        "j1": lambda size: transactions.joint_writer(2 * size),
        "w2": lambda size: appends.named_writer("shared-id", 5 * size),
        "f1": lambda size: appends.fencing_writer("x", size),
        "o1": _users(kinds.ROWS),
        "v2": lambda size: sealing.late_writer(2 * size),
    },
    "tables": {
        "k1": lambda size: tables.table_user(5 * size),
        "z1": lambda size: tables.state_user(3 * size),
        "e1": lambda size: event_times.note_taker(3 * size),
        "b1": lambda size: byte_streams.byte_user(10 * size, is_named=True),
        "b2": byte_streams.byte_reader,
        "i2": _users(kinds.SECRET),
    },
    "readers": {
        "g1": _members("next"),
        "g2": _members("checkpoint"),
        "g3": _members("transaction"),
        "p1": _checkpoints("checkpoint"),
        "k2": lambda size: tables.table_user(5 * size),
        "l2": _users(kinds.LARGE, 0.5),
        "b3": lambda size: backups.archivist(max(1, size // 5)),
        "a2": lambda size: autoscaling.loader(max(2, size // 2)),
    },
    "members": {
        "h1": _members("next"),
        "h2": _members("checkpoint"),
        "h3": _members("transaction"),
        "p2": _checkpoints("next"),
        "z2": lambda size: tables.state_user(3 * size),
        "e2": lambda size: event_times.note_taker(3 * size),
        "o2": _users(kinds.ROWS),
    },
    "upkeep": {
        "s1": layouts.scaler,
        "x1": lambda size: layouts.truncator(size // 2),
        "m1": layouts.upkeep,
        "q1": retention.subscriber,
        "y1": retention.retainer,
        "r1": appends.reader,
        "d1": lambda size: sealing.sealer(1.0),
        "u1": lambda size: sealing.recreator(max(1, size // 3)),
        "f2": tables.folder,
        "a1": lambda size: backups.archivist(max(1, size // 5)),
    },
    SPARK: {"q2": lambda size: spark_programs.query(max(2, size // 2))},
}
"""By the process: its programs, each a thread."""
WITHOUT_SPARK = tuple(name for name in CAST if name != SPARK)
AUDITOR = "upkeep"
"""The process that audits and clears; it is never killed."""
STEADY = ("upkeep", "members")
"""Processes that live as long as the run: theirs are the memory, descriptors and threads that must
not grow."""


def bodies(process: str, round: Round) -> dict[str, Body]:
    """Return what a process plays in a phase, by the program's name."""
    if round.phase == "audit":
        return {"audit": audit}
    if round.phase == "clear":
        return {"clear": clear}
    return {name: make(round.size) for name, make in CAST[process].items()}


def audit(life: Life) -> None:
    """Read all that the round left."""
    manager = life.manager()
    life.made |= set(life.until_it_works(lambda: manager.list_streams(life.scope)))
    life.call("settle", partial(_settle, life))
    auditor(life)
    for kind in kinds.KINDS:
        while not kind.read(life):
            life.wait(1.0)


def _settle(life: Life) -> None:
    result = life.manager().maintain(kinds=["transactions"], scopes=[life.scope], full=True)
    if result.failures:
        raise life.errors.StoreError(str(result.failures))


def clear(life: Life) -> None:
    """Delete the round's scope, and do the root's maintenance.

    Before, abort what a coordinator that was killed has prepared: nobody else may decide that.
    """
    manager = life.manager()
    for name in life.until_it_works(lambda: manager.list_streams(life.scope)):
        stream = manager.stream(name)
        for one in life.until_it_works(stream.transactions):
            if one.status is life.package.TransactionStatus.PREPARED:
                life.until_it_works(stream.transaction(one.transaction_id).abort)
    life.until_it_works(lambda: manager.delete_scope(life.scope, recursive=True))
    life.until_it_works(lambda: manager.maintain(full=True))
