"""What a new process finds on a disk after a power cut, as the rest of the history before it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

from pravega_spark import StreamManager
from pravega_spark.errors import NotFound, PravegaSparkError
from tests.sim.checkers import everything
from tests.sim.checkers.violations import Violation
from tests.sim.history import SharedHistory, joined
from tests.sim.power.disks import Record
from tests.sim.power.workload import (
    GROUP,
    KEYS,
    OTHER,
    STREAM,
    STREAMS,
    TABLE,
    Work,
    ask_next,
    created,
    good,
    read,
)
from tests.sim.recorded import calls_of, of
from tests.sim.recording import Processes

_DISKS = count()
"""A path is that of one disk: a process knows what a root had."""


def checked(record: Record, kind: str, seed: int, folder: Path) -> int:
    """Draw a cut and a disk, write it below ``folder``, go on on it, and check the whole history.

    Returns how many calls were acknowledged before the cut. Raises a Violation if a promise is
    broken, or if the root cannot be used any more.
    """
    source = random.Random(f"{kind} {seed}")
    line = record.cut(source)
    folder /= str(next(_DISKS))
    root, path = folder / "root", folder / "history"
    folder.mkdir(parents=True)
    try:
        record.write_disk(kind, line, source, root)
        before = record.history(line)
        path.write_bytes(before)
        try:
            with StreamManager(str(root)) as manager:
                process = Processes(manager, SharedHistory(path), "after")
                _exists(path, process)
                go_on(process, seed, joined(path))
        except PravegaSparkError as error:
            raise Violation(
                "a root can be used after a power cut", f"{type(error).__name__}: {error}"
            ) from error
        everything.check(joined(path, kind=kind, seed=seed, line=line))
        _nothing_raised(path)
        return before.count(b'"type":"ok"')
    except Violation as violation:
        where = f"{kind}, disk {seed}, cut at line {line} of the record: {violation}"
        raise Violation(violation.promise, where) from violation
    finally:
        shutil.rmtree(folder)


def _exists(path: Path, process: Processes) -> None:
    """What was created and acknowledged is there."""
    for call in of(calls_of(joined(path)), "create"):
        if call.ok:
            try:
                if "stream" in call.arguments:
                    process.manager.stream_info(call.arguments["stream"])
                elif "group" in call.arguments:
                    process.manager.reader_group(call.arguments["group"])
            except NotFound as error:
                raise Violation("acknowledged is there", f"{call}: {error}") from error


def go_on(process: Processes, seed: int, before: str) -> None:
    """Read all, settle what was decided, write again, and read all again.

    ``before`` is the history up to now.
    """
    created(process)
    for name in STREAMS:
        read(process, name)
    process.get(process.manager.key_value_table(TABLE), TABLE, KEYS)
    _expire(process)
    with Work(process, seed) as work:
        _writes(process, work)
        _drain(process, work, before)
    for name in STREAMS:
        read(process, name)


def _expire(process: Processes) -> None:
    """Say of the readers that the power cut ended that they are gone."""
    group = process.manager.reader_group(GROUP)
    for reader in group.online_readers():
        process.ask("expire", partial(group.reader_offline, reader), group=GROUP, reader=reader)


def _drain(process: Processes, work: Work, before: str) -> None:
    """Read all that no reader of the group was handed."""
    call = process.history.invoke(process.process, "drain", group=GROUP, reader=process.process)
    handed = {next.value["event"] for next in of(calls_of(before), "next") if next.value}
    due, tries = {event for *_, event in good(process.read(STREAM))["events"]} - handed, 0
    while due:
        due.discard(ask_next(process, work.reader, process.process, 0.1))
        tries += 1
        if tries > 600:
            raise Violation("each event is read at least once", f"{sorted(due)[:3]} does not come")
    call.ok()


def _writes(process: Processes, work: Work) -> None:
    for verb in range(2):
        process.write(work.named, "id-after", STREAM, [work.event(KEYS[verb])])
    process.commit(
        work.joint, "joint-after", {STREAM: [work.event("k0")], OTHER: [work.event("k1")]}
    )
    work.write_large("k0")
    work.write_bytes()
    process.update(work.table, TABLE, {"k0": "after"})
    process.get(work.table, TABLE, KEYS)


def _nothing_raised(path: Path) -> None:
    """Nothing that the new process asked for failed: nobody else was there."""
    for call in calls_of(joined(path)):
        if call.process == "after" and not call.ok:
            raise Violation("a root can be used after a power cut", str(call))


def first_refused(
    record: Record, kinds: Sequence[str], seeds: Sequence[int], folder: Path
) -> str | None:
    """Return what the first disk breaks that breaks a promise; None if none does."""
    for seed in seeds:
        for kind in kinds:
            try:
                checked(record, kind, seed, folder)
            except Violation as violation:
                return str(violation)
    return None
