"""What release 0.1.0 refuses of this one, and what it does not know, by docs/compatibility.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark import (
    KeyValueTableConfiguration,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
    StreamSchema,
)
from pravega_spark.engine.log import snapshot
from pravega_spark.engine.stream import records
from pravega_spark.maintenance.auto import VARIABLE
from tests.harness.failpoints import at_failpoint
from tests.harness.folder_state import folder_state
from tests.harness.releases import run_release, sources
from tests.harness.simulated_kills import Killed, kill

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/compatibility.md"
FORMAT = TESTS.parent / "docs/FORMAT.md"
HERE = "docs/test_beside_release_010.py"
HELD = {
    "refused": {
        "the text of a reader's position": f"{HERE}::test_position",
        "the note of `stream append --writer-id`": f"{HERE}::test_appended_note",
        "the [life](FORMAT.md#lives) of a stream": f"{HERE}::test_drawn_life",
        "a table whose restore was killed": f"{HERE}::test_restoring",
        "a copy that `backup(update=True)` brings up to date": f"{HERE}::test_copy",
    },
    "unknown": {
        "`pravega.shared_state`": f"{HERE}::test_shared_state",
        "`pravega.layout`": "docs/test_release_layout.py::"
        "test_scales_of_the_previous_release_get_their_rows_with_the_next_sweep",
        "`pravega.restored`": "unit/backup/test_lives_of_copies.py::"
        "test_the_release_restores_what_we_restored_and_we_what_it_restored",
        "the setting `keep_records`": f"{HERE}::test_keep_records",
        '`maintain="auto"` of a new root': f"{HERE}::test_maintain",
        "the last owners of segments": "unit/reader_groups/test_leaving_positions.py::"
        "test_record_that_the_previous_release_drops_counts_as_missing",
        "losses of a group": "unit/reader_groups/test_finds.py::"
        "test_the_previous_release_reads_on_and_drops_what_it_does_not_know",
        "`rootId`, `reads` and `away`": "unit/spark/read/test_restarts.py::"
        "test_release_010_goes_on_from_offsets_of_this_one_and_the_other_way_round",
        "parts of large states": "docs/test_release_and_state.py::"
        "test_release_reads_writes_sweeps_and_copies_beside_parts",
        "`seconds` of a `REQUEST`": "faults/test_slow_decisions.py::"
        "test_previous_release_waits_as_long_as_it_always_did_and_reads_on",
    },
}
"""By the beginning of a row, the test that holds it."""


TRY = """
import sys
from pravega_spark import *
manager = StreamManager(sys.argv[1])
def attempt(call):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, error)
"""
"""How each trial begins."""


def rows(kind: str, page: Path = PAGE) -> list[str]:
    """The first cells of a checked table of a page."""
    table = re.search(rf"<!-- {kind}: [^\n]*-->\n(.*?)<!-- end -->", page.read_text(), re.DOTALL)
    assert table is not None
    return [line.split("|")[1].strip() for line in table[1].splitlines()[2:]]


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    made = StreamManager(tmp_path / "root")
    made.create_scope("s")
    made.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(1)))
    with made.create_writer("s/t") as writer:
        writer.write_events([b"0", b"1", b"2"], "k").result()
    return made


def attempts(manager: StreamManager, script: str, *arguments: object) -> list[str]:
    return run_release("0.1.0", TRY + script, manager.root, *arguments).splitlines()


# ----------------------------------------------------------------------------------- the page


@pytest.mark.parametrize("kind", HELD)
def test_each_row_is_held_by_a_test_that_runs_the_release(kind: str) -> None:
    found = rows(kind)
    for row in found:
        assert [begin for begin in HELD[kind] if row.startswith(begin)], row
    assert len(found) == len(HELD[kind])
    for held in HELD[kind].values():
        path, _, name = held.partition("::")
        text = (TESTS / path).read_text(encoding="utf-8")
        assert "run_release(" in text or "start_release(" in text, path
        names = [one.name for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)]
        assert [one for one in names if one.startswith(name)], held


def test_the_release_knows_every_feature_and_domain_that_the_page_does_not_name() -> None:
    """What a later change adds comes into a table of the page, with its trial."""
    text, page = sources("0.1.0"), PAGE.read_text()
    for feature in snapshot.KNOWN_FEATURES:
        assert f'"{feature}"' in text or f"`{feature}`" in page, feature
    domains = {re.split(r"\.<", cell.strip("`"))[0] for cell in rows("domains", FORMAT)}
    assert len(domains) > 20
    for domain in domains:
        assert f'"{domain}' in text or f"`{domain}`" in page, domain


# ------------------------------------------------------------------------------ what it refuses


@pytest.mark.medium
def test_position_with_a_number_is_refused(manager: StreamManager, tmp_path: Path) -> None:
    group = manager.create_reader_group("s/g", ["s/t"])
    with group.create_reader("a") as reader:
        event = reader.read_next_event(timeout=5.0)
        group_state = folder_state(tmp_path / "root/s/_reader_groups/g/_delta_log")
        found = attempts(
            manager,
            """
group = manager.reader_group("s/g")
attempt(lambda: group.reader_offline("a", sys.argv[2]))
attempt(lambda: group.cuts_at([sys.argv[2]]))
""",
            event.position,
        )
        assert folder_state(tmp_path / "root/s/_reader_groups/g/_delta_log") == group_state
        assert len(found) == 2
        for line in found:
            assert line.startswith("InvalidInput")
            assert str(event.position) in line
            assert "is no position of a reader" in line
    assert attempts(manager, 'attempt(manager.reader_group("s/g").online_readers)') == ["[]"]


APPEND = """
import io
from pravega_spark.cli import main
sys.stdin = io.TextIOWrapper(io.BytesIO(sys.argv[2].encode()))
command = ["stream", "append", "s/t", "--format", "json", "--writer-id", "w"]
attempt(lambda: main([*command, "--root", sys.argv[1]]))
"""


@pytest.mark.medium
def test_appended_note_of_other_bytes_is_refused(manager: StreamManager) -> None:
    lines = '{"n": 1.50}\n'
    command = [sys.executable, "-m", "pravega_spark.cli", "stream", "append", "s/t"]
    options = ["--format", "json", "--writer-id", "w", "--root", manager.root]
    subprocess.run([*command, *options], input=lines.encode(), check=True, capture_output=True)
    tail = manager.tail("s/t")
    assert attempts(manager, APPEND, lines + '{"n": 2}\n') == ["2"]  # 1.50 is 1.5 there
    assert manager.tail("s/t") == tail


@pytest.mark.medium
def test_copy_that_was_brought_up_to_date_is_refused(
    manager: StreamManager, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    for _ in range(2):
        manager.backup(copy, update=True)
    state = folder_state(copy)
    (found,) = attempts(manager, "attempt(lambda: manager.backup(sys.argv[2]))", copy)
    assert found.startswith("IllegalState")
    assert "a complete backup" in found
    assert folder_state(copy) == state


@pytest.mark.medium
def test_restoring_table_is_refused(manager: StreamManager) -> None:
    with at_failpoint("restore.replaced", kill), pytest.raises(Killed):
        manager.restore_stream("s/t")
    state = folder_state(Path(manager.root))
    (found,) = attempts(manager, 'attempt(lambda: list(manager.read("s/t")))')
    assert found.startswith("ForeignTable")
    assert "needs table features ['pravega-restoring']" in found
    assert folder_state(Path(manager.root)) == state
    manager.restore_stream("s/t")
    (found,) = attempts(manager, 'attempt(lambda: [e.data for e in manager.read("s/t")])')
    assert found == "[b'0', b'1', b'2']"


METADATA = """
from pravega_spark.spark.source import PravegaDataSource
def rows(name):
    source = PravegaDataSource({"root": sys.argv[1], "metadata": name})
    reader = source.reader(source.schema())
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
for name in sys.argv[2:]:
    attempt(lambda: rows(name) > 0)
attempt(lambda: [event.data.decode() for event in manager.read("s/again")])
attempt(lambda: manager.key_value_table("s/k").get("a").value.decode())
"""
TABLES = ("Streams", "StreamInfo", "Segments", "Epochs", "Settings", "Storage", "KeyValueTables")


@pytest.mark.medium
def test_drawn_life_fails_one_metadata_table_alone(manager: StreamManager) -> None:
    strings = KeyValueTableConfiguration(key_type="string")
    for _ in range(2):
        if manager.stream_exists("s/again"):
            manager.seal_stream("s/again")
            manager.delete_stream("s/again")
            manager.delete_key_value_table("s/k")
        manager.create_stream("s/again")
        manager.create_key_value_table("s/k", strings)
    with manager.create_writer("s/again") as writer:
        writer.write_event(b"new", "k").result()
    with manager.key_value_table("s/k") as table:
        table.put("a", "1").result()
    *tables, events, value = attempts(manager, METADATA, *TABLES)
    found = dict(zip(TABLES, tables, strict=True))
    assert re.match(r"ArrowInvalid Value \d+ too large", found.pop("StreamInfo"))
    assert set(found.values()) == {"True"}
    assert (events, value) == ("['new']", "1")


LATER = """
for call in (
    lambda: list(manager.read("s/later")),
    lambda: manager.create_writer("s/later").write_event(b"old", "k").result(),
    lambda: manager.truncate_stream("s/later", "latest"),
    lambda: manager.scale_stream("s/later", [0], [(0.0, 0.5), (0.5, 1.0)]),
    lambda: manager.sweep_stream("s/later", grace=0, retain=0),
    lambda: manager.create_reader_group("s/of-later", ["s/later"]),
    lambda: manager.seal_stream("s/later"),
):
    attempt(call)
print(manager.maintain(full=True).failures)
"""


@pytest.mark.medium
@pytest.mark.parametrize("what", ["feature", "format"])
def test_stream_of_a_later_release_is_refused_by_what_is_unknown(
    manager: StreamManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Whatever a later release adds: 0.1.0 was built to refuse it."""
    schema = StreamSchema.from_ddl("item string")
    with monkeypatch.context() as later:
        if what == "feature":
            known = snapshot.KNOWN_FEATURES | {"pravega-later"}
            later.setattr(snapshot, "KNOWN_FEATURES", known)
            features = [*snapshot.COLUMNS_PROTOCOL["writerFeatures"], "pravega-later"]
            later.setitem(snapshot.COLUMNS_PROTOCOL, "writerFeatures", features)
        else:
            later.setattr(records, "FORMAT", 2)
        manager.create_stream("s/later", StreamConfiguration(schema=schema))
    state = folder_state(tmp_path / "root/s/later")
    *found, failures = attempts(manager, LATER)
    assert len(found) == 7
    name = "pravega-later" if what == "feature" else "format 2"
    for line in [*found, failures]:
        assert name in line, line
        assert "s/later" in line
    assert {line.partition(" ")[0] for line in found} <= {"ForeignTable", "CorruptLog"}
    assert folder_state(tmp_path / "root/s/later") == state
    assert attempts(manager, 'attempt(lambda: len(list(manager.read("s/t"))))') == ["3"]


# -------------------------------------------------------------------------- what it does not know


@pytest.mark.medium
def test_shared_state_is_truncated_by_the_retention_of_the_release(manager: StreamManager) -> None:
    small = StreamConfiguration(ScalingPolicy.fixed(1), RetentionPolicy.by_size(1))
    for name in ("s/ours", "s/theirs"):
        manager.create_stream(name, small)
        with manager.state_synchronizer(name, lambda state, step: [*state, step]) as shared:
            shared.initialize([])
            shared.update_state_unconditionally([1, 2])
    manager.retention("s/ours").run(sweep=False)
    attempts(manager, 'manager.retention("s/theirs").run(sweep=False)')
    fetched = """
for name in ("s/ours", "s/theirs"):
    shared = manager.state_synchronizer(name, lambda state, step: [*state, step])
    attempt(lambda: (shared.fetch_updates(), shared.get_state())[1])
"""
    ours, theirs = attempts(manager, fetched)
    assert ours == "[1, 2]"
    assert theirs.startswith("IllegalState")


@pytest.mark.medium
def test_keep_records_is_kept_for_the_root_and_dropped_from_a_stream(
    manager: StreamManager,
) -> None:
    manager.update_settings(keep_records="90 days")
    manager.update_stream("s/t", settings={"keep_records": "60 days"})
    found = attempts(
        manager,
        """
attempt(lambda: manager.update_settings(grace="3 hours").summary(["grace"]))
attempt(lambda: manager.update_stream("s/t", add_tags=["tag"]))
""",
    )
    assert found == ["grace=3 hours (root)", "True"]
    assert manager.stream_info("s/t").configuration.settings == {}
    assert manager.stream_settings("s/t").summary(["keep_records"]) == "keep_records=90 days (root)"


MAINTAIN = """
import time
from pravega_spark.maintenance import auto_maintenance
auto_maintenance.AUTO_FIRST_SECONDS = 0.0
before = manager.head("s/t")
with manager.create_writer("s/t") as writer:
    writer.write_event(b"3", "k").result()
    while manager.head("s/t") == before:
        time.sleep(0.05)
print(manager.settings().maintain, manager.stream_settings("s/t").maintain)
"""


@pytest.mark.medium
def test_maintain_of_the_root_is_followed_and_off_of_a_stream_is_not_heeded(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    manager.update_settings(maintain="auto")
    manager.update_stream("s/t", retention=RetentionPolicy.by_size(1), settings={"maintain": "off"})
    assert attempts(manager, MAINTAIN) == ["auto off"]
    assert manager.head("s/t") != manager.cut_at("s/t", 0), "its thread has truncated"
