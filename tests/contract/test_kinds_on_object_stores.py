"""What stands beside events lives on object stores, too, through the public API alone.

Tests of each part run on local disks and in memory.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pravega_spark import (
    EncryptionPolicy,
    KeyValueTableConfiguration,
    ScalingPolicy,
    StreamConfiguration,
    StreamCut,
    StreamManager,
    TableInsert,
    TablePut,
    set_kms,
)
from pravega_spark.engine.key_management import KMS_VARIABLE
from pravega_spark.errors import BadKeyVersion, ConditionFailed, FencingTokenMismatch
from tests.contract.conftest import on_object_stores
from tests.harness import file_kms
from tests.harness.failpoints import at_failpoint
from tests.harness.file_kms import MasterKeys
from tests.harness.simulated_kills import Killed, kill
from tests.harness.store_backends import BackEnd

pytestmark = on_object_stores
Open = Callable[[], StreamManager]
_processes = itertools.count()
_roots: dict[str, BackEnd] = {}
NOON = datetime(2026, 7, 1, 12, tzinfo=timezone.utc)


@pytest.fixture
def new_process(backend: BackEnd, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open the root as another process does, which shares nothing with the others.

    The tests share a root of each kind, since one that is new is probed.
    """
    backend = _roots.setdefault(backend.name, backend)

    def open_root() -> StreamManager:
        monkeypatch.setenv("PRAVEGA_SPARK_OF_TEST", str(next(_processes)))  # makes another store
        return StreamManager(backend.url, storage_options=backend.options)

    open_root().create_scope("s")
    return open_root


def create(manager: StreamManager, *names: str) -> None:
    for name in names:
        assert manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(1)))


def payloads(manager: StreamManager, name: str) -> list[bytes]:
    return [event.data for event in manager.read(name)]


def test_times_become_a_watermark_for_everybody(new_process: Open) -> None:
    create(new_process(), "s/doors")
    with new_process().create_writer("s/doors", "door") as door:
        door.write_event(b"early", "k")
        door.note_time(NOON)
        door.write_event(b"late", "k")
        door.note_time(NOON + timedelta(hours=1)).result()
        assert new_process().maintain(kinds=["watermarks"]).failures == {}
        time = new_process().event_time("s/doors")
        watermark = time.watermark()
        assert watermark is not None
        assert watermark.lower == NOON + timedelta(hours=1)
        assert time.cut_at(NOON) == new_process().tail("s/doors")
        reader = new_process().create_reader("s/doors")
        assert len(list(reader.events())) == 2
        assert reader.current_time_window().lower == watermark.lower


def test_of_two_that_expect_one_position_or_hold_one_token_one_writes(new_process: Open) -> None:
    create(new_process(), "s/fenced")
    before = new_process().tail("s/fenced")
    with (
        new_process().create_writer("s/fenced") as first,
        new_process().create_writer("s/fenced") as second,
    ):
        first.write_event(b"first", expected=before).result()
        with pytest.raises(ConditionFailed) as refused:
            second.write_event(b"second", expected=before).result()
        assert isinstance(refused.value.actual, StreamCut)
        second.write_event(b"third", expected=refused.value.actual).result()
    new_process().fence("s/fenced", "old")
    leader = new_process().create_writer("s/fenced", fencing_token="old")
    new_process().fence("s/fenced", "new", expected="old")
    with pytest.raises(FencingTokenMismatch):
        leader.write_event(b"fenced").result()
    assert payloads(new_process(), "s/fenced") == [b"first", b"third"]


def test_a_shared_counter_counts_over_a_compaction(new_process: Open) -> None:
    create(new_process(), "s/counter")
    here, elsewhere, late = (
        new_process().state_synchronizer("s/counter", lambda number, added: number + added)
        for _ in range(3)
    )
    here.initialize(0)
    for number in range(6):
        for one in (here, elsewhere):
            one.update_state(lambda _, updates: updates.append(1))
        if number % 2:
            here.compact()
    late.fetch_updates()
    assert late.get_state() == 12


def test_bytes_and_a_large_event_are_files(new_process: Open) -> None:
    create(new_process(), "s/bytes", "s/films")
    data = bytes(range(256)) * 8_192  # 2 MiB
    with new_process().create_byte_writer("s/bytes", "upload") as writer:
        writer.write(data)
        writer.flush()
        writer.truncate_before(1_000)
    with new_process().create_byte_reader("s/bytes", follow=False) as reader:
        assert reader.tell() == 1_000
        assert reader.seek(-10, io.SEEK_END) == len(data) - 10
        assert reader.read() == data[-10:]
    film = data * 5  # 10 MiB
    with new_process().create_writer("s/films", large_events=True) as events:
        for event in (b"before", io.BytesIO(film), b"after"):
            events.write_event(event, "k")
    before, large, after = new_process().read("s/films")
    assert (before.data, large.is_large, large.data, after.data) == (
        *(b"before", True, film),
        b"after",
    )


def test_a_table_is_changed_on_conditions_folded_and_followed(new_process: Open) -> None:
    configuration = KeyValueTableConfiguration("string", partitions=2)
    new_process().create_key_value_table("s/table", configuration)
    with new_process().key_value_table("s/table") as table:
        for number in range(20):
            table.put(f"k{number:02}", b"%d" % number)
        table.remove("k07").result()
        table.update([TableInsert("n", b"1"), TableInsert("m", b"1")])
        entry = table.get("n")
        assert entry is not None
        table.update([TablePut("n", b"2", entry.version), TablePut("m", b"2")])
        with pytest.raises(BadKeyVersion):
            table.replace("n", b"3", entry.version)
    done = new_process().maintain(kinds=["folding"], scopes=["s"])
    assert done.failures == {}
    other = new_process().key_value_table("s/table")
    assert len(list(other.keys())) == 21
    assert [e and e.value for e in other.get_all(["n", "m", "k07"])] == [b"2", b"2", None]
    assert other.changelog.cut_at(other.at().version) == other.changelog.tail()


@pytest.mark.parametrize("point", ["joint.prepared", "joint.decided"])
def test_a_joint_transaction_of_a_dead_process_is_in_both_streams_or_in_none(
    new_process: Open, point: str
) -> None:
    a, b = names = f"s/{point}.a", f"s/{point}.b"
    create(new_process(), *names)
    writer = new_process().create_joint_writer(names, "teller")
    txn = writer.begin_transaction()
    for name in names:
        txn.write_event(name, b"1", "k")
    with at_failpoint(point, kill), pytest.raises(Killed):
        txn.commit()
    with (
        new_process().create_joint_writer(names, "teller") as restarted,
        restarted.begin_transaction() as following,
    ):
        for name in names:
            following.write_event(name, b"2", "k")
    expected = [b"1", b"2"] if point == "joint.decided" else [b"2"]
    assert payloads(new_process(), a) == payloads(new_process(), b) == expected


def test_input_is_processed_once_over_the_death_of_the_processor(new_process: Open) -> None:
    create(new_process(), "s/in", "s/out")
    with new_process().create_writer("s/in") as writer:
        for number in range(6):
            writer.write_event(b"%d" % number, "k")
    manager = new_process()
    manager.create_reader_group("s/group", ["s/in"], acknowledge="transaction")

    def process(name: str, count: int, point: str = "none") -> None:
        process = new_process()
        with process.create_joint_writer(["s/out"], "processor") as joint:
            reader = process.reader_group("s/group").create_reader(name)
            with at_failpoint(point, kill), joint.begin_transaction(readers=[reader]) as txn:
                for _ in range(count):
                    event = reader.read_next_event(timeout=10).event
                    assert event is not None
                    txn.write_event("s/out", event.data, "k")

    process("first", 2)
    manager.reader_group("s/group").reader_offline("first")
    with pytest.raises(Killed):
        process("second", 2, "joint.decided")
    manager.reader_group("s/group").reader_offline("second")
    process("third", 2)
    assert payloads(new_process(), "s/out") == [b"%d" % number for number in range(6)]


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MasterKeys]:
    monkeypatch.setenv(file_kms.VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv(KMS_VARIABLE, file_kms.FACTORY)
    set_kms(None)
    yield MasterKeys(tmp_path / "keys.json")
    set_kms(None)


def test_no_object_of_an_encrypted_stream_holds_its_events(
    backend: BackEnd, new_process: Open, keys: MasterKeys
) -> None:
    policy = EncryptionPolicy("first")
    new_process().create_stream("s/cards", StreamConfiguration(encryption=policy))
    with (
        new_process().create_transactional_writer("s/cards") as writer,
        writer.begin_transaction() as txn,
    ):
        txn.write_event(b"SECRET" * 1_000, "SECRETKEY")
    with new_process().create_writer("s/cards") as plain:
        plain.write_event(b"SECRET", "SECRETKEY").result()
    assert payloads(new_process(), "s/cards") == [b"SECRET" * 1_000, b"SECRET"]
    store = _roots[backend.name].open()
    chunks = [entry.key for entry in store.list("s/cards/") if entry.key.endswith(".parquet")]
    assert len(chunks) >= 2
    assert not [key for key in chunks if b"SECRET" in store.get(key)]
