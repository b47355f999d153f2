"""The rules of kinds are in one table, and no other file of the engine names a feature."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pravega_spark import KeyValueTableConfiguration, StreamManager
from pravega_spark.engine import kinds
from pravega_spark.engine.kinds import KEPT_PLACE, KINDS, kind_at, kind_with
from pravega_spark.values import names

ROOT = Path(__file__).resolve().parents[3]
ENGINE = ROOT / "pravega_spark" / "engine"
FORMAT = (ROOT / "docs" / "FORMAT.md").read_text()

WORDS = {
    "key_value": r"key value|kvt?|(un)?fold(s|ed|ing)?|ttl|change logs?",
    "byte_streams": r"byte (streams?|heads?|positions?)",
    "shared_state": r"revision(s|ed)?|shared states?|state synchroni[sz]ers?",
    "reader_groups": r"reader groups?|is group",
    "dead_letters": r"dead letters?|letter (streams?|writers?)|bad records?",
    "txn": r"joint",
    "integrity": r"fsck|integrity",
    "metrics": r"prometheus|grafana|gauges?",
    "serve": r"rest api|openapi|web pages?|browsers?|dashboards?",
    "table_statements": r"catalogs?|create table",
}
"""What a file that knows a room above the engine would say; a space is any separator, or none."""
OWN = {
    "txn": "The log of a stream holds its open transactions and their outcomes; commits heed them.",
    "scaling": "Epochs are records of a stream, and each of its appends is routed by one.",
    "retention": "A truncation is a commit of the stream, by a policy in its record.",
    "compaction": "Merged chunks and merged files are files of a log.",
    "event_time": "Times that writers note, and watermarks, are records of the stream.",
    "backup": "A pin holds a version for a backup, and the marker of a copy says what it is.",
    "maintenance": "Who maintains a root is in a state table.",
    "serializers": "A message says how a writer takes values that are no bytes.",
    "manager": "A message names the call that goes on.",
    "stream": "The engine is about streams.",
    "event_reader": "The engine reads events.",
    "event_writer": "The engine writes events.",
    "jobs": "A program: variables and messages are for it, and rules never ask for one.",
    "cli": "As for jobs.",
    "benchmark": "As for jobs.",
    "spark": "As for jobs; how its own readers and its hash work are facts, and no rules of ours.",
}
"""Why the engine may speak of what a room above it does; only of what `WORDS` lacks."""
EXCEPTIONS = {
    ("chunks/encoder.py", "key_value"): "Arrow's writer calls its metadata so.",
    ("runtime/log_fields.py", "'group'"): "A field of lines of the log, for JSON formatters.",
}
BELOW = {"advice", "config", "engine", "errors", "primitives", "schemas", "values"}

_PATTERNS = [
    re.compile(rf"(?<![a-z])(?:{words.replace(' ', '[ _-]?')})(?![a-z])", re.IGNORECASE)
    for words in WORDS.values()
]
_OF_ONE_KIND = {
    *(name for name, value in vars(kinds).items() if name.isupper() and isinstance(value, str)),
    *(n for n in vars(names) if re.search("group|table|folded", n, re.IGNORECASE)),
} - {"STREAM"}
"""Names by which code would single out a kind."""
_KIND_NAMES = KINDS.keys() - {"stream"}


def named(source: str) -> Iterator[str]:
    """Yield what in a source names a feature: identifiers, texts and comments."""
    text = re.sub(r"\s*\n[\s#]*|(?<=[a-z])(?=[A-Z])", " ", source)  # joined lines, parted words
    for pattern in _PATTERNS:
        yield from (found[0] for found in pattern.finditer(text))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in _KIND_NAMES:
            yield repr(node.value)
        for name in (getattr(node, field, None) for field in ("id", "attr", "name")):
            if name in _OF_ONE_KIND:
                yield str(name)


@pytest.mark.medium
def test_the_engine_names_no_feature_outside_the_table_of_kinds() -> None:
    found = {
        (path.relative_to(ENGINE).as_posix(), name)
        for path in ENGINE.rglob("*.py")
        if path != Path(kinds.__file__)
        for name in [*named(path.read_text()), *named(path.stem)]
    }
    assert found == EXCEPTIONS.keys(), sorted(found ^ EXCEPTIONS.keys())


@pytest.mark.parametrize(
    "source",
    [
        "if domain == TABLE_DOMAIN:\n    pass",
        "if scopes.TABLE_DOMAIN in view.snapshot.domains:\n    pass",
        "if 'pravega.kv_table' in domains:\n    pass",
        "if view.kind is KINDS[TABLE]:\n    pass",
        "if row['kind'] == 'group':\n    pass",
        "from pravega_spark.engine.kinds import GROUP",
        "from pravega_spark.values.names import is_group",
        "keeper = view.subscriber('pravega.fold')",
        "def is_folded(view): ...",
        "class KeyValueRules: ...",
        "x = 1  # a merged chunk of a key-value\n# table has one later time",
        "x = 1  # of the change\n# log of a table",
        "begins_shared_state = True",
        "decode_mark(domains['pravega.revision_mark'])",
        "opened.is_joint",
        "raise IllegalState(f'reader group {name} is not there')",
    ],
)
def test_the_check_sees(source: str) -> None:
    assert list(named(source))


@pytest.mark.parametrize(
    "source",
    [
        "folder = names.isdisjoint(row_groups)",
        "x = 1  # the group's owner commits, letter for letter",
    ],
)
def test_the_check_passes_what_is_the_engines_own(source: str) -> None:
    assert not list(named(source))


def test_each_room_above_the_engine_has_words_or_a_reason_why_not() -> None:
    found = ENGINE.parent.rglob("*.py")
    rooms = {path.relative_to(ENGINE.parent).with_suffix("").parts[0] for path in found}
    above = {room for room in rooms if not room.startswith("_")} - BELOW
    assert above == WORDS.keys() | OWN.keys()


def test_the_kinds_are_those_of_the_format() -> None:
    (row,) = re.findall(r"^\| `kind` \| (`stream`.*) \|$", FORMAT, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == KINDS.keys()
    domains = {kind.domain for kind in KINDS.values()} - {None}
    assert domains | {KEPT_PLACE.domain, KEPT_PLACE.or_later} <= set(
        re.findall(r"^\| `([^`]+)` \| events \|", FORMAT, re.MULTILINE)
    )
    for kind in KINDS.values():
        assert kind_at(f"{kind.folder}name") is kind
        assert not kind.folder or f"`{kind.folder}<" in FORMAT
        assert kind.domain is None or kind_with({"pravega.stream": "", kind.domain: "{}"}) is kind
        assert kind.keeper is None or f"the plain subscriber `{kind.keeper}`" in FORMAT
    assert kind_with({"pravega.stream": "", "pravega.of_the_future": "{}"}) is KINDS["stream"]


WORK = """
import sys
from pravega_spark.compaction.plan import CompactionOptions
from pravega_spark.compaction.run import run_compaction
from pravega_spark.engine.store.opening import open_store
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.stream_log import open_stream

store = open_store(sys.argv[1])
for name in sys.argv[2:]:
    stream = open_stream(store, name)
    view = stream.view()
    date = CommitBuilder(view, now_ms=7).added_ms  # by a clock that is behind
    merged = run_compaction(stream, CompactionOptions.parse(include_newest=True)).ranges
    print(name, "is dated", "now" if date == 7 else date - view.timestamp_ms, "and merges", merged)
print([name for name in sys.modules if name.startswith("pravega_spark.key_value")])
"""


@pytest.mark.medium
def test_the_rules_hold_in_a_process_that_never_loaded_the_feature(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/a")
    for word in ("one", "two"):
        with manager.create_writer("s/a") as writer:
            writer.write_event(word)
    manager.seal_stream("s/a")
    for name, ttl in (("s/ends", "1 hour"), ("s/stays", None)):
        manager.create_key_value_table(name, KeyValueTableConfiguration("string", ttl=ttl))
        with manager.key_value_table(name) as table:
            for word in ("one", "two"):
                table.put("k", word).result()
        manager.seal_key_value_table(name)
    logs = ["s/a", names.table_log("s", "ends"), names.table_log("s", "stays")]
    command = [sys.executable, "-c", WORK, str(tmp_path), *logs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "s/a is dated now and merges 1",
        "s/_kv_tables/ends is dated 0 and merges 0",
        "s/_kv_tables/stays is dated 0 and merges 1",
        "[]",
    ], done.stderr
