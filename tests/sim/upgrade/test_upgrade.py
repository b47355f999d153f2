"""An upgrade under load, and the way back: histories of both releases pass the same checkers."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness.s3_server import S3Server
from tests.harness.tiers import only_long, sized
from tests.sim import porcupine_runs
from tests.sim.checkers import everything
from tests.sim.checkers.violations import Violation
from tests.sim.history import joined
from tests.sim.recorded import Recorded, calls_of
from tests.sim.upgrade.fleet import NEW, OLD, Fleet
from tests.sim.upgrade.working import LARGE, OTHER, SECRET, STREAM, TYPED

pytestmark = pytest.mark.extended

RUNS = sized(1, 20, "UPGRADES")
FIRST = sized(0, 0, "FIRST_UPGRADE")
PLACES = sized(2, 3)
BY_EACH = {
    *("write", "open_writer", "write_if", "fence", "commit", "abort", "update", "get", "scan"),
    *("update_state", "fetch_updates", "read", "join", "next", "leave", "scale", "truncate"),
    *("subscribe", "release", "retain", "compact", "sweep", "maintain", "note_time", "watermark"),
}
"""Processes of either release did this, and it worked."""
WRITTEN = {STREAM, OTHER, TYPED, SECRET, LARGE}
"""So did each to these streams."""
ALSO = {"create", "create_group", "checkpoint", "expire", "forget", "layout"}
EXPECTED = {
    *("BadKeyVersion", "NoSuchKey", "ConditionFailed", "FencingTokenMismatch"),
    *("CheckpointFailed", "TooManyCheckpoints", "TruncatedData", "SegmentTruncated"),
    *("ReinitializationRequired", "ScaleConflict", "HeldBySubscriber", "TxnFailed"),
    *("InvalidStreamCut", "StagedTooLate"),
}
"""Errors by which a process learns what others did. Any other is one release not understanding."""


@pytest.mark.long
def test_a_fleet_is_upgraded_and_taken_back_while_it_works(tmp_path: Path) -> None:
    for seed in range(FIRST, FIRST + RUNS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        _judged(str(folder / "root"), folder / "history", seed, PLACES)


@only_long("the local disk has the same formats, and tests/contract each kind of storage")
@pytest.mark.long
def test_a_fleet_is_upgraded_on_an_object_store(tmp_path: Path, s3: S3Server) -> None:
    reached = {**s3.environment, "AWS_ENDPOINT_URL": s3.endpoint_url}
    for seed in range(FIRST, FIRST + max(1, RUNS // 10)):
        root = f"s3://{s3.bucket}/{uuid.uuid4().hex}"
        _judged(root, tmp_path / str(seed), seed, 2, **reached)


def _judged(root: str, path: Path, seed: int, places: int, **reached: str) -> None:
    """Let a fleet be upgraded; its history breaks no promise, and both releases did everything."""
    _rolled(root, path, seed, places, **reached)
    text = joined(path, seed=seed)
    kept = path.with_suffix(".jsonl")
    kept.write_text(text)
    try:
        everything.check(text)
    except Violation as violation:
        where = f"FIRST_UPGRADE={seed}, its history {kept}: {violation}"
        raise Violation(violation.promise, where) from violation
    refused, _ = porcupine_runs.judged_texts({f"upgrade {seed}": text}, "-limit", "10m")
    assert refused == []
    calls = calls_of(text)
    assert [str(call) for call in calls if call.error not in {None, *EXPECTED}] == []
    done = _done(calls)
    missing = {(who, name) for who in ("old", "new") for name in BY_EACH if not done[who, name]}
    missing |= {("any", name) for name in ALSO if not done["old", name] + done["new", name]}
    written = {
        (c.process[:3], c.arguments["stream"]) for c in calls if c.operation == "write" and c.ok
    }
    missing |= {(who, name) for who in ("old", "new") for name in WRITTEN} - written
    assert missing == set()


def _done(calls: Sequence[Recorded]) -> Counter[tuple[str, str]]:
    return Counter((call.process[:3], call.operation) for call in calls if call.ok)


def _rolled(root: str, path: Path, seed: int, places: int, **reached: str) -> None:
    """Upgrade one place after the other, take all back, and upgrade one again.

    The first one is killed, so that its readers are in the group when it is; others as drawn.
    """
    dice = random.Random(seed)
    first = (OLD, NEW)[seed % 2]
    with Fleet(root, path, seed, places, first, **reached) as fleet:
        fleet.work()
        kill_after: int | None = dice.randint(1, 80)
        for release, replaced in ((NEW, range(places)), (OLD, range(places)), (NEW, (0,))):
            for place in replaced:
                fleet.replace(place, release, kill_after=kill_after)
                kill_after = dice.choice((None, dice.randint(1, 80)))
        fleet.work()
        fleet.stop()
        fleet.audit()
