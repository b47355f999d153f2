"""The requests that a real S3 server gets for each operation: they are its latency and its price.

The counts are those of the HTTP requests, at a proxy in front of the server.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pytest

from pravega_spark import (
    EventStreamWriter,
    KeyValueTableConfiguration,
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
    TablePut,
)
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.writing.append import append
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.values.limits import STATE_FILE_COMMITS
from tests.harness.fault_proxy import FaultProxy, start_proxy
from tests.harness.s3_server import S3Server
from tests.harness.small_streams import make_stream, staged
from tests.harness.tiers import sized

pytestmark = pytest.mark.s3

_names = itertools.count(1)
_KINDS = {
    "_pravega_spark.json": "marker",
    "/_pravega/latest.json": "hint",
    "/_pravega/state/": "state",
    "/table/_delta_log/": "folded log",
    "/table/data/": "folded rows",
    "/_delta_log/": "log",
    "/events/data/": "chunk",
    "/transactions/": "manifest",
}


class Requests:
    """The requests since the last look, each as its method and what it is about."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._seen: list[str] = []
        self.of_settings: list[str] = []
        proxy.decide = self._note

    def _note(self, method: str, path: str) -> None:
        url = urlsplit(path)
        about = unquote(url.path)
        query = parse_qs(url.query)
        if "list-type" in query:
            method, about = "LIST", f"{about}/{query['prefix'][0]}"
        scope = "settings " if "/_settings" in about else ""
        kind = next((kind for part, kind in _KINDS.items() if part in about), "")
        self._seen.append(f"{method} {scope}{kind}".rstrip())

    def take(self) -> list[str]:
        """Return the requests except those for the settings, which are made in the background."""
        seen, self._seen[:] = list(self._seen), []
        self.of_settings += [each for each in seen if "settings" in each]
        return [each for each in seen if "settings" not in each]


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    with start_proxy(s3.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def requests(proxy: FaultProxy) -> Requests:
    return Requests(proxy)


NewProcess = Callable[[], StreamManager]


@pytest.fixture
def new_process(s3: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> NewProcess:
    """Opens the root as a process does that has not used it yet: nothing is shared or known."""

    def open_root() -> StreamManager:
        monkeypatch.setenv("AWS_OF_TEST", str(next(_names)))  # another environment, another store
        options = {**s3.options, "endpoint_url": proxy.endpoint_url}
        return StreamManager(f"s3://{s3.bucket}/calls", storage_options=options)

    return open_root


@pytest.fixture
def manager(new_process: NewProcess) -> StreamManager:
    manager = new_process()
    manager.create_scope("nyc")
    return manager


@pytest.fixture
def stream(manager: StreamManager) -> str:
    return new_stream(manager)


def new_stream(manager: StreamManager) -> str:
    name = f"nyc/flights-{next(_names)}"
    assert manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(2)))
    finish_state_files()
    return name


def finish_state_files() -> None:
    """Wait for the background threads that write them."""
    for worker in checkpoint._workers.values():
        worker.submit(lambda: None).result()


@pytest.fixture
def writer(manager: StreamManager, stream: str, requests: Requests) -> Iterator[EventStreamWriter]:
    """A writer that has written once: its root is probed, and its connections are open."""
    with manager.create_writer(stream) as writer:
        writer.write_event(b"first", "UA").result()
        requests.take()
        yield writer


def test_lone_append_is_one_put_of_the_chunk_and_one_of_the_commit(
    writer: EventStreamWriter, requests: Requests
) -> None:
    for number in range(3):
        writer.write_event(b"%d" % number, "UA").result()
        assert requests.take() == ["PUT chunk", "PUT log"]
    writer.write_events([b"one", b"two"], "UA").result()
    assert requests.take() == ["PUT chunk", "PUT log"]
    assert requests.take() == []  # between appends, an open writer costs nothing


def test_state_file_reads_no_commit_that_its_writer_made(
    writer: EventStreamWriter, requests: Requests
) -> None:
    for number in range(STATE_FILE_COMMITS):
        writer.write_event(b"%d" % number, "UA").result()
    finish_state_files()
    seen = Counter(requests.take())
    assert (seen["PUT state"], seen["PUT hint"]) == (1, 1)
    assert seen.total() <= 2 * STATE_FILE_COMMITS + 8, seen


def test_batch_for_two_segments_is_a_put_for_each_and_one_of_the_commit(
    writer: EventStreamWriter, requests: Requests
) -> None:
    keys = [f"key {number}" for number in range(50)]
    writer.write_table(pa.table({"event": keys, "routing_key": keys})).result()
    assert requests.take() == ["PUT chunk", "PUT chunk", "PUT log"]


def test_look_for_new_events_is_one_get(
    manager: StreamManager, stream: str, writer: EventStreamWriter, requests: Requests
) -> None:
    for _ in range(3):
        manager.tail(stream)
        assert requests.take() == ["GET log"]


def test_follower_in_the_process_of_the_writer_reads_each_new_event_by_at_most_one_poll(
    manager: StreamManager, stream: str, writer: EventStreamWriter, requests: Requests
) -> None:
    followed = manager.follow(stream, manager.tail(stream), timeout=60.0)
    writer.write_event(b"0", "UA").result()
    next(followed)
    for number in range(1, 4):
        writer.write_event(b"%d" % number, "UA").result()
        requests.take()
        assert next(followed).data == b"%d" % number
        # This process made the commit, and has kept the chunk.
        assert requests.take() in ([], ["GET log"])
    followed.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("count", [1, 10])
def test_followers_of_another_process_read_no_chunk_twice(
    new_process: NewProcess,
    stream: str,
    writer: EventStreamWriter,
    requests: Requests,
    count: int,
) -> None:
    other = new_process()
    followed = [other.follow(stream, other.tail(stream), timeout=60.0) for _ in range(count)]
    writer.write_event(b"0", "UA").result()
    assert [next(each).data for each in followed] == [b"0"] * count
    for number in range(1, 4):
        writer.write_event(b"%d" % number, "UA").result()
        requests.take()
        assert [next(each).data for each in followed] == [b"%d" % number] * count
        seen = requests.take()
        assert seen.count("GET chunk") == 1
        assert len(seen) <= 4  # it may poll before the commit, and list what else is new
    for each in followed:
        each.close()  # type: ignore[attr-defined]


def test_ten_readers_of_a_backlog_fetch_each_chunk_once(
    new_process: NewProcess, stream: str, writer: EventStreamWriter, requests: Requests
) -> None:
    for number in range(20):
        writer.write_event(b"%d" % number, "UA").result()
    other = new_process()
    with ThreadPoolExecutor(10) as threads:
        found = [threads.submit(lambda: [*other.read(stream)]) for _ in range(10)]
        assert {len(each.result()) for each in found} == {21}
    assert Counter(requests.take())["GET chunk"] == 21


def test_writer_of_an_open_stream(
    manager: StreamManager, stream: str, writer: EventStreamWriter, requests: Requests
) -> None:
    requests.take()
    with manager.create_writer(stream):
        assert requests.take() == ["GET log"]
    with manager.create_writer(stream, writer_id="ingest") as second:
        assert requests.take() == ["GET log", "PUT log"]
        second.write_event(b"x", "UA").result()
        assert requests.take() == ["PUT chunk", "PUT log"]
    assert requests.take() == []


def test_transaction_is_two_commits_a_manifest_and_its_chunks(
    manager: StreamManager, stream: str, requests: Requests
) -> None:
    with manager.create_transactional_writer(stream, writer_id="rebooking") as writer:
        with writer.begin_transaction() as txn:
            txn.write_event(b"0", "UA")
        requests.take()
        with writer.begin_transaction() as txn:
            txn.write_event(b"1", "UA")
            txn.write_event(b"2", "UA")
        seen = Counter(requests.take())
        assert (seen["PUT log"], seen["PUT chunk"], seen["PUT manifest"]) == (2, 1, 1)
        assert seen.total() <= 6, seen


def test_first_writer_of_a_process(
    new_process: NewProcess, stream: str, writer: EventStreamWriter, requests: Requests
) -> None:
    process = new_process()
    requests.take()
    with process.create_writer(stream) as second:
        seen = requests.take()
        assert sorted(seen[:2]) == ["GET hint", "GET marker"]
        assert sorted(seen[2:]) == ["GET log", "GET log", "LIST log"]  # at the same time
        for number in range(2):
            second.write_event(b"%d" % number, "UA").result()
            assert requests.take() == ["PUT chunk", "PUT log"]
    assert requests.of_settings == [], "maintenance looks at settings after a minute"


def test_first_reader_of_a_process_and_of_its_next_stream(
    manager: StreamManager,
    new_process: NewProcess,
    stream: str,
    writer: EventStreamWriter,
    requests: Requests,
) -> None:
    following = new_stream(manager)
    for number in range(3):
        writer.write_event(b"%d" % number, "UA").result()
    process = new_process()
    requests.take()
    process.tail(stream)
    seen = Counter(requests.take())
    assert seen == {"GET marker": 1, "GET hint": 1, "LIST log": 1, "GET log": 5}
    process.tail(following)
    seen = Counter(requests.take())
    assert seen == {"GET hint": 1, "LIST log": 1, "GET log": 2}


@pytest.mark.long
def test_long_stream_opens_from_its_state_file(
    new_process: NewProcess, s3: S3Server, requests: Requests
) -> None:
    versions = sized(600, 5_000)
    stream = f"nyc/long-{next(_names)}"
    upload_long_log(open_store(f"s3://{s3.bucket}/calls", **s3.options), stream, versions)
    process = new_process()
    requests.take()
    assert [end for _, end in process.tail(stream)] == [versions]
    seen = Counter(requests.take())
    newer = versions % STATE_FILE_COMMITS
    assert (seen["GET marker"], seen["GET hint"], seen["GET state"]) == (1, 1, 1)
    assert (seen["LIST log"], seen["GET log"]) == (1, newer + 1)
    assert seen.total() == newer + 5


def upload_long_log(store: Store, name: str, versions: int) -> None:
    """Put the log of a stream with that many appends, without their chunks."""
    built = make_stream(MemoryStore(), name=name)
    (chunk,) = staged(built, [("UA", b"event")])
    for number in range(versions):
        append(
            built, 1, 0, [replace(chunk, path=chunk.path.replace(".parquet", f"{number}.parquet"))]
        )
        if (number + 1) % STATE_FILE_COMMITS == 0:
            checkpoint.maintain(built.log.reader, number + 1)
    log = [entry.key for entry in built.store.list("") if not entry.key.endswith(".parquet")]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.put(key, built.store.get(key)), log))


def test_gets_and_puts_of_a_key_value_table(
    manager: StreamManager, new_process: NewProcess, requests: Requests
) -> None:
    name = f"nyc/gates-{next(_names)}"
    configuration = KeyValueTableConfiguration("long", partitions=2, staleness="1 hour")
    manager.create_key_value_table(name, configuration)
    with manager.key_value_table(name) as table:
        table.update([TablePut(key, b"%d" % key * 1_000) for key in range(0, 512, 2)])
        log = table._stream
        assert fold(log, folded_table(log, configuration)).is_published
        finish_state_files()
        table.put(1, b"first").result()
        requests.take()
        for key in range(3, 9, 2):
            table.put(key, b"hot").result()
            assert requests.take() == ["PUT chunk", "PUT log"]
        entry = table.get(3)
        assert entry is not None
        requests.take()
        table.replace(3, b"new", entry.version)
        assert requests.take() == ["PUT chunk", "PUT log"]
        assert table.get(3).value == b"new"  # type: ignore[union-attr]
        assert requests.take() == []
        finish_state_files()

    table = new_process().key_value_table(name)
    assert table.get(5).value == b"hot"  # type: ignore[union-attr]
    assert "GET folded rows" not in requests.take()
    assert table.get(7).value == b"hot"  # type: ignore[union-attr]
    assert requests.take() == []
    assert table.get(500).value == b"500" * 1_000  # type: ignore[union-attr]
    assert requests.take() == ["GET folded rows"] * 2  # the footer, and the row group
    assert table.get(502) is not None
    assert requests.take() == ["GET folded rows"]
    assert table.get(501) is None
    assert requests.take() == ["GET folded rows"]
    assert table.get(5, fresh=True).value == b"hot"  # type: ignore[union-attr]
    assert requests.take() == ["GET log"]
