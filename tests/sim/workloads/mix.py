"""Some of all programs at once, as the seed draws them; the auditor has the last word."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial

from tests.sim.lives import Body, Life
from tests.sim.programs import Program
from tests.sim.workloads import (
    appends,
    autoscaling,
    backups,
    byte_streams,
    crowd,
    ends,
    event_times,
    folds,
    groups,
    late_commits,
    layouts,
    overtaken,
    quiet,
    resets,
    retention,
    sealing,
    tables,
    taken_over,
    transactions,
    unacknowledged,
)
from tests.sim.workloads.common import read_all, record_layout, record_segments
from tests.sim.world import AUDITOR, World

Maker = Callable[[], Body]
_COMPANY = {
    "w": "w", "q": "yn", "y": "qn", "g": "gny", "p": "g", "s": "nr", "m": "mnx", "l": "kk",
    "k": "k", "b": "b", "d": "oo", "o": "do", "e": "e", "f": "f", "c": "ccn", "z": "z", "a": "nmk",
    "t": "sm", "j": "jrm", "h": "ia", "i": "h", "B": "ax",
}  # fmt: skip
"""What a program is drawn with: those that compete with it, and those that see what it does."""
_TOGETHER = (
    *("ggpns", "ggpsn", "gggps", "ggpny", "ggny", "ggpn"),
    *("qqyn", "qqqyn", "jjr", "jjj", "jjt", "kkl", "kll", "kkll"),
    *("mmnns", "mmws", "hi", "hhi", "hhii", "atm", "nnrs", "wwns"),
)
"""Situations that are rare where each program is drawn by itself: two that do the same at once, and
all that one promise needs."""
_SCENES_APART = 15
"""Of so many seeds some play a scene each."""
_ENDS_AT, _CROWD_AT, _TAKEN_OVER_AT = 1, 4, 7
"""The remainders of the seeds whose scene has a group of its own kind."""
_MOST_LOST = 0.05
"""The most answers that are lost where readers do not wait long for one."""


def _catalog(draw: random.Random, acknowledge: str) -> dict[str, Maker]:
    """Return what makes each program, by its letter; a program is drawn when it is made."""
    return {
        "n": lambda: appends.nameless_writer(draw.randint(2, 6)),
        "w": lambda: appends.named_writer("id", draw.randint(4, 10)),
        "c": lambda: appends.conditional_writer(draw.randint(3, 6)),
        "B": lambda: appends.large_writer(draw.randint(1, 3)),
        "f": lambda: appends.fencing_writer(draw.choice("xy"), 3),
        "r": lambda: appends.reader(draw.randint(1, 4)),
        "s": lambda: layouts.scaler(draw.randint(1, 4)),
        "x": lambda: layouts.truncator(draw.randint(1, 3)),
        "m": lambda: layouts.upkeep(draw.randint(1, 4)),
        "q": lambda: retention.subscriber(draw.randint(3, 5)),
        "y": lambda: retention.retainer(draw.randint(2, 4)),
        "t": lambda: transactions.transactional_writer(4, draw.choice((None, "tid"))),
        "j": lambda: transactions.joint_writer(3),
        "g": lambda: groups.member(acknowledge, draw.choice((30.0, 90.0))),
        "p": lambda: groups.checkpointer(3),
        "k": lambda: tables.table_user(draw.randint(6, 12)),
        "z": lambda: tables.state_user(draw.randint(4, 8)),
        "l": lambda: tables.folder(draw.randint(1, 3)),
        "b": lambda: byte_streams.byte_user(draw.randint(4, 10), is_named=draw.random() < 0.5),
        "d": lambda: sealing.sealer(6.0),
        "o": lambda: sealing.late_writer(draw.randint(4, 8)),
        "u": lambda: sealing.recreator(draw.randint(1, 2)),
        "e": lambda: event_times.note_taker(draw.randint(3, 8)),
        "v": lambda: autoscaling.loader(draw.randint(3, 8)),
        "a": lambda: backups.archivist(draw.randint(1, 2)),
        "h": lambda: quiet.housekeeper(draw.randint(2, 4)),
        "i": lambda: quiet.stalled_writer(draw.randint(2, 4)),
    }


def _two(scene: overtaken.Scene) -> tuple[Maker, Maker]:
    return partial(overtaken.slow_one, scene), partial(overtaken.fast_one, scene)


_SCENES: Mapping[int, tuple[tuple[Maker, ...], ...]] = {
    _TAKEN_OVER_AT: tuple(cast.programs for cast in taken_over.CASTS),
    9: (
        *map(_two, resets.SCENES),
        (lambda: unacknowledged.buffering_reader, lambda: unacknowledged.asker),
        (lambda: folds.follower,),
        (lambda: folds.first_folder, lambda: folds.second_folder, lambda: folds.conductor),
    ),
    12: (*map(_two, late_commits.SCENES),),
    14: (*map(_two, overtaken.SCENES),),
}
"""The programs of each scene, by the remainder of the seeds that play it."""


def _scene(seed: int) -> dict[str, Maker]:
    """Return what makes the programs of a seed's scene, by their letters."""
    number, at = divmod(seed, _SCENES_APART)
    scenes = _SCENES.get(at, _SCENES[14])
    return dict(zip("123", scenes[number % len(scenes)], strict=False))


def letters(seed: int) -> frozenset[str]:
    """Return the letters of all programs that a seed can play."""
    return frozenset(
        {*_catalog(random.Random(0), "next"), *_scene(seed), *crowd.SCENE, *ends.SCENE}
    )


def play(world: World) -> None:
    """Draw up to ten programs, let them meet faults, and audit what is there."""
    draw = world.source
    acknowledge = draw.choice(("next", "next", "checkpoint", "checkpoint", "transaction"))
    number, at = divmod(world.plan.seed, _SCENES_APART)
    if at == _CROWD_AT:
        acknowledge = ("next", "checkpoint")[number % 2]
    elif at == _TAKEN_OVER_AT:
        acknowledge = taken_over.CASTS[number % len(taken_over.CASTS)].acknowledge
    if at in (_CROWD_AT, _TAKEN_OVER_AT):  # who waits a second for each answer reads whole logs
        weather = world.bucket.weather
        weather.lose_answer = min(weather.lose_answer, _MOST_LOST)
    catalog = _catalog(draw, acknowledge)
    hosts = [world.host() for _ in range(2)]
    if at in _SCENES:
        names = list(_scene(world.plan.seed))
    elif at == _CROWD_AT:
        names = list(crowd.SCENE)
    elif at == _ENDS_AT:
        names = list(ends.SCENE)
    elif draw.random() < 0.6:
        names = [*draw.choice(_TOGETHER), *draw.choices(list(catalog), k=draw.randint(0, 1))]
    else:
        first = draw.choice(("n", "w", "t", "k"))
        names = [first, *draw.choices(list(catalog), k=draw.randint(1, 3))]
        for name, others in _COMPANY.items():
            if name in names:
                names += others
    names = list(world.plan.programs or names)
    catalog |= _scene(world.plan.seed)
    catalog |= {**crowd.programs(acknowledge), **ends.programs(acknowledge)}
    world.has_long_waits = "l" in names
    for number, name in enumerate(names):
        host, body = draw.choice(hosts), catalog[name]()
        if world.has(f"program {name}{number}"):
            Program(world, f"{name}{number}", host, body)
    world.trouble(seconds=40.0)
    world.run()
    world.calm()
    Program(world, AUDITOR, world.host(), partial(last_word, acknowledge))
    world.run()


def last_word(acknowledge: str, life: Life) -> None:
    """Carry out what is decided, drain the group, and read all, when all is calm."""
    life.wait(100.0)
    if life.source.random() < 0.5:  # then nothing carries it out but what appends
        life.until_it_works(lambda: life.manager().update_settings(maintain="off"))
    for name in (life.stream, life.other):
        if name in life.made:
            settle(life, name)
    if life.group in life.made:
        groups.drain(life, acknowledge)
    auditor(life)


def auditor(life: Life) -> None:
    """Read all streams, and ask for the watermark."""
    for name in (life.stream, life.other, life.sealed, life.loaded, life.quiet, life.timed):
        if name in life.made:
            while not read_all(life, name):
                life.wait(1.0)
            life.until_it_works(partial(record_layout, life, name))
            record_segments(life, name)
    if life.bytes in life.made:
        while not byte_streams.read_bytes(life):
            life.wait(1.0)
    if life.timed in life.made:
        event_times.ask_watermark(life)


def settle(life: Life, name: str) -> None:
    """Append, as somebody does who knows nothing of decisions: they are carried out by that."""
    call = life.begin("settle", stream=name)
    writer = life.until_it_works(life.manager().stream(name).create_writer)
    appends.write_one(life, writer, f"{life.name}-{name}", name)
    life.wait(130.0)
    life.until_it_works(writer.close)
    call.ok()
    read_all(life, name)  # before another transaction finds what the appends did not
    transactions.decide_and_wait(life, name)
