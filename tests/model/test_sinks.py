"""Queries that write, over restarts at which one thing changed, against the rows of their source.

A sequence of steps runs queries on checkpoints through the data source's own calls. Runs stop
anywhere; between them the sink, its options, the checkpoint or the target changes. What must hold:

- A batch that succeeds leaves every row of its query's batches in a stream, and none twice in one.
- A query's batch that succeeds is not taken for a stopped one by a later change.
- An error comes only after a change that explains it, and what it says as the way on works.

A row of a batch may also go elsewhere when the batch is written again, or be left out, as by
changed code. That shows unless the batch left no record and its streams are not those of now; and
where the numbers of rows agree it is a warning.
"""

from __future__ import annotations

import itertools
import json
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.writing.split_batch import read_split_batch
from pravega_spark.errors import (
    BatchConflict,
    NoSuchStream,
    NoSuchTable,
    RootChanged,
    StaleIdentity,
)
from pravega_spark.manager import StreamManager
from pravega_spark.spark.write.numbered import lacking
from tests.harness.failpoints import at_failpoint
from tests.harness.query_checkpoints import Query
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.tiers import sized

SEQUENCES = sized(40, 10_000, "SINK_SEQUENCES")
FIRST_SEED = sized(0, 0, "SINK_SEED")
STEPS = 12
RAW = {"routing_key": "string", "event": "string"}
NAMED = {"stream": "string", **RAW}
PUTS = {"key": "binary", "value": "binary"}
ROWS = {"routing_key": "string", "n": "long"}
TIMED = {**ROWS, "at": "timestamp"}
STREAMS = ("s/ma", "s/mb", "s/mc", "s/ty", "s/ty-dlq")
LEFT_OUT = ""
_NAMING = [{"scope": "s"}, {"path": "s/ma"}, {"path": "s/mb"}]
_LETTERS = [{"path": "s/ty", "badrecords": "dlq", "eventtime": "at"}, {"path": "s/ty"}]
SINKS: dict[str, list[dict[str, str]]] = {
    "streams": _NAMING,
    "frames of streams": _NAMING,
    "letters": _LETTERS,
    "frames of letters": _LETTERS,
    "table": [{"path": "s/t"}],
    "frames of a table": [{"path": "s/t"}],
}
VERBS = (
    *("append", "append", "run", "run", "run", "run", "options", "options"),
    *("rollback", "copy", "switch", "save", "restore", "route", "route", "route", "away"),
)
CRASHES = (
    "none",
    "none",
    "none",
    "planned",
    "recorded",
    "committed",
    "committed",
    "unacknowledged",
)


class Stopped(Exception):
    """The process ends here."""


@dataclass(frozen=True)
class Change:
    """What was changed since a query's last success, and how to take it back."""

    what: str
    checkpoint: Path | None = None
    options: dict[str, str] | None = None
    source: list[tuple[str, bool]] = field(default_factory=list)


class World:
    """A source, queries on it, their target, and what was done to them."""

    def __init__(self, folder: Path, mode: str, *, has_files: bool) -> None:
        self.folder, self.mode, self.has_files = folder, mode, has_files
        self.names = (folder / f"{n}" for n in itertools.count())
        self.root = next(self.names)
        manager = StreamManager(self.root)
        manager.create_scope("s")
        schema = StreamConfiguration(schema=pa.schema([("n", pa.int64())]))
        manager.create_stream("s/ty", schema)
        manager.create_stream("s/ma")
        manager.create_stream("s/mb")
        manager.create_key_value_table("s/t")
        self.options = SINKS[mode][0]
        self.source: list[tuple[str, bool]] = []
        self.checkpoints = [next(self.names)]
        self.current = 0
        self.runs = itertools.count()
        self.changes: list[Change] = []
        self.lasting: list[str] = []
        """Changes that may show only when a later batch reaches another stream."""
        self.saved: Path | None = None
        self.ended = False
        self.may_double: set[int] = set()
        self.may_miss: set[int] = set()
        self.recorded: set[int] = set()
        """The batches that were begun: with them, the options must stay."""
        self.reached: set[int] = set()
        """Those of which a stream may have something."""
        self.is_elsewhere = False
        self.planned = 0
        self.errors: Counter[str] = Counter()

    # What a query's checkpoint says

    @property
    def checkpoint(self) -> Path:
        return self.checkpoints[self.current]

    def numbers(self, folder: str) -> list[int]:
        path = self.checkpoint / folder
        return sorted(int(f.name) for f in path.iterdir()) if path.exists() else []

    def end(self, number: int) -> int:
        """The rows of the source up to the end of a batch."""
        if number < 0:
            return 0
        found = json.loads((self.checkpoint / f"offsets/{number}").read_text().splitlines()[2])
        if "end" in found:
            return int(found["end"])
        entry = (self.checkpoint / f"sources/0/{found['logOffset']}").read_text().splitlines()[1]
        return int(json.loads(entry)["path"])

    def query(self, options: dict[str, str] | None = None) -> Query:
        options = self.options if options is None else options
        columns = {
            "streams": RAW if "path" in options else NAMED,
            "letters": TIMED if "eventtime" in options else ROWS,
            "table": PUTS,
        }[self.mode.rpartition(" ")[2]]
        kind = "pravega_kvt" if self.mode.endswith("table") else "pravega"
        run = f"run-{next(self.runs)}"
        return Query(self.root, self.checkpoint, run, columns=columns, options=options, kind=kind)

    def batch(self, query: Query, first: int, last: int) -> pa.RecordBatch:
        """The rows of a micro-batch, with the columns that the sink takes."""
        at = [i for i in range(first, last) if self.source[i][0] != LEFT_OUT]
        every = {
            "stream": pa.array([self.source[i][0] for i in at], pa.string()),
            "routing_key": pa.array([f"k{i % 3}" for i in at], pa.string()),
            "event": pa.array([str(i) for i in at], pa.string()),
            "key": pa.array([b"%d" % i for i in at], pa.binary()),
            "value": pa.array([b"%d" % i for i in at], pa.binary()),
            "n": pa.array(at, pa.int64()),
            "at": pa.array(
                [None if self.source[i][1] else 1 for i in at], pa.timestamp("us", "UTC")
            ),
        }
        return pa.record_batch({name: every[name] for name in query.columns})

    def present(self) -> dict[str, Counter[int]]:
        """The rows in each stream or table."""
        manager = StreamManager(self.root)
        found = {}
        for name in STREAMS:
            if manager.stream_exists(name):
                found[name] = Counter(_number(event.data) for event in manager.read(name))
        table = manager.key_value_table("s/t")
        found["s/t"] = Counter(int(cast(bytes, entry.key)) for entry in table.entries())
        return found

    # Steps

    def act(self, step: Step) -> None:
        verb, seed = step
        dice = random.Random(seed)
        self.do(verb, dice.random(), dice.random())

    def do(self, verb: str, a: float, b: float) -> None:
        if not self.ended:
            getattr(self, f"do_{verb}")(a, b)

    def do_append(self, a: float, b: float) -> None:
        chosen = random.Random(b)
        for _ in range(1 + int(a * 6)):
            self.source.append((chosen.choice(["s/ma", "s/ma", "s/mb"]), chosen.random() < 0.3))

    def do_options(self, a: float, b: float) -> None:
        sinks = SINKS[self.mode]
        before, self.options = self.options, sinks[int(a * len(sinks))]
        if self.options != before:
            self.changes.append(Change("options", options=before))
            self.is_elsewhere = True
            self.note_doubles()

    def do_route(self, a: float, b: float) -> None:
        """Let rows of the batch that is pending, or of later ones, go elsewhere, or nowhere."""
        if len(self.checkpoints) > 1 or self.mode.endswith("table"):
            return
        chosen, before = random.Random(b), list(self.source)
        first, pending = self.end(max([*self.numbers("commits"), -1])), self.pending()
        last = len(self.source) if pending is None else self.end(pending)
        rows = [row for row in range(first, last) if self.source[row][0] != LEFT_OUT]
        if chosen.random() < 0.3:  # each stream keeps its number of rows
            routes = [self.source[row] for row in rows]
            chosen.shuffle(routes)
            for row, route in zip(rows, routes, strict=True):
                self.source[row] = route
        else:
            for row in rows:
                if chosen.random() < a:
                    name = chosen.choice(["s/ma", "s/mb", "s/mc", LEFT_OUT])
                    self.source[row] = name, chosen.random() < 0.5
        if self.source != before:
            self.changes.append(Change("route", source=before))

    def note_doubles(self) -> None:
        """Note the rows that another target may have by now, of batches of one stream."""
        if self.is_elsewhere:
            done = [*self.numbers("commits"), -1]
            self.may_double.update(range(self.end(max(done)), self.planned))

    def do_rollback(self, a: float, b: float) -> None:
        """Forget the last batches, as people do who delete files of a checkpoint."""
        numbers = self.numbers("offsets")[-1 - int(a * 2) :]
        if not numbers:
            return
        copy = Path(shutil.copytree(self.checkpoint, next(self.names)))
        self.changes.append(Change("checkpoint", checkpoint=copy))
        for number in numbers:
            offsets = self.checkpoint / f"offsets/{number}"
            found = json.loads(offsets.read_text().splitlines()[2])
            if "logOffset" in found:
                (self.checkpoint / f"sources/0/{found['logOffset']}").unlink()
            for folder in ("offsets", "commits"):
                (self.checkpoint / f"{folder}/{number}").unlink(missing_ok=True)
        self.note_doubles()

    def do_copy(self, a: float, b: float) -> None:
        if len(self.checkpoints) < 3 and self.checkpoint.exists():
            copy = Path(shutil.copytree(self.checkpoint, next(self.names)))
            self.checkpoints.append(copy)

    def do_switch(self, a: float, b: float) -> None:
        chosen = int(a * len(self.checkpoints))
        if chosen != self.current:
            self.current = chosen
            self.changes.append(Change("switch"))
            self.note_doubles()

    def do_save(self, a: float, b: float) -> None:
        if a < 0.5:
            self.saved = Path(shutil.copytree(self.root, next(self.names)))
            return
        self.saved = next(self.names)
        StreamManager(self.root).backup(self.saved)

    def do_restore(self, a: float, b: float) -> None:
        if self.saved is None:
            return
        self.root, self.saved = self.saved, None
        assert not StreamManager(self.root).restore().failed
        self.changes.append(Change("restore"))

    def pending(self) -> int | None:
        """The batch that the next run repeats."""
        offsets = self.numbers("offsets")
        return offsets[-1] if offsets and offsets[-1] not in self.numbers("commits") else None

    def do_run(self, a: float, b: float) -> None:
        """Run a query for some batches; it may stop in the last one."""
        query = self.query()
        crash = CRASHES[int(b * len(CRASHES))]
        count = 1 + int(a * 3)
        last = 0 if crash != "none" and a < 0.8 else count - 1  # the source may end before
        for at in range(count):
            stop = crash if at == last else "none"
            try:
                is_done = self.run_batch(query, stop, random.Random(a + at))
            except Stopped:
                return
            except (BatchConflict, StaleIdentity) as error:
                self.explain(error)
                return
            if not is_done:
                return

    def run_batch(self, query: Query, stop: str, chosen: random.Random) -> bool:
        """Plan and write one batch; False at the end of the source."""
        number = self.next_batch(query, chosen)
        if number is None:
            return False
        if stop == "planned":
            raise Stopped
        self.write(query, number, stop)
        if stop == "unacknowledged":
            raise Stopped
        (self.checkpoint / f"commits/{number}").touch()
        self.check_rows(number)
        ended = ("options", "route")
        self.lasting += [change.what for change in self.changes if change.what not in ended]
        self.changes.clear()
        return True

    def next_batch(self, query: Query, chosen: random.Random) -> int | None:
        """Plan a batch, unless one must be repeated; None at the end of the source."""
        number = self.pending()
        if number is not None:
            return number
        offsets = self.numbers("offsets")
        number = offsets[-1] + 1 if offsets else 0
        first = self.end(number - 1)
        if first >= len(self.source):
            return None
        self.plan(query, number, chosen.randint(first + 1, len(self.source)))
        return number

    def do_away(self, a: float, b: float) -> None:
        """Run a query while its root is an empty folder, as a disk that is not mounted."""
        query = self.query()
        number = self.next_batch(query, random.Random(b))
        if not number:  # batch 0 makes a root
            return
        rows = self.batch(query, self.end(number - 1), self.end(number))
        other = self.root.rename(next(self.names))
        self.root.mkdir()
        try:
            self.send(query, number, rows)
            assert not rows.num_rows, "an empty folder took the place of the root"
        except (RootChanged, NoSuchTable):
            pass
        assert list(self.root.iterdir()) == []
        self.root.rmdir()
        other.rename(self.root)

    def send(self, query: Query, number: int, rows: pa.RecordBatch) -> None:
        if self.mode.startswith("frames"):
            query.save(number, rows, knows_checkpoint=True)
        else:
            query.write(number, rows)

    def plan(self, query: Query, number: int, end: int) -> None:
        self.planned = max(self.planned, end)
        if not self.has_files:
            query.plan(number, {"end": end})
            return
        folder = self.checkpoint / "sources/0"
        folder.mkdir(parents=True, exist_ok=True)
        at = len(list(folder.iterdir()))
        entry = json.dumps({"path": str(end), "timestamp": 1, "batchId": at})
        (folder / str(at)).write_text(f"v1\n{entry}")
        query.plan(number, {"logOffset": at})

    def write(self, query: Query, number: int, stop: str) -> None:
        first, last = self.end(number - 1), self.end(number)
        rows = self.batch(query, first, last)
        self.forget_changes(number)
        if any(change.what == "route" for change in self.changes):
            self.note_apart(range(first, last))
        try:
            with _stopping(stop), _warnings() as warned:
                self.send(query, number, rows)
        except Stopped:
            self.recorded.add(number)
            if stop == "committed":
                self.reached.add(number)
            raise
        self.recorded.add(number)
        self.reached.add(number)

        if warned:
            self.errors["warned"] += 1
            self.may_double.update(range(first, last))
            self.may_miss.update(range(first, last))

    def forget_changes(self, number: int) -> None:
        """Forget what was changed before a batch was written for the first time."""
        gone = [] if number in self.reached else ["route", "checkpoint"]
        gone += [] if number in self.recorded else ["options"]
        self.changes = [change for change in self.changes if change.what not in gone]

    def note_apart(self, batch: range) -> None:
        """Note the rows of a batch that nothing tells to be in other streams than those of now."""
        writer = "txn:app" if self.mode.startswith("frames") else "spark.q-1"
        held = read_split_batch(open_store(self.root), writer)
        known = set() if held is None or writer == "txn:app" else set(held.parts)
        before = {name for name, rows in self.present().items() if rows.keys() & set(batch)}
        now = {self.options.get("path", self.source[row][0]) for row in batch}
        if self.mode.endswith("streams") and not (known | now) & before:
            self.may_double.update(batch)

    # What must hold

    def check_rows(self, number: int) -> None:
        """Every row of the query's batches is in a stream, and in none twice."""
        found = self.present()
        total: Counter[int] = Counter()
        for name, rows in found.items():
            twice = [row for row, times in rows.items() if times > 1]
            assert not twice, f"rows {twice} are twice in {name}"
            total += rows
        missing = [row for row in range(self.end(number)) if not total[row]]
        missing = [row for row in missing if not self.is_untouched(row)]
        missing = [row for row in missing if row not in self.may_miss]
        assert not missing, f"rows {missing} are nowhere after batch {number}"
        several = {row for row, times in total.items() if times > 1}
        assert several <= self.may_double, f"rows {several} are in several streams"
        self.check_record()

    def check_record(self) -> None:
        """A query's batch that succeeded is complete: nothing can tell it to be written again."""
        held = read_split_batch(open_store(self.root), "spark.q-1")
        was_restored = "restore" in [*self.lasting, *(change.what for change in self.changes)]
        if held is not None and not was_restored:
            pending = lacking(str(self.root), held)
            assert not pending, f"number {held.number} is still torn: {pending} lack it"

    def is_untouched(self, row: int) -> bool:
        """Whether no stream of a row was written to since its restore: the next write is refused.

        The next one that has rows for it, that is: the stream itself cannot say anything before.
        """
        name, is_bad = self.source[row]
        if name == LEFT_OUT:
            return True
        targets = ["s/_kv_tables/t"]
        if self.mode.endswith("streams"):
            targets = list(STREAMS[:2]) if self.is_elsewhere else [self.options.get("path", name)]
        elif self.mode.endswith("letters"):
            targets = ["s/ty", "s/ty-dlq"] if is_bad else ["s/ty"]
        writer = "txn:app" if self.mode.startswith("frames") else "spark.q-1"
        for target in targets:
            try:
                view = existing_view(open_stream(str(self.root), target))
            except NoSuchStream:
                continue
            known = view.writer(writer)
            if view.restored_ms and (known is None or known.is_restored):
                return True
        return False

    def explain(self, error: BatchConflict | StaleIdentity) -> None:
        """An error must have a cause among the changes, and its way on must work."""
        what = {change.what for change in self.changes} | set(self.lasting)
        self.errors[type(error).__name__] += 1
        assert what, f"nothing was changed: {error}"
        if isinstance(error, StaleIdentity):
            assert "restore" in what, f"nothing was restored: {error}"
            self.say_complete(error)
            return
        number = error.number or 0
        if what == {"route"} and number % 2:
            self.accept(number, str(error))
            return
        for change in reversed(self.changes):
            self.source[: len(change.source)] = change.source
            if change.checkpoint is not None:
                shutil.rmtree(self.checkpoint)
                shutil.copytree(change.checkpoint, self.checkpoint)
            if change.options is not None:
                self.options = change.options
        if not self.lasting and what <= {"checkpoint", "options", "route"}:
            self.changes.clear()
            query = self.query()
            while self.run_batch(query, "none", random.Random(0)):
                pass
        else:  # another copy went on, or the target is an older one: this checkpoint is of no use
            self.ended = True

    def accept(self, number: int, text: str) -> None:
        """Take the rows of a batch as they are now, by the option that the error names."""
        assert f"acceptReplay={number}" in text
        batch = range(self.end(number - 1), self.end(number))
        self.may_double.update(batch)
        self.may_miss.update(batch)
        query = self.query({**self.options, "acceptreplay": str(number)})
        while self.run_batch(query, "none", random.Random(0)):
            pass

    def say_complete(self, error: StaleIdentity) -> None:
        """If nothing is missing, the option must be accepted; otherwise the query has ended."""
        pending = self.pending()
        assert pending is not None
        total = sum(self.present().values(), Counter[int]())
        lives: list[str] = []
        if any(not total[row] for row in range(self.end(pending - 1))):
            self.ended = True
            return
        for _ in STREAMS:
            lives.append(str(error.current_life))
            assert len(set(lives)) == len(lives), f"the option was not accepted: {error}"
            query = self.query({**self.options, "restoredlives": ",".join(lives)})
            try:
                self.run_batch(query, "none", random.Random(0))
                return
            except StaleIdentity as other:
                error = other
            except BatchConflict:
                self.ended = True  # also of another change
                assert {*self.lasting, *(change.what for change in self.changes)} != {"restore"}
                return
        raise AssertionError(f"the option was not accepted: {error}")


def _number(data: Any) -> int:
    if isinstance(data, dict):
        return int(data["n"])
    text = data.decode()
    return int(json.loads(text)["row"]["n"]) if text.startswith("{") else int(text)


@contextmanager
def _stopping(stop: str) -> Iterator[None]:
    if stop not in ("recorded", "committed"):
        yield
        return

    def end() -> None:
        raise Stopped

    with at_failpoint(f"many_streams.{stop}", end):
        yield


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the warnings that a batch may have other rows than before."""
    found: list[str] = []

    class Collected(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "with other rows" in record.getMessage():
                found.append(record.getMessage())

    logger, handler = logging.getLogger("pravega_spark"), Collected()
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


def play(seed: int, steps: Iterable[Step]) -> Counter[str]:
    """Run a sequence; return the errors that were explained."""
    chosen = random.Random(seed)
    mode, has_files = chosen.choice(list(SINKS)), chosen.random() < 0.3
    with tempfile.TemporaryDirectory(dir=_fast_folder(), ignore_cleanup_errors=True) as folder:
        world = World(Path(folder), mode, has_files=has_files)
        for step in steps:
            world.act(step)
        world.do("append", 0.5, 0.5)
        world.do("run", 0.99, 0.0)
        return world.errors


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.mark.long
def test_queries_over_restarts_at_which_one_thing_changed() -> None:
    errors: Counter[str] = Counter()

    def count(seed: int, steps: Iterable[Step]) -> None:
        errors.update(play(seed, steps))

    for seed in range(FIRST_SEED, FIRST_SEED + SEQUENCES):
        steps = [("append", seed), *drawn_steps(seed, VERBS, STEPS)]
        play_shortest(seed, steps, partial(count, seed))
    assert errors["BatchConflict"] > SEQUENCES / 50
    assert errors["StaleIdentity"] > SEQUENCES / 100
