"""What seeds have to reach: each failpoint, fault and verb, each outcome that a verb has, and each
two verbs in flight on one object that programs share.

A zero in a long run says that something is not tried any more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import combinations_with_replacement
from pathlib import Path

from tests.sim.copies import _code, all_names
from tests.sim.in_flight import pair

FAULTS = (
    "kill", "kill at failpoints", "kill at calls", "stop", "pause", "cut off", "jump",
    "stand still", "full", "read only", "lose_request", "lose_answer", "late", "busy", "resent",
    "unheard", "held back",
)  # fmt: skip
OUTCOMES: Mapping[str, tuple[str, ...]] = {
    "write": ("ok", "StreamSealed", "WriterFenced", "FencingTokenMismatch", "CommitUnknown"),
    "write_if": ("ok", "ConditionFailed"),
    "commit": ("ok", "CommitUnknown"),
    "update": ("ok", "BadKeyVersion", "CommitUnknown"),
    "next": ("ok", "ReinitializationRequired"),
    "scale": ("ok", "InvalidConfiguration"),
    **dict.fromkeys(
        (
            *("open_writer", "read", "layout", "truncate", "retain", "subscribe", "release"),
            *("unsubscribe", "stage", "abort", "join", "leave", "expire", "checkpoint", "reset"),
            *("drain", "get", "scan", "fence", "update_state", "fetch_updates", "note_time"),
            *("forget", "watermark", "update_watermark", "seal", "autoscale", "compact", "sweep"),
            *("maintain", "backup", "read_copy", "live_on", "write_bytes", "read_bytes"),
            *("truncate_bytes", "update_stream", "delete_stream", "sweep_scope"),
            *("update_settings", "update_group", "stream_cuts"),
            *("create_group", "cancel_checkpoints"),
            *("update_table", "delete_table", "restore"),
        ),
        ("ok",),
    ),
}
"""What each verb has to end with at least once."""


IN_SCENES = frozenset("123456789FGP")
"""The letters of programs that meet at one point by intent: which others they meet is not asked."""
LONG_RUN = 300
"""Seeds from which on nothing may be left out but what ``NOT_REACHED`` names."""
MOST_PLAYS = 40
"""How often a long run plays programs that may have a missing pair in flight."""
NOT_REACHED: Mapping[str, str] = {
    "failpoint dead_letters.next": "typed streams alone: tests/unit/test_dead_letter_writer.py",
    "failpoint group.query.finished": "queries of Spark alone: tests/spark/test_reader_groups.py",
    "failpoint sweep.archived": "many records: tests/unit/engine/stream/test_archived_records.py",
    "failpoint sweep.segment": "2,048 files: tests/unit/engine/log/test_sweep_record.py",
    "failpoint synchronizer.compact": "no verb: tests/unit/engine/state/test_synchronizer.py",
    "outcome commit CommitUnknown": "cleaned up: tests/unit/txn/test_transaction_decisions.py",
    "outcome update CommitUnknown": "cleaned up: tests/unit/key_value/test_conditional_updates.py",
}
"""What no seed reaches, and why: the test that does."""


def failpoints() -> set[str]:
    """Return the names of all failpoints in what a simulated process imports."""
    found: set[str] = set()
    for name in all_names():
        code = _code(name)
        assert code is not None
        found.update(re.findall(r'\bfailpoint\("([^"]+)"\)', Path(code[1]).read_text()))
    return found


def wanted() -> list[str]:
    """Return the names of all that a long run has to count."""
    names = [f"failpoint {name}" for name in failpoints()]
    names += [f"fault {name}" for name in FAULTS]
    for verb, outcomes in OUTCOMES.items():
        names += [f"outcome {verb} {outcome}" for outcome in outcomes]
    return sorted(names)


def missing(covered: Mapping[str, int]) -> list[str]:
    """Return what was never reached."""
    every = [*wanted(), *wanted_pairs(covered)]
    return [name for name in every if not covered.get(name)]


def programs_of(name: str, covered: Mapping[str, int]) -> str:
    """Return programs that may have a pair of verbs in flight: three for each of them, and one of
    those that use the object most, so that it is there. None for what is no pair."""
    kind, _, rest = name.partition(" ")
    of_object, _, verbs = rest.partition(": ")
    if kind != "pair":
        return ""
    letters = asked(covered)[of_object]
    most = sum(letters.values(), Counter()).most_common(1)[0][0]
    return most + "".join(3 * letters[verb].most_common(1)[0][0] for verb in verbs.split(" & "))


def wrong(covered: Mapping[str, int], seeds: int) -> list[str]:
    """Return what is wrong with what so many seeds covered: of a short run, nothing is."""
    if seeds < LONG_RUN:
        return []
    left_out = missing(covered)
    found = [f"{name} is never reached" for name in left_out if name not in NOT_REACHED]
    known = [name for name in NOT_REACHED if name not in left_out]
    return found + [f"{name} is reached, and coverage.NOT_REACHED says it is not" for name in known]


def asked(covered: Mapping[str, int]) -> dict[str, dict[str, Counter[str]]]:
    """Return for each shared object its verbs, and how often programs of each letter asked them."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for text, count in sorted(covered.items()):
        kind, _, rest = text.partition(" ")
        name, _, call = rest.partition(": ")
        if kind == "asked" and covered.get(f"shared {name}"):
            verb, _, letter = call.partition(" by ")
            if letter in IN_SCENES:
                continue
            found.setdefault(name, {}).setdefault(verb, Counter())[letter] += count
    return found


def wanted_pairs(covered: Mapping[str, int]) -> list[str]:
    """Return each two verbs of an object that programs share; both may be the same verb.

    Only verbs that took their time count: others are in flight for no step.
    """
    return [
        pair(name, one, other)
        for name, verbs in asked(covered).items()
        for one, other in combinations_with_replacement(verbs, 2)
    ]
