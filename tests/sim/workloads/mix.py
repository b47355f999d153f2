"""Some of all programs at once, as the seed draws them; the auditor has the last word."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.sim.lives import Body, Life
from tests.sim.programs import Program
from tests.sim.workloads import appends, groups, layouts, retention, tables, transactions
from tests.sim.workloads.common import read_all, record_layout
from tests.sim.world import World

Maker = Callable[[], Body]


def play(world: World) -> None:
    """Draw three to five programs, let them meet faults, and audit what is there."""
    draw = world.source
    acknowledge = draw.choice(("next", "next", "checkpoint", "transaction"))
    catalog: dict[str, Maker] = {
        "n": lambda: appends.nameless_writer(draw.randint(2, 6)),
        "w": lambda: appends.named_writer("id", draw.randint(4, 10)),
        "c": lambda: appends.conditional_writer(draw.randint(3, 6)),
        "f": lambda: appends.fencing_writer(draw.choice("xy"), 3),
        "r": lambda: appends.reader(draw.randint(1, 4)),
        "s": lambda: layouts.scaler(draw.randint(1, 4)),
        "x": lambda: layouts.truncator(draw.randint(1, 3)),
        "m": lambda: layouts.upkeep(draw.randint(1, 4)),
        "q": lambda: retention.subscriber(draw.randint(2, 4)),
        "y": lambda: retention.retainer(draw.randint(2, 4)),
        "t": lambda: transactions.transactional_writer(4, draw.choice((None, "tid"))),
        "j": lambda: transactions.joint_writer(3),
        "g": lambda: groups.member("g", acknowledge, draw.choice((30.0, 90.0))),
        "p": lambda: groups.checkpointer(3),
        "k": lambda: tables.table_user(draw.randint(6, 12)),
        "z": lambda: tables.state_user(draw.randint(4, 8)),
    }
    hosts = [world.host() for _ in range(2)]
    first = draw.choice(("n", "w", "t", "k"))
    names = [first, *draw.choices(list(catalog), k=draw.randint(2, 4))]
    if "w" in names and draw.random() < 0.5:
        names.append("w")
    if "q" in names or "y" in names:
        names += ["q", "y", "n"]
    if "g" in names:
        names += ["g", "n"]
    for number, name in enumerate(names):
        host, body = draw.choice(hosts), catalog[name]()
        if world.has(f"program {name}{number}"):
            Program(world, f"{name}{number}", host, body)
    world.trouble(seconds=40.0)
    world.run()
    world.calm()
    Program(world, "audit", world.host(), auditor)
    world.run()


def auditor(life: Life) -> None:
    """Read all when all is calm."""
    life.wait(100.0)
    for name in (life.stream, life.other):
        if name in life.made:
            while not read_all(life, name):
                life.wait(1.0)
            life.until_it_works(partial(record_layout, life, name))
