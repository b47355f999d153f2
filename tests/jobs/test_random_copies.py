"""Random imports and exports over restarts: each row is in the stream and in the export once.

Between runs there come new files, some a month older than those before them, a scale, and a kill
after a batch was written and before Spark recorded it. What was in the files is the value.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pravega_spark import StreamManager
from tests.harness.copy_jobs import Copies
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.tiers import sized

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3_600)]

MONTH = 30 * 86_400
VERBS = ("add_files", "do_import", "do_export", "kill", "scale")
Found = tuple[str | None, int]
_numbers = itertools.count()


class Sequence:
    """One source, one stream, one export, and the rows that each must have."""

    def __init__(self, copies: Copies, seed: int) -> None:
        number = next(_numbers)
        self.copies, self.random, self.name = copies, Random(seed), f"s/t{number}"
        self.folder = copies.folder / str(number)
        self.source = self.folder / "in"
        self.source.mkdir(parents=True)
        self.kind = self.random.choice(("json", "csv", "parquet"))
        self.target = self.random.choice(("json", "csv", "parquet", "delta"))
        self.has_keys = self.random.random() < 0.7
        self.files: list[list[Found]] = []
        self.killed: set[str] = set()
        self.steps = [f"{self.kind} to {self.target}, keys: {self.has_keys}"]

    def run(self, steps: Iterable[Step]) -> None:
        self.add_files()
        self.do_import()
        for verb, seed in steps:
            self.random = Random(seed)
            getattr(self, verb)()
        self.do_import()
        self.do_export()
        self.check()

    def add_files(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            number, first = len(self.files), sum(map(len, self.files))
            at = 1_700_000_000 + number - self.random.choice((0, 0, MONTH))
            new = [
                (f"k{self.random.randint(0, 2)}", first + n)
                for n in range(self.random.randint(1, 5))
            ]
            self.files.append([(key if self.has_keys else None, n) for key, n in new])
            file = self.source / f"{number:03}.{self.kind}"
            hidden = file.with_name(f".{file.name}")
            if self.kind == "parquet":
                table = {"key": [key for key, _ in new], "n": [n for _, n in new]}
                pq.write_table(pa.table(table), hidden)
            elif self.kind == "csv":
                hidden.write_text("key,n\n" + "".join(f"{key},{n}\n" for key, n in new))
            else:
                hidden.write_text("".join(json.dumps({"key": k, "n": n}) + "\n" for k, n in new))
            os.utime(hidden, (at, at))
            hidden.rename(file)
        self.steps.append(f"{len(self.files)} files")

    def do_import(self) -> None:
        given: list[object] = ["--from", self.kind, "--path", self.source, "--segments", 2]
        given += ["--key", "key"] if self.has_keys else []
        given += ["--option", "header=true"] if self.kind == "csv" else []
        given += ["--option", f"maxFilesPerTrigger={self.random.choice((1, 2, 100))}"]
        done = self.copies.import_(*given, "--checkpoint", self.folder / "import", stream=self.name)
        self.killed.discard("import")
        self.steps.append(f"import of {done.get('rows')}")
        assert done["status"] == 0, (self.steps, done["output"])

    def do_export(self) -> None:
        given = ["--to", self.target, "--path", self.folder / "out", "--max-rows"]
        given += [self.random.choice((1, 3, 100)), "--checkpoint", self.folder / "export"]
        done = self.copies.export(*given, stream=self.name)
        self.killed.discard("export")
        self.steps.append(f"export of {done.get('rows')}")
        assert done["status"] == 0, (self.steps, done["output"])

    def kill(self) -> None:
        """Leave a job as a kill does, after its sink wrote a batch that Spark has not recorded."""
        job = self.random.choice(("import", "export"))
        commits = [f for f in (self.folder / job / "commits").glob("*") if f.name.isdigit()]
        if not commits or job in self.killed:
            return
        last = max(commits, key=lambda file: int(file.name))
        for file in (last, last.with_name(f".{last.name}.crc")):
            file.unlink(missing_ok=True)
        self.killed.add(job)
        self.steps.append(f"{job} is killed in batch {last.name}")

    def scale(self) -> None:
        manager = StreamManager(self.copies.root)
        one = self.random.choice(sorted(manager.segments(self.name), key=str))
        low, high = one.key_range.low, one.key_range.high
        middle = (low + high) / 2
        manager.scale_stream(self.name, [one], [(low, middle), (middle, high)])
        self.steps.append("scale")

    def check(self) -> None:
        """Compare the rows, and the order of those of a key that are of one file."""
        expected = sorted((row for rows in self.files for row in rows), key=str)
        events = [(key, _number(text)) for key, text in self.copies.events(self.name)]
        assert sorted(events, key=str) == expected, self.steps
        assert sorted(self.exported(), key=str) == expected, self.steps
        places = {n: place for place, (_, n) in enumerate(events)}
        for rows in self.files if self.has_keys else ():
            of_key = defaultdict[str | None, list[int]](list)
            for key, n in rows:
                of_key[key].append(places[n])
            assert all(found == sorted(found) for found in of_key.values()), self.steps

    def exported(self) -> list[Found]:
        reader = self.copies.spark.read.format(self.target)
        if self.target == "csv":
            reader = reader.schema("routing_key STRING, event STRING")
        frame = reader.load(str(self.folder / "out"))
        if "routing_key" not in frame.columns:  # JSON lines have no nulls
            frame = frame.selectExpr("NULL AS routing_key", "event")
        rows = frame.selectExpr("routing_key", "CAST(event AS STRING) AS event").collect()
        return [(row["routing_key"], _number(row["event"])) for row in rows]


def _number(text: str) -> int:
    """Return the number of a row from its JSON, in which values of CSV are texts."""
    return int(json.loads(text)["n"])


@pytest.mark.parametrize("seed", range(sized(1, 40, "COPY_SEQUENCES")))
def test_each_row_is_copied_once_over_restarts(copies: Copies, seed: int) -> None:
    def play(steps: Iterable[Step]) -> None:
        Sequence(copies, seed).run(steps)

    play_shortest(seed, drawn_steps(seed, VERBS, sized(4, 8)), play)
