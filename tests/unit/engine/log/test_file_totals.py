"""The number and bytes of live files: read from a state file, or counted once where it has none."""

from __future__ import annotations

import json

import pyarrow as pa
import xxhash

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.stored_state import state_key
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.manager import manager_over
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.roots import KeptRoot
from tests.harness.small_streams import make_stream, write
from tests.harness.small_tables import FILE_BYTES, event_add, put, table_log
from tests.harness.spy_store import Spy


def filled(store: Spy) -> Log:
    """A table of 20 versions: each adds a file, some remove the one of three versions before."""
    log = table_log(store)
    for n in range(20):
        removes = [f"f{n - 3}"] if n % 3 == 0 and n else []
        put(log, str(n), [event_add(f"f{n}", 0, n, 1)], removes)
    return log


def totals(log: Log) -> FileTotals:
    other = Log(log.store, log.path, FakeRuntime())
    other.refresh()
    with other.files() as files:
        return files.totals()


LIVE = FileTotals(14, 14 * FILE_BYTES)


def test_totals_of_a_state_file_are_used_without_reading_older_layers() -> None:
    store = Spy()
    log = filled(store)
    assert totals(log) == LIVE
    maintain(log.reader, 5, checkpoint=True)
    maintain(log.reader, 12, checkpoint=False)
    maintain(log.reader, 16, checkpoint=False)
    store.calls.clear()

    assert totals(log) == LIVE
    read = [key for op, key in store.calls if op in ("get", "get_many")]
    assert not any(key.endswith(".parquet") or "/state/" + f"{12:020d}" in key for key in read)
    assert not any(op == "list" for op, _ in store.calls)


def written_by_an_earlier_release(data: bytes) -> bytes:
    """The state file without its totals."""
    first, _, rest = data.partition(b"\n")
    header = json.loads(first)
    plain = pa.decompress(rest, header["size"], codec="zstd", asbytes=True)
    state, _, lines = plain.partition(b"\n")
    record = json.loads(state)
    del record["files"], header["digest"]
    plain = to_json(record).encode() + b"\n" + lines
    rest = pa.compress(plain, codec="zstd", asbytes=True)
    header["size"] = len(plain)
    digest = xxhash.xxh3_128(to_json(header).encode())
    digest.update(rest)
    return to_json({**header, "digest": digest.hexdigest()}).encode() + b"\n" + rest


def test_state_file_of_an_earlier_release_is_counted_once_and_its_successor_has_totals() -> None:
    store = Spy()
    log = filled(store)
    for version, checkpoint in ((5, True), (12, False)):
        maintain(log.reader, version, checkpoint=checkpoint)
        key = state_key(log.path, version)
        store.put(key, written_by_an_earlier_release(store.get(key)))
    assert log.reader.file_totals(12) is None
    assert totals(log) == LIVE

    maintain(log.reader, 20, checkpoint=False)
    assert log.reader.file_totals(20) == LIVE
    with log.files() as files:
        assert files.totals() == LIVE  # of a process that was open all the time


def reads(store: Spy, key: str) -> int:
    return sum(called == key for operation, called in store.calls if operation.startswith("get"))


def test_log_that_is_opened_for_its_files_reads_each_commit_once() -> None:
    store = Spy()
    log = filled(store)
    for state in (0, 12):
        if state:
            maintain(log.reader, state)
        other = Log(store, log.path, FakeRuntime())
        other.expect_files()
        store.calls.clear()
        snapshot = other.refresh()
        assert snapshot is not None
        with other.files() as files:
            assert files.totals() == LIVE
            names = [add.path for add in files.all()]
        for version in range(state + 1, 21):
            assert reads(store, log.reader.key(version)) == 1, version
        with log.files() as files:
            assert sorted(names) == sorted(add.path for add in files.all())


def test_information_of_a_stream_reads_each_commit_once() -> None:
    runtime = FakeRuntime()
    store = Spy(memory(runtime))
    stream = make_stream(store, runtime)
    for n in range(30):
        write(stream, [("k", b"%d" % n)])
    handle = manager_over(store, runtime).stream("s/t")
    handle._root = KeptRoot(store, runtime)
    store.calls.clear()
    info = handle.info()
    assert (info.events, info.files.files) == (30, 30)
    for version in range(1, 31):
        assert reads(store, stream.log.reader.key(version)) == 1, version
