"""The events of a stream by the page's API: pages, positions, times, keys, searches, one event."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from pravega_spark import (
    EncryptionPolicy,
    ScalingPolicy,
    SegmentRange,
    StreamConfiguration,
    StreamManager,
    set_kms,
)
from pravega_spark.engine.key_management import KMS_VARIABLE
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.manager import manager_over, root_of
from pravega_spark.serve import events as serve_events
from tests.harness import file_kms
from tests.harness.counted_chunks import CountedChunks
from tests.harness.fake_runtime import SkippingRuntime
from tests.harness.file_kms import MasterKeys
from tests.harness.large_streams import lower_limits
from tests.harness.lively_root import HOSTILE, make_lively_root
from tests.harness.tiers import sized
from tests.harness.web_world import new_manager, web_client

FLIGHTS = "nyc/flights"
EVENTS = "/api/streams/nyc/f/events"


@pytest.fixture(scope="module")
def lively() -> StreamManager:
    return make_lively_root("memory://lively/events-api")


@pytest.fixture(scope="module")
def client(lively: StreamManager) -> Iterator[TestClient]:
    with web_client(lively) as opened:
        yield opened


def get(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: TestClient, path: str, **query: Any) -> tuple[int, str, str]:
    answer = client.get(path, params=query)
    error = answer.json()["error"]
    return answer.status_code, error["type"], error["message"]


def walk(client: TestClient, stream: str, order: str, **query: Any) -> list[Any]:
    """Return all pages in an order, from the end at which it begins."""
    toward = {"newest": "older", "oldest": "newer"}[order]
    query = {"at": {"newest": "tail", "oldest": "head"}[order], **query}
    pages = []
    while True:
        page = get(client, f"/api/streams/{stream}/events", order=order, **query)
        pages.append(page)
        if page["is_done"]:
            return pages
        assert query["at"] != page[toward]
        query["at"] = page[toward]
        assert len(pages) < 500


def pointers(pages: list[Any]) -> list[str]:
    return [event["pointer"] for page in pages for event in page["events"]]


def stream_of(events: int, segments: int = 1, **configuration: Any) -> StreamManager:
    """Return a manager with the stream nyc/f, whose events have chunks of their own."""
    manager = new_manager()
    scaling = ScalingPolicy.fixed(segments)
    manager.create_stream("nyc/f", StreamConfiguration(scaling, **configuration))
    with manager.create_writer("nyc/f", "w") as writer:
        for number in range(events):
            writer.write_event(f"event {number}", f"key-{number}").result()
    return manager


@pytest.fixture(scope="module")
def of_three() -> Iterator[TestClient]:
    """A client of a root whose stream nyc/f has three events; no test changes it."""
    with web_client(stream_of(3)) as opened:
        yield opened


# ------------------------------------------------------------------------------------------ pages


@pytest.mark.medium
@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_pages_have_each_event_once_through_splits_and_merges(
    client: TestClient, lively: StreamManager, order: str
) -> None:
    pages = walk(client, FLIGHTS, order, limit=37)
    every = [str(event.pointer) for event in lively.read(FLIGHTS)]
    assert Counter(pointers(pages)) == Counter(every)
    times = [event["timestamp_ms"] for page in pages for event in page["events"]]
    assert times == sorted(times, reverse=order == "newest")
    assert sum(page["looked"]["events"] for page in pages) == len(every)
    assert pages[0]["readable_events"] == len(every)


@pytest.mark.parametrize("order", ["newest", "oldest"])
def test_the_events_of_a_key_are_in_their_order_through_splits_and_merges(
    client: TestClient, lively: StreamManager, order: str
) -> None:
    written: dict[Any, list[str]] = {}
    for event in lively.read(FLIGHTS):
        written.setdefault(event.routing_key, []).append(str(event.pointer))
    for key, expected in written.items():
        found = pointers(walk(client, FLIGHTS, order, key=key, limit=25))
        assert found == (expected if order == "oldest" else expected[::-1]), key


@pytest.mark.parametrize("query", [{}, {"segment": "0#0"}, {"key": "key-1"}, {"contains": "event"}])
def test_the_oldest_events_are_those_of_the_head_without_a_position(
    of_three: TestClient, query: dict[str, str]
) -> None:
    oldest = get(of_three, EVENTS, order="oldest", **query)["events"]
    assert oldest == get(of_three, EVENTS, order="oldest", at="head", **query)["events"]
    assert oldest[0]["offset"] == (1 if "key" in query else 0)
    newest = get(of_three, EVENTS, **query)["events"]
    assert [one["offset"] for one in newest] == [one["offset"] for one in reversed(oldest)]


def test_a_position_is_a_cut_that_readers_take_and_pages_turn_around_at(
    client: TestClient, lively: StreamManager
) -> None:
    path = f"/api/streams/{FLIGHTS}/events"
    first = get(client, path, limit=30)
    second = get(client, path, order="newest", at=first["older"], limit=30)
    back = get(client, path, order="oldest", at=second["older"], limit=30)
    assert sorted(pointers([back])) == sorted(pointers([second]))
    assert get(client, path, order="newest", at=second["newer"], limit=30) == second
    after = {str(event.pointer) for event in lively.read(FLIGHTS, start=second["older"])}
    assert after == set(pointers([first, second]))
    assert first["newer"] == str(lively.tail(FLIGHTS))


def test_a_sealed_stream_is_walked_from_its_end_and_an_empty_one_is_empty() -> None:
    manager = stream_of(9, 2)
    manager.create_stream("nyc/empty")
    manager.seal_stream("nyc/f")
    with web_client(manager) as client:
        texts = [e["text"] for p in walk(client, "nyc/f", "newest", limit=4) for e in p["events"]]
        assert texts == [f"event {number}" for number in reversed(range(9))]
        page = get(client, "/api/streams/nyc/empty/events")
        assert (page["events"], page["is_done"], page["looked"]["events"]) == ([], True, 0)


def test_one_segment_and_an_offset_in_it(client: TestClient, lively: StreamManager) -> None:
    path = f"/api/streams/{FLIGHTS}/events"
    every = [e for e in lively.read(FLIGHTS) if str(e.pointer).find(":2#1=") > 0]
    offsets = [event.offset for event in every]
    pages = walk(client, FLIGHTS, "oldest", segment="2#1", limit=50)
    assert [e["offset"] for page in pages for e in page["events"]] == offsets
    page = get(client, path, at="2#1=5", limit=3)
    assert [(e["segment"], e["offset"]) for e in page["events"]] == [("2#1", n) for n in (5, 6, 7)]
    assert (page["older"], page["newer"]) == ("2#1=5", "2#1=8")
    page = get(client, path, at="2#1=5", order="newest", limit=3)
    assert [e["offset"] for e in page["events"]] == [4, 3, 2]


@pytest.mark.parametrize("segment", [None, "0#0"])
def test_from_a_time_on(segment: str | None) -> None:
    runtime = SkippingRuntime()
    manager = StreamManager(f"memory://events-api/{segment}-time", runtime=runtime)
    manager.create_scope("nyc")
    manager.create_stream("nyc/f", StreamConfiguration(ScalingPolicy.fixed(3)))
    with manager.create_writer("nyc/f") as writer:
        for number in range(60):
            runtime.skip(1)
            writer.write_event(f"{number}", f"k{number}")
            if number % 7 == 0:
                writer.flush()
    written = [e for e in manager.read("nyc/f") if segment is None or e.segment_id == 0]
    middle = written[len(written) // 2].timestamp_us // 1_000
    with web_client(manager) as client:
        query = {} if segment is None else {"segment": segment}
        page = get(client, EVENTS, time_ms=middle, limit=100, **query)
        expected = {e.data.decode() for e in written if e.timestamp_us >= middle * 1_000}
        assert {event["text"] for event in page["events"]} == expected
        before = get(client, EVENTS, at=page["older"], order="newest", limit=100, **query)
        assert {e["text"] for e in before["events"]} == {
            e.data.decode() for e in written
        } - expected
        assert get(client, EVENTS, time_ms=middle + 10**9)["events"] == []


def test_the_last_events_are_those_of_any_segment_and_are_computed_once_for_a_version(
    client: TestClient,
) -> None:
    first = get(client, f"/api/streams/{FLIGHTS}/events", limit=50)
    assert len(first["events"]) == 50
    assert first["order"] == "newest"
    assert get(client, f"/api/streams/{FLIGHTS}/events", limit=50) == first


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ({"at": "nonsense"}, "InvalidStreamCut"),
        ({"at": "0#0=999"}, "InvalidInput"),
        ({"at": "0#0=-1"}, "InvalidInput"),
        ({"at": "0#0=\u0661"}, "InvalidInput"),
        ({"at": "9#9=1"}, "NoSuchSegment"),
        ({"at": "nyc/other@1:0#0=1"}, "InvalidStreamCut"),
        ({"segment": "9#0"}, "NoSuchSegment"),
        ({"segment": "0"}, "InvalidInput"),
        ({"segment": "0#0", "key": "k"}, "InvalidInput"),
        ({"key": "k", "key_of": "0#0=1"}, "InvalidInput"),
        ({"key_of": "0#0=3"}, "NoSuchEvent"),
        ({"order": "sideways"}, "InvalidInput"),
        ({"at": "tail", "time_ms": 0}, "InvalidInput"),
        ({"limit": 101}, "InvalidInput"),
        ({"time_ms": "yesterday"}, "InvalidInput"),
    ],
)
def test_what_no_page_can_be_is_refused_with_its_reason(
    of_three: TestClient, query: dict[str, Any], kind: str
) -> None:
    status, found, _ = refused(of_three, EVENTS, **query)
    assert (status, found) == (404 if kind.startswith("NoSuch") else 400, kind)


def test_a_stream_of_very_many_segments_asks_for_a_segment_or_a_key() -> None:
    manager = stream_of(3, 501)
    with web_client(manager) as client:
        status, _, message = refused(client, EVENTS)
        assert (status, "choose a segment or a key" in message) == (400, True)
        assert len(get(client, EVENTS, key="key-1")["events"]) == 1


@pytest.mark.medium
def test_the_page_of_500_segments_fits_the_address() -> None:
    with web_client(stream_of(3, 500)) as client:
        page = get(client, EVENTS, limit=2)
        assert len(get(client, EVENTS, at=page["older"], order="newest")["events"]) == 1


def test_events_show_text_bytes_and_hostile_text_as_data(client: TestClient) -> None:
    (event,) = get(client, "/api/streams/nyc/weather/events")["events"]
    assert (event["text"], event["routing_key"], event["is_cut"]) == (HOSTILE, HOSTILE, False)
    clicks = get(client, "/api/streams/shop/clicks/events", limit=5)["events"]
    assert len(clicks) == 5
    assert all(row["text"] is None and row["base64"].startswith("AAH/") for row in clicks)


def test_last_events_are_the_newest_ones_of_any_segment() -> None:
    manager = new_manager()
    manager.create_stream("nyc/f", StreamConfiguration(scaling=ScalingPolicy.fixed(40)))
    with manager.create_writer("nyc/f") as writer:
        for number in range(300):
            writer.write_event(b"%d" % number, routing_key=f"k{number}").result()
    with web_client(manager) as client:
        newest = [str(n) for n in range(299, 249, -1)]
        assert [
            e["text"] for e in get(client, "/api/streams/nyc/f/events", limit=50)["events"]
        ] == (newest)
        ids = [s.segment_id for s in manager.segments("nyc/f")]
        manager.scale_stream("nyc/f", ids[:2], [(0.0, 0.01), (0.01, 0.02), (0.02, 0.05)])
        assert [
            e["text"] for e in get(client, "/api/streams/nyc/f/events", limit=50)["events"]
        ] == (newest)


# ------------------------------------------------------------------------------------------ search


def test_a_search_says_how_far_it_looked_and_goes_on_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve_events, "SEARCH_BUDGET", (8, 1 << 30, 60.0))
    monkeypatch.setattr(serve_events, "SEARCH_PART_EVENTS", 4)
    manager = stream_of(60, 2)
    written = {f"event {n}": n for n in range(60)}
    with web_client(manager) as client:
        for order in ("newest", "oldest"):
            pages = walk(client, "nyc/f", order, contains="7")
            texts = [event["text"] for page in pages for event in page["events"]]
            wanted = sorted((t for t in written if "7" in t), key=written.__getitem__)
            assert texts == (wanted if order == "oldest" else wanted[::-1])
            assert len(pages) > 5
            assert sum(page["looked"]["events"] for page in pages) == 60
            for page in pages:
                looked = page["looked"]
                assert looked["chunks"] <= 8 + 4
                assert looked["events"] == 0 or looked["from_ms"] <= looked["to_ms"]
        nothing = walk(client, "nyc/f", "oldest", contains="no such text")
        assert sum(len(page["events"]) for page in nothing) == 0


def test_a_search_ends_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_events, "SEARCH_BUDGET", (1_000, 1 << 30, 0.0))
    monkeypatch.setattr(serve_events, "SEARCH_PART_EVENTS", 4)
    with web_client(stream_of(12)) as client:
        page = get(client, EVENTS, contains="none", at="head")
        assert (page["looked"]["events"], page["is_done"]) == (4, False)
        assert len(walk(client, "nyc/f", "oldest", contains="none")) == 3


@pytest.fixture(scope="module")
def short_and_long() -> list[MemoryStore]:
    """The stream nyc/f, after few commits and after many."""
    stores = []
    for commits in (80, sized(320, 800)):
        stores.append(MemoryStore())
        manager = manager_over(stores[-1])
        manager.create_scope("nyc")
        manager.create_stream("nyc/f", StreamConfiguration(ScalingPolicy.fixed(5)))
        with manager.create_writer("nyc/f") as writer:
            for commit in range(commits):
                for number in range(20):
                    writer.write_event(f"event {commit}", f"key-{number}")
                writer.flush()
    return stores


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("query", [{"contains": "none"}, {}, {"key": "key-7"}])
def test_a_page_s_calls_and_bytes_do_not_grow_with_the_stream(
    monkeypatch: pytest.MonkeyPatch, short_and_long: list[MemoryStore], query: dict[str, str]
) -> None:
    monkeypatch.setattr(serve_events, "SEARCH_BUDGET", (64, 1 << 30, 600.0))

    def cost(store: MemoryStore) -> tuple[int, int]:
        counted = CountedChunks(store)
        with web_client(manager_over(counted)) as client:
            get(client, "/api/streams/nyc/f")
            counted.gets()
            page = get(client, EVENTS, at="tail", **query)
            assert page["looked"]["events"] > 0
            return counted.gets()

    few, many = map(cost, short_and_long)
    assert few[0] > 0
    assert many[0] <= few[0] + 4
    assert many[1] <= few[1] * 1.2


def test_a_key_reads_only_the_segments_that_it_hashes_to() -> None:
    store = MemoryStore()
    manager = manager_over(store)
    manager.create_scope("nyc")
    manager.create_stream("nyc/f", StreamConfiguration(ScalingPolicy.fixed(20)))
    with manager.create_writer("nyc/f") as writer:
        for number in range(400):
            writer.write_event(f"{number}", f"key-{number % 50}")
    (place,) = {e.segment_id for e in manager.read("nyc/f") if e.routing_key == "key-3"}
    counted = CountedChunks(store)
    with web_client(manager_over(counted)) as client:
        page = get(client, EVENTS, key="key-3", order="oldest", at="head")
        assert [event["text"] for event in page["events"]] == [str(n) for n in range(3, 400, 50)]
        assert {event["segment"] for event in page["events"]} == {f"{place}#0"}
        assert counted.gets()[0] == page["looked"]["chunks"]
        assert page["looked"]["chunks"] < 20, "each of twenty segments has a chunk or more"


# ------------------------------------------------------------------------------- what events hold

HOSTILE_PAYLOADS = {
    "right-to-left": "a\u202eb".encode(),
    "ansi": b"\x1b[31mred\x1b[0m",
    "nul": b"a\0b",
    "markup": HOSTILE.encode(),
}


@pytest.mark.parametrize("name", HOSTILE_PAYLOADS)
def test_text_that_would_move_a_line_is_text(name: str) -> None:
    manager = stream_of(0)
    payload = HOSTILE_PAYLOADS[name]
    with manager.create_writer("nyc/f") as writer:
        writer.write_event(payload, payload.decode())
    with web_client(manager) as client:
        (event,) = get(client, EVENTS)["events"]
        assert (event["text"], event["routing_key"]) == (payload.decode(), payload.decode())
        (same,) = get(client, EVENTS, key=payload.decode())["events"]
        assert same == event
        (found,) = get(client, EVENTS, contains=payload.decode()[-3:])["events"]
        assert found == event


def test_bytes_that_are_no_text_are_base64() -> None:
    manager = stream_of(0)
    with manager.create_writer("nyc/f") as writer:
        for payload in (b"\xff\xfe", b"\xed\xa0\x80", b"ok \xe4"):
            writer.write_event(payload)
    with web_client(manager) as client:
        rows = get(client, EVENTS)["events"]
        assert [row["text"] for row in rows] == [None, None, None]
        assert {row["base64"] for row in rows} == {"//4=", "7aCA", "b2sg5A=="}
        assert len(get(client, EVENTS, contains="ok")["events"]) == 1


def test_a_long_event_is_cut_at_a_character_and_opens_further() -> None:
    manager = stream_of(0)
    with manager.create_writer("nyc/f") as writer:
        writer.write_event("ä" * 3_000)
        writer.write_event("x" + "ä" * 100_000)
    with web_client(manager) as client:
        rows = get(client, EVENTS)["events"]
        assert [row["text"].strip("xä") for row in rows] == ["", ""]
        assert {row["is_cut"] for row in rows} == {True}
        assert {row["size_bytes"] for row in rows} == {6_000, 200_001}
        short = get(client, "/api/streams/nyc/f/event", at="0#0=0")["event"]
        assert (short["text"], short["is_cut"]) == ("ä" * 3_000, False)
        long = get(client, "/api/streams/nyc/f/event", at="0#0=1")["event"]
        assert (len(long["text"].encode()), long["is_cut"]) == (65_535, True)


def test_a_long_key_is_cut_and_leads_to_its_events_by_one_of_them() -> None:
    manager = stream_of(0, 4)
    key = "ключ" * 3_000
    with manager.create_writer("nyc/f") as writer:
        for number in range(3):
            writer.write_event(f"{number}", key)
            writer.write_event("other", f"k{number}")
    with web_client(manager) as client:
        event = next(e for e in get(client, EVENTS)["events"] if e["is_key_cut"])
        assert event["routing_key"] == key[:256]
        place = f"{event['segment']}={event['offset']}"
        found = get(client, EVENTS, key_of=place, at="head", order="oldest")["events"]
        assert [row["text"] for row in found] == ["0", "1", "2"]
        assert get(client, "/api/streams/nyc/f/event", at=place)["event"]["routing_key"] == key


def test_rows_of_a_typed_stream_have_cells_and_json() -> None:
    columns = pa.schema(
        [
            ("carrier", pa.string()),
            ("day", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("raw", pa.binary()),
            ("legs", pa.list_(pa.struct([("to", pa.string()), ("id", pa.int64())]))),
        ]
    )
    manager = stream_of(0, schema=columns)
    with manager.create_writer("nyc/f") as writer:
        legs = [{"to": "JFK", "id": 2**62 + 1}]
        row = {"carrier": "U\u202eA", "day": date(2026, 1, 2), "price": Decimal("1.50")}
        writer.write_event({**row, "raw": b"\xff", "legs": legs})
        writer.write_event({"carrier": "ä" * 3_000})
    with web_client(manager) as client:
        page = get(client, EVENTS, order="oldest", at="head")
        short, long = page["events"]
        assert page["columns"] == ["carrier", "day", "price", "raw", "legs"]
        nested = '[{"to": "JFK", "id": 4611686018427387905}]'
        assert short["cells"] == ["U\u202eA", "2026-01-02", "1.50", "/w==", nested]
        assert json.loads(short["text"])["legs"] == legs
        assert (short["is_cut"], long["is_cut"]) == (False, True)
        assert long["cells"] == ["ä" * 200 + "…", None, None, None, None]
        (found,) = get(client, EVENTS, contains="4611686018427387905")["events"]
        assert found == short
        answer = client.get("/api/streams/nyc/f/event/payload", params={"at": "0#0=0"})
        assert json.loads(answer.content)["price"] == "1.50"


def test_very_many_typed_columns_are_counted_and_not_all_shown() -> None:
    manager = stream_of(0, schema=pa.schema([(f"c{n}", pa.int64()) for n in range(80)]))
    with manager.create_writer("nyc/f") as writer:
        writer.write_event({f"c{n}": n for n in range(80)})
    with web_client(manager) as client:
        page = get(client, EVENTS)
        assert (len(page["columns"]), page["omitted_columns"]) == (50, 30)
        assert page["events"][0]["cells"] == [str(n) for n in range(50)]


def test_of_large_events_few_are_read_and_only_their_beginnings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lower_limits(monkeypatch)
    manager = stream_of(0)
    with manager.create_writer("nyc/f", large_events=True) as writer:
        for number in range(4):
            writer.write_event(b"%d" % number + b"x" * 5_000)
    fetched: list[tuple[str, int, int]] = []
    original = MemoryStore.get_range

    def get_range(self: MemoryStore, key: str, start: int, end: int) -> bytes:
        fetched.append((key, start, end))
        return original(self, key, start, end)

    monkeypatch.setattr(MemoryStore, "get_range", get_range)
    with web_client(manager) as client:
        rows = get(client, EVENTS)["events"]
        assert [row["size_bytes"] for row in rows] == [5_001] * 4
        assert sum(row["text"] is not None for row in rows) == 2
        assert {row["unread"] for row in rows if row["text"] is None} == {
            "a large event: open it to see its beginning"
        }
        windows = [key for key, _, _ in fetched if key.endswith(".event")]
        assert len(set(windows)) == 2
        assert sum(end - start for key, start, end in fetched if key.endswith(".event")) < 2 * 2_000
        opened = get(client, "/api/streams/nyc/f/event", at="0#0=0")
        assert opened["event"]["text"] == "0" + "x" * 5_000
        found = get(client, EVENTS, contains="3xxx")
        assert [row["offset"] for row in found["events"]] == [3]
        assert found["looked"]["partly_searched"] == 0


# -------------------------------------------------------------------------- what cannot be read


def test_positions_below_the_head_say_where_it_goes_on() -> None:
    manager = stream_of(10)
    middle = get_positions(manager)
    manager.truncate_stream("nyc/f", middle)
    with web_client(manager) as client:
        for query in (
            {"at": "0#0=2"},
            {"at": "nyc/f@1:0#0=2"},
            {"at": "0#0=2", "key": "key-2"},
            {"key_of": "0#0=2"},
        ):
            status, kind, message = refused(client, EVENTS, **query)
            assert (status, kind) == (410, "TruncatedData"), query
            assert f"{middle}" in message, query
        status, kind, _ = refused(client, "/api/streams/nyc/f/event", at="0#0=2")
        assert (status, kind) == (410, "TruncatedData")
        pages = walk(client, "nyc/f", "newest", limit=3)
        assert len(pointers(pages)) == 5
        assert pages[-1]["older"] == middle == str(manager.head("nyc/f"))
        assert len(pointers(walk(client, "nyc/f", "oldest"))) == 5


def get_positions(manager: StreamManager) -> str:
    with web_client(manager) as client:
        return str(get(client, EVENTS, limit=5)["older"])


def test_a_truncation_over_a_split_is_walked_to_the_head() -> None:
    manager = stream_of(10)
    manager.scale_stream("nyc/f", [0], [(0.0, 0.5), (0.5, 1.0)])
    manager.truncate_stream("nyc/f", manager.tail("nyc/f"))
    with manager.create_writer("nyc/f") as writer:
        for number in range(6):
            writer.write_event(f"late {number}", f"k{number}")
    with web_client(manager) as client:
        for order in ("newest", "oldest"):
            pages = walk(client, "nyc/f", order, limit=2)
            assert len(pointers(pages)) == 6
            assert pages[-1]["looked"]["events"] <= 2


def damage(manager: StreamManager, change: Callable[[Store, str], None], offset: int) -> None:
    """Change the file of the chunk that holds an event of the first segment."""
    log = root_of(manager).stream("nyc/f")
    rng = SegmentRange("nyc/f", life=1, segment_id=0, start=offset, end=offset + 1)
    (ref,) = log.chunks(rng)
    change(log.store, f"{log.path}/{ref.path}")


def spoil(store: Store, key: str) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 3] ^= 0xFF
    store.put(key, bytes(data))


@pytest.mark.parametrize(
    ("change", "kind"),
    [(spoil, "CorruptChunk"), (lambda store, key: store.delete([key]), "DataLoss")],
)
def test_a_chunk_that_cannot_be_read_is_said_and_the_rest_is_there(
    change: Callable[[Store, str], None], kind: str
) -> None:
    manager = stream_of(9)
    damage(manager, change, 4)
    queries: list[dict[str, str]] = [{}, {"contains": "event"}]
    with web_client(manager) as client:
        for order, query in itertools.product(("newest", "oldest"), queries):
            pages = walk(client, "nyc/f", order, limit=4, **query)
            offsets = [event["offset"] for page in pages for event in page["events"]]
            assert sorted(offsets) == [0, 1, 2, 3, 5, 6, 7, 8]
            (lost,) = [lost for page in pages for lost in page["lost"]]
            assert [lost[name] for name in ("segment", "start", "end")] == ["0#0", 4, 5]
            assert lost["type"] == kind
            assert "Restore" in lost["message"] or "restore" in lost["message"]
            looked = [(page["looked"]["events"], page["looked"]["lost"]) for page in pages]
            assert [sum(counts) for counts in zip(*looked, strict=True)] == [8, 1]
        assert refused(client, "/api/streams/nyc/f/event", at="0#0=4")[:2] == (500, kind)


def test_without_its_key_an_encrypted_event_has_a_place_and_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(file_kms.VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv(KMS_VARIABLE, file_kms.FACTORY)
    set_kms(None)
    try:
        keys = MasterKeys(tmp_path / "keys.json")
        manager = stream_of(3, encryption=EncryptionPolicy("first"))
        with web_client(manager) as client:
            assert get(client, EVENTS)["events"][0]["text"] == "event 2"
        keys.set(second="another")
        set_kms(file_kms.client)
        with web_client(manager) as client:
            rows = get(client, EVENTS)["events"]
            assert [row["offset"] for row in rows] == [2, 1, 0]
            assert {(row["text"], row["routing_key"], row["size_bytes"]) for row in rows} == {
                (None, None, None)
            }
            assert all("first" in row["unread"] for row in rows)
    finally:
        set_kms(None)


def test_an_open_transaction_is_not_shown_until_it_commits() -> None:
    manager = stream_of(1)
    with (
        web_client(manager) as client,
        manager.create_transactional_writer("nyc/f", "bank") as writer,
    ):
        transaction = writer.begin_transaction()
        transaction.write_event("paid", "k")
        transaction.flush()
        assert [row["text"] for row in get(client, EVENTS, at="tail")["events"]] == ["event 0"]
        assert get(client, EVENTS, contains="paid")["events"] == []
        transaction.commit()
        rows = get(client, EVENTS, at="tail")["events"]
        assert sorted(row["text"] for row in rows) == ["event 0", "paid"]
        (paid,) = get(client, EVENTS, contains="paid")["events"]
        details = get(client, "/api/streams/nyc/f/event", at=f"{paid['segment']}={paid['offset']}")
        assert details["transaction"] == transaction.id


# ------------------------------------------------------------------------------------- one event


def test_one_event_has_the_commit_that_wrote_it() -> None:
    manager = stream_of(40)
    with web_client(manager) as client:
        found = get(client, "/api/streams/nyc/f/event", at="0#0=3")
        assert (found["event"]["text"], found["event"]["routing_key"]) == ("event 3", "key-3")
        assert found["commit"]["writer"] == "w"
        assert found["commit"]["operation"] == "APPEND"
        assert 0 <= found["commit"]["time_ms"] - found["event"]["timestamp_ms"] < 60_000
        assert (found["life"], found["chunk_events"], found["transaction"]) == (1, 1, None)
        manager.compact_stream("nyc/f", include_newest=True)
        merged = get(client, "/api/streams/nyc/f/event", at="0#0=3")
        assert merged["event"] == found["event"]
        assert merged["chunk_events"] > 1
        assert (merged["commit"]["operation"], merged["commit"]["writer"]) != ("APPEND", "w")


@pytest.mark.medium
def test_a_payload_is_downloaded_as_it_was_written_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve_events, "DOWNLOAD_BYTES", 100)
    manager = stream_of(0)
    payload = bytes(range(100))
    with manager.create_writer("nyc/f") as writer:
        writer.write_event(payload)
        writer.write_event(payload + b"!")
    path = "/api/streams/nyc/f/event/payload"
    with web_client(manager) as client:
        answer = client.get(path, params={"at": "0#0=0"})
        assert (answer.status_code, answer.content) == (200, payload)
        assert answer.headers["Content-Type"] == "application/octet-stream"
        name = 'attachment; filename="nyc-f-0-0-0.bin"'
        assert answer.headers["Content-Disposition"] == name
        assert answer.headers["Cache-Control"] == "no-store"
        status, kind, message = refused(client, path, at="0#0=1")
        assert (status, kind) == (413, "TooLarge")
        assert "101 bytes" in message
        assert "at most 100" in message
        assert refused(client, path, at="0#0=2")[:2] == (404, "NoSuchEvent")
