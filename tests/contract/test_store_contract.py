"""The guarantees of every store, tested on every store."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pravega_spark.engine.store import PutOutcome, Store, ensure_probed, open_store, probe
from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.engine.store.root_url import RootUrl, filesystem_of
from pravega_spark.errors import InvalidInput, StoreRefused
from tests.contract.conftest import on_one_s3
from tests.harness.fake_runtime import NOW_MS, FakeRuntime
from tests.harness.fault_plans import Rule, Rules
from tests.harness.faulty_store import Fault, FaultyStore
from tests.harness.racers import CONTENT_BYTES, RACERS, content, keys
from tests.harness.store_backends import BackEnd

CONTENTS = [b"", b"x", b"one\ntwo\n\0\xff", bytes(range(256)) * 12_000]
BAD_KEYS = ["", "/a", "a/", "a//b", "a/../b", "./a", "..", "a/.", ".hidden", "a/.hidden", "a\0b"]


@on_one_s3
def test_every_store_implements_the_protocol(store: Store) -> None:
    assert isinstance(store, Store)


@pytest.mark.parametrize("data", CONTENTS, ids=len)
def test_created_object_is_read_back(store: Store, data: bytes) -> None:
    assert store.put_if_absent("a/b/c.json", data) is PutOutcome.CREATED
    assert store.get("a/b/c.json") == data
    assert store.open("a/b/c.json").read() == data


@pytest.mark.parametrize("data", CONTENTS, ids=len)
def test_put_object_is_read_back(store: Store, data: bytes) -> None:
    store.put("durable", data)
    store.put("hint", data, durable=False)
    assert store.get_many(["durable", "hint"]) == [data, data]


def test_objects_that_are_put_together_are_read_back(store: Store) -> None:
    store.put("new/c", b"before")
    objects = {f"new/{n}": data for n, data in zip("abcd", CONTENTS, strict=True)}
    store.put_many([*objects.items(), ("other/folder", b"x")])
    store.put_many([])
    assert store.get_many([*objects, "other/folder"]) == [*CONTENTS, b"x"]
    assert [entry.key for entry in store.list("")] == [*objects, "other/folder"]


def test_staged_objects_are_read_back_before_and_after_the_object_that_names_them(
    store: Store,
) -> None:
    staged = {f"data/{n}": data for n, data in zip("abcd", CONTENTS, strict=True)}
    store.stage([*staged.items()])
    store.stage([])
    assert store.get_many([*staged]) == CONTENTS
    others = ["data/of-another-process", "data/absent"]
    store.put(others[0], b"x")
    assert store.put_if_absent("log/1", b"1", staged=[*staged, *others]) is PutOutcome.CREATED
    assert store.put_if_absent("log/1", b"1", staged=[*staged]) is PutOutcome.EXISTS
    assert store.get_many([*staged]) == CONTENTS


def test_second_create_is_exists_and_changes_nothing(store: Store) -> None:
    assert store.put_if_absent("key", b"first") is PutOutcome.CREATED
    assert store.put_if_absent("key", b"second, and longer") is PutOutcome.EXISTS
    assert store.put_if_absent("key", b"first") is PutOutcome.EXISTS
    assert store.get("key") == b"first"


def test_create_after_put_exists_and_create_after_delete_succeeds(store: Store) -> None:
    store.put("key", b"put")
    assert store.put_if_absent("key", b"created") is PutOutcome.EXISTS
    store.delete(["key"])
    assert store.put_if_absent("key", b"created") is PutOutcome.CREATED
    assert store.get("key") == b"created"


@pytest.mark.medium
def test_race_has_one_winner_and_readers_see_all_its_bytes_or_none(
    backend: BackEnd, store: Store
) -> None:
    names = keys(backend.rounds)
    over = threading.Event()
    seen: dict[str, set[bytes]] = {name: set() for name in names}

    def watch() -> None:
        while not over.is_set():
            for name, data in zip(names, store.get_many(names), strict=True):
                if data is not None:
                    seen[name].add(data)

    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(watch)
        try:
            answers = backend.race(store, backend.rounds)
        finally:
            over.set()
        watcher.result()
    for number, name in enumerate(names):
        of_round = [answers[racer][number] for racer in range(RACERS)]
        assert of_round.count(PutOutcome.CREATED) == 1
        assert of_round.count(PutOutcome.EXISTS) == RACERS - 1
        final = store.get(name)
        assert final == content(of_round.index(PutOutcome.CREATED))
        assert len(final) == CONTENT_BYTES
        assert seen[name] <= {final}


@on_one_s3
def test_lost_response_is_unknown_and_the_object_exists(store: Store) -> None:
    faulty = FaultyStore(store, Rules(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1)))
    assert faulty.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
    assert faulty.get("log/1.json") == b"mine"
    assert faulty.put_if_absent("log/1.json", b"mine") is PutOutcome.EXISTS


@on_one_s3
def test_lost_request_is_unknown_and_can_be_retried(store: Store) -> None:
    faulty = FaultyStore(store, Rules(Rule(Fault.LOSE_REQUEST, "put_if_absent", nth=1)))
    assert faulty.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
    assert not faulty.exists("log/1.json")
    assert faulty.put_if_absent("log/1.json", b"mine") is PutOutcome.CREATED


@on_one_s3
def test_late_create_lands_only_on_a_free_name(store: Store) -> None:
    faulty = FaultyStore(store, Rules(Rule(Fault.DELAY, "put_if_absent", "*/[12].json")))
    assert faulty.put_if_absent("log/1.json", b"late") is PutOutcome.UNKNOWN
    assert faulty.put_if_absent("log/2.json", b"late") is PutOutcome.UNKNOWN
    assert store.put_if_absent("log/1.json", b"in time") is PutOutcome.CREATED
    assert faulty.deliver() == 2
    assert store.get_many(["log/1.json", "log/2.json"]) == [b"in time", b"late"]


def test_overwrite_is_atomic(store: Store) -> None:
    versions = {b"1" * 10, b"2" * 70_000, b"3", b"4" * 200_000}
    store.put("hint", min(versions))
    over = threading.Event()

    def read_on() -> set[bytes]:
        seen = set()
        while not over.is_set():
            seen.add(store.get("hint"))
            assert store.exists("hint")
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read_on) for _ in range(2)]
        try:
            for number in range(40):
                store.put("hint", sorted(versions)[number % 4], durable=number % 2 == 0)
        finally:
            over.set()
        for reader in readers:
            assert reader.result() <= versions


@on_one_s3
def test_put_takes_an_arrow_buffer(store: Store) -> None:
    store.put("chunk", pa.py_buffer(b"0123456789").slice(2, 5))
    assert store.get("chunk") == b"23456"


@pytest.mark.parametrize("data", [*CONTENTS, bytes(range(256)) * 100_000], ids=len)
def test_written_object_appears_at_the_end_of_its_block(store: Store, data: bytes) -> None:
    with store.writer("a/b/chunk") as file:
        for start in range(0, len(data), 3 << 20):
            file.write(data[start : start + (3 << 20)])
        assert file.tell() == len(data)
        assert not store.exists("a/b/chunk")
        assert store.list("") == []
    assert store.get("a/b/chunk") == data
    assert [(entry.key, entry.size) for entry in store.list("")] == [("a/b/chunk", len(data))]


@pytest.mark.parametrize("size", [10, 20 << 20], ids=["small", "several parts"])
@pytest.mark.parametrize("before", [None, b"old"])
def test_failed_block_leaves_the_key_as_it_was(
    store: Store, before: bytes | None, size: int
) -> None:
    if before is not None:
        store.put("a/chunk", before)

    def fail_after(size: int) -> None:
        with store.writer("a/chunk") as file:
            file.write(bytes(size))
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        fail_after(size)
    assert store.get_many(["a/chunk"]) == [before]
    assert store.discard_unfinished("", -60_000) == []
    store.put("a/chunk", b"next")
    assert store.get("a/chunk") == b"next"


def test_writer_overwrites_at_its_end(store: Store) -> None:
    store.put("chunk", b"old, and longer")
    with store.writer("chunk") as file:
        file.write(b"new")
        assert store.get("chunk") == b"old, and longer"
    assert store.get("chunk") == b"new"


@on_one_s3
def test_parquet_is_written_into_a_writer(store: Store) -> None:
    table = pa.table({"x": range(100_000), "y": [b"0123456789"] * 100_000})
    with store.writer("chunk.parquet") as file:
        pq.write_table(table, file, row_group_size=10_000)
        assert not file.closed
    with store.open("chunk.parquet") as source:
        assert pq.read_table(source).equals(table)


def test_missing_objects_and_folders(store: Store) -> None:
    store.put("folder/object", b"1")
    for key in ("absent", "folder", "folder/object/below", "folder/obj"):
        with pytest.raises(FileNotFoundError, match=key):
            store.get(key)
        with pytest.raises(FileNotFoundError, match=key):
            store.open(key)
        assert not store.exists(key)
    found = store.get_many(["absent", "folder/object", "folder", "folder/object"])
    assert found == [None, b"1", None, b"1"]
    assert store.get_many([]) == []
    assert store.list("absent") == store.list("folder/obj") == store.list("folder/object") == []
    assert store.folders("absent") == store.folders("folder") == []


def test_empty_root_lists_nothing(store: Store) -> None:
    assert store.list("") == []
    assert store.folders("") == []
    store.make_durable("")


def test_deleted_objects_do_not_exist_and_absent_ones_are_ignored(
    backend: BackEnd, store: Store
) -> None:
    for key in ("a/1", "a/2", "a/b/c/3", "d"):
        store.put(key, b"x")
    store.delete(["a/1", "absent", "a/b/c/3", "absent/too", "a/1"])
    store.delete([])
    assert [entry.key for entry in store.list("")] == ["a/2", "d"]
    assert not store.exists("a/1")
    if backend.prunes_folders:
        assert store.folders("a") == []
    store.delete(key for key in ("a/2", "d"))
    assert store.list("") == []
    if backend.prunes_folders:
        assert store.folders("") == []
    assert store.put_if_absent("a/b/c/3", b"again") is PutOutcome.CREATED


def test_list_is_recursive_sorted_and_limited_to_the_folder(store: Store) -> None:
    names = ["log/2", "log/10", "log/a/1", "log/a-b", "log/a.b", "log/a/b/c", "log2/1", "logs", "z"]
    for number, key in enumerate(names):
        store.put(key, b"x" * number)
    inside = sorted(key for key in names if key.startswith("log/"))
    for prefix in ("log", "log/"):
        entries = store.list(prefix)
        assert [entry.key for entry in entries] == inside
        assert [entry.size for entry in entries] == [names.index(key) for key in inside]
        assert all(isinstance(entry.modified_ms, int) for entry in entries)
    assert [entry.key for entry in store.list("")] == sorted(names)


@pytest.mark.parametrize("after", ["log/", "log/a", "log/a-b", "log/a/1", "log/a/x", "log/b", "z"])
def test_list_after_a_key_skips_keys_up_to_it(store: Store, after: str) -> None:
    names = ["log/1", "log/a-b", "log/a.b", "log/a/1", "log/a/2", "log/a/x/y", "log/b", "log/c"]
    for key in names:
        store.put(key, b"")
    expected = sorted(key for key in names if key > after)
    assert [entry.key for entry in store.list("log", after=after)] == expected
    below = sorted(key for key in names if key < after)
    assert [entry.key for entry in store.list("log", before=after)] == below
    between = sorted(key for key in names if after < key < "log/a/x")
    assert [e.key for e in store.list("log", after=after, before="log/a/x")] == between


def test_long_list_is_complete_and_continues_after_any_key(store: Store) -> None:
    names = [f"log/{number:020d}.json" for number in range(1_100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, b"{}", durable=False), names))
    assert [entry.key for entry in store.list("log")] == names
    assert [entry.key for entry in store.list("log", after=names[-3])] == names[-2:]
    assert store.list("log", after=names[-1]) == []
    found = store.list("log", after=names[5], before=names[9])
    assert [entry.key for entry in found] == names[6:9]
    store.delete(names)
    assert store.list("log") == []


def test_folders_lists_the_names_of_one_level(store: Store) -> None:
    for key in ("scope/stream/events/1", "scope/other/1", "scope/file", ".dotted/x/y", "_scope/1"):
        store.put(key, b"")
    assert store.folders("") == [".dotted", "_scope", "scope"]
    assert store.folders("scope") == store.folders("scope/") == ["other", "stream"]
    assert store.list(".dotted")[0].key == ".dotted/x/y"


@pytest.mark.parametrize(
    "name", ["a b", "key=v%2F1", "50%", "ü-日本-🙂", "a+b&c", "x~(1)!,;@$'", "C:", "-", "#1?2*[3]"]
)
def test_unusual_names_are_kept_unchanged(store: Store, name: str) -> None:
    key = f"data/{name}/{name}"
    assert store.put_if_absent(key, b"1") is PutOutcome.CREATED
    assert store.put_if_absent(key, b"2") is PutOutcome.EXISTS
    assert [entry.key for entry in store.list("data")] == [key]
    assert store.folders("data") == [name]
    assert store.get(key) == store.open(key).read() == b"1"
    store.delete([key])
    assert not store.exists(key)


@on_one_s3
@pytest.mark.parametrize("key", BAD_KEYS)
def test_invalid_key_is_refused(store: Store, key: str) -> None:
    for call in (store.get, store.open, store.exists):
        with pytest.raises(InvalidInput, match="is not a valid key"):
            call(key)
    with pytest.raises(InvalidInput):
        store.put_if_absent(key, b"")
    with pytest.raises(InvalidInput):
        store.put(key, b"")
    with pytest.raises(InvalidInput), store.writer(key):
        pass
    with pytest.raises(InvalidInput):
        store.delete([key])
    with pytest.raises(InvalidInput):
        store.list("a/../b")


def test_open_reads_ranges(store: Store) -> None:
    data = bytes(number % 251 for number in range(100_000))
    store.put("chunk", data)
    with store.open("chunk") as file:
        assert file.size() == len(data)
        assert file.read(3) == data[:3]
        file.seek(70_000)
        assert file.read(5) == data[70_000:70_005]
        assert file.tell() == 70_005
        file.seek(-4, 2)
        assert file.read(10) == data[-4:]
        assert file.read(10) == b""


def test_a_range_is_read_in_one_call_and_ends_where_the_object_does(store: Store) -> None:
    data = bytes(number % 251 for number in range(100_000))
    store.put("chunk", data)
    assert store.get_range("chunk", 70_000, 70_005) == data[70_000:70_005]
    assert store.get_range("chunk", 0, 100_000) == data
    assert store.get_range("chunk", 99_990, 200_000) == data[-10:]
    assert store.get_range("chunk", 100_000, 100_001) == b""
    assert store.get_range("chunk", 5, 5) == b""
    with pytest.raises(FileNotFoundError):
        store.get_range("absent", 0, 5)


@pytest.mark.medium
@on_one_s3
def test_large_parquet_file_is_read_by_column(store: Store) -> None:
    rows = 3_000_000
    table = pa.table({"n": pa.array(range(rows), pa.int64()), "f": pa.nulls(rows, pa.int32())})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    data = sink.getvalue()
    assert data.size > 16 << 20
    store.put("chunk.parquet", data)
    with store.open("chunk.parquet") as file:
        assert pq.read_table(file, columns=["f"]).equals(table.select(["f"]))
    with store.open("chunk.parquet") as file:
        assert pq.ParquetFile(file).read_row_group(1, columns=["n"])["n"][0].as_py() > 0
    assert store.get("chunk.parquet") == data.to_pybytes()


@pytest.mark.medium
@on_one_s3
def test_threads_share_a_store(store: Store) -> None:
    def work(number: int) -> bytes:
        assert (
            store.put_if_absent(f"t/{number % 10}/{number}", b"%d" % number) is PutOutcome.CREATED
        )
        store.put(f"own/{number}", b"%d" % number)
        return store.get(f"t/{number % 10}/{number}")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(100))) == [b"%d" % number for number in range(100)]
    assert len(store.list("t")) == 100


def test_same_root_is_the_same_store_even_pickled(backend: BackEnd, store: Store) -> None:
    assert backend.open() is store
    assert pickle.loads(pickle.dumps(store)) is store


def test_url_leads_to_the_same_objects(backend: BackEnd, store: Store) -> None:
    store.put("key", b"here")
    assert open_store(store.url, **backend.options).get("key") == b"here"
    again = RootUrl(store.url + "/", filesystem=filesystem_of(store.url))
    assert open_store(again, **backend.options).get("key") == b"here"
    assert "secret" not in repr(store)


@on_one_s3
def test_make_durable_accepts_any_folder(store: Store) -> None:
    store.put("log/1", b"", durable=False)
    for prefix in ("log", "log/", "", "absent", "absent/deep"):
        store.make_durable(prefix)


def test_probe_accepts_the_store_and_leaves_nothing_behind(store: Store) -> None:
    probe(store)
    assert store.list("") == []


@on_one_s3
def test_root_is_probed_once_and_later_opened_with_one_read(store: Store) -> None:
    calls = []
    counted = FaultyStore(store, lambda operation, key: calls.append((operation, key)))
    ensure_probed(counted, FakeRuntime())
    assert ("put_if_absent", MARKER_KEY) in calls
    assert str(NOW_MS).encode() in store.get(MARKER_KEY)
    calls.clear()
    ensure_probed(counted)
    assert calls == [("get", MARKER_KEY)]
    assert [entry.key for entry in store.list("")] == [MARKER_KEY]


@on_one_s3
@pytest.mark.parametrize(
    "marker",
    [
        b'{"format": 99}',
        b"",
        b"[]",
        b'{"other": 1}',
        b"\xff",
        b"[" * 5_000,
        b'{"format": true}',
        b'{"format": false, "backup": 1}',
        b'{"format": 1, "storage": 1}',
    ],
    ids=lambda marker: repr(marker[:40]),
)
def test_root_of_an_unknown_format_is_left_alone(store: Store, marker: bytes) -> None:
    store.put(MARKER_KEY, marker)
    with pytest.raises(StoreRefused, match="format 99" if b"99" in marker else MARKER_KEY):
        ensure_probed(store)
    assert store.get(MARKER_KEY) == marker


@on_one_s3
def test_time_of_the_storages_clock_leaves_nothing_behind(store: Store) -> None:
    store.put("before", b"x")
    before = store.modified_ms("before")
    now_ms = store.time_ms()
    store.put("after", b"x")
    after = store.modified_ms("after")
    assert before is not None
    assert after is not None
    # Dates may be rounded: an object's up to a second late, the time a second (a tick) early.
    assert before - 2_000 <= now_ms <= after + 20
    assert [entry.key for entry in store.list("")] == ["after", "before"]


def test_absent_object_has_no_date(store: Store) -> None:
    assert store.modified_ms("absent") is None
    assert store.modified_ms("absent/deep") is None


@on_one_s3
def test_date_of_a_response_is_known_without_a_call(backend: BackEnd, store: Store) -> None:
    store.put("key", b"x")
    dated = store.response_date
    if backend.name == "s3":
        assert dated is not None
        assert abs(dated.storage_ms - dated.wall_ms) < 60_000
        assert abs(dated.storage_ms - store.time_ms()) < 60_000
