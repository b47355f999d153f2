"""Our own API: what each path of the page answers, and what it refuses."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.manager import root_of
from pravega_spark.serve import watch as serve_watch
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.watch import RootWatch, StreamWatch
from tests.harness.fake_runtime import SkippingRuntime
from tests.harness.lively_root import HOSTILE, make_lively_root
from tests.harness.web_world import BEARER, HIDING, TOKEN, new_manager, web_client

FLIGHTS = "/api/streams/nyc/flights"
PANELS = ("", "/segments", "/readers", "/retention", "/transactions", "/watermarks", "/storage")
LOG_PANELS = ("/history", "/events")


@pytest.fixture(scope="module")
def manager() -> StreamManager:
    manager = make_lively_root("memory://lively/page-api")
    runtime = root_of(manager).runtime
    assert isinstance(runtime, SkippingRuntime)
    runtime.stop()  # what came in the last minute did so for all tests, however long they take
    return manager


@pytest.fixture(scope="module")
def client(manager: StreamManager) -> Iterator[TestClient]:
    with web_client(manager) as opened:
        yield opened


def get(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


# -------------------------------------------------------------------------------------- the root


@pytest.mark.medium
def test_the_overview_counts_what_the_root_holds(client: TestClient) -> None:
    found = get(client, "/api/overview")
    assert found["scopes"] == ["nyc", "shop"]
    assert (found["streams"], found["reader_groups"], found["tables"]) == (6, 3, 2)
    assert (found["version"], found["allow_changes"]) == ("1.2.3", False)
    assert {run["kind"] for run in found["maintenance"]} >= {"retention", "scaling", "sweeping"}


def test_streams_have_rates_sizes_and_their_last_hour(
    client: TestClient, manager: StreamManager
) -> None:
    rows = {f"{r['scope']}/{r['stream']}": r for r in get(client, "/api/streams")["streams"]}
    info = manager.stream_info("nyc/flights")
    flights = rows["nyc/flights"]
    assert (flights["events"], flights["size_bytes"]) == (info.events, info.size_bytes)
    assert (flights["segments"], flights["epoch"]) == (len(info.segments), 6)
    assert flights["tags"] == ["aviation", "raw"]
    assert len(flights["series"]) == 60
    assert max(value for value in flights["series"] if value is not None) > 0.5
    assert rows["shop/retired"]["state"] == "SEALED"
    assert rows["nyc/weather"]["tags"] == [HOSTILE]


def test_streams_are_searched_by_name_scope_and_tag_and_paged(client: TestClient) -> None:
    def names(**query: Any) -> list[str]:
        return [row["stream"] for row in get(client, "/api/streams", **query)["streams"]]

    assert names(search="FLIGHT") == ["flights"]
    assert names(search="aviation") == ["flights"]
    assert names(tag="raw") == ["flights", "clicks"]
    assert names(scope="nyc") == ["flights", "weather"]
    assert names(search="nothing") == []
    first = get(client, "/api/streams", limit=4)
    assert (len(first["streams"]), first["total"]) == (4, 6)
    rest = get(client, "/api/streams", limit=4, after=first["next"])
    assert [row["stream"] for row in rest["streams"]] == ["payments", "retired"]
    assert rest["next"] is None


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "limit=x", f"search={'x' * 201}", "after=" + "x" * 601]
)
def test_queries_out_of_bounds_are_400(client: TestClient, query: str) -> None:
    for path in ("/api/streams", "/api/groups", "/api/tables"):
        assert client.get(f"{path}?{query}").status_code == 400


# --------------------------------------------------------------------------------------- a stream


def test_details_have_configuration_cuts_files_and_loads(
    client: TestClient, manager: StreamManager
) -> None:
    found = get(client, FLIGHTS)
    info = manager.stream_info("nyc/flights")
    assert (found["head"], found["tail"]) == (str(info.head), str(info.tail))
    assert found["files"] == info.files.files
    assert found["retention"] == "by consumption, 5.0 minutes to 7.0 days"
    assert found["scaling"] == {"type": "event_rate", "minimum": 2, "target": 100, "factor": 2}
    assert [s["segment"] for s in found["segments"]] == [str(s) for s in info.segments]
    assert sum(s["events_per_second"] for s in found["segments"]) > 0


def test_the_picture_has_each_segment_once_with_its_times_and_keys(
    client: TestClient, manager: StreamManager
) -> None:
    found = get(client, f"{FLIGHTS}/segments")
    epochs = manager.epochs("nyc/flights")
    assert [e["epoch"] for e in found["epochs"]] == [e.number for e in epochs]
    assert [e["splits"] for e in found["epochs"]] == [e.splits for e in epochs]
    boxes = {box["segment"]: box for box in found["segments"]}
    assert set(boxes) == {str(s) for epoch in epochs for s in epoch.segments}
    assert len(found["segments"]) == len(boxes)
    first, split = boxes["0#0"], boxes["2#1"]
    assert (first["start_ms"], first["end_ms"]) == (epochs[0].created_ms, epochs[1].created_ms)
    assert (split["low"], split["high"], split["start_ms"]) == (0.0, 0.25, epochs[1].created_ms)
    assert sum(box["events"] for box in boxes.values()) == manager.stream_info("nyc/flights").events
    active = {str(s) for s in manager.segments("nyc/flights")}
    assert {name for name, box in boxes.items() if box["is_active"]} == active
    assert {name for name, box in boxes.items() if box["end_ms"] is None} == active
    newest = get(client, f"{FLIGHTS}/segments", limit=2)
    assert (len(newest["epochs"]), newest["omitted_epochs"]) == (2, 5)


def test_readers_are_groups_and_subscribers_with_their_lag(
    client: TestClient, manager: StreamManager
) -> None:
    rows = {row["name"]: row for row in get(client, f"{FLIGHTS}/readers")["readers"]}
    assert set(rows) == {"nyc/archive", "nyc/dashboards", "nightly-export"}
    archive = rows["nyc/archive"]
    assert archive["lag_events"] == manager.reader_group("nyc/archive").lag().events > 0
    assert archive["retention"] == "automatic"
    assert archive["cut"].startswith("nyc/flights@1:")
    export = rows["nightly-export"]
    assert (export["kind"], export["lag_events"]) == (
        "subscriber",
        manager.stream_info("nyc/flights").events,
    )


def test_retention_says_what_stays_and_for_whom(client: TestClient) -> None:
    found = get(client, f"{FLIGHTS}/retention")
    assert found["goes_events"] == 0
    assert "subscriber nightly-export" in {row["holder"] for row in found["holders"]}


def test_transactions_watermarks_and_storage(client: TestClient, manager: StreamManager) -> None:
    found = get(client, "/api/streams/shop/payments/transactions", limit=3, offset=1)
    assert found["total_completed"] == 4
    assert [row["status"] for row in found["completed"]] == ["ABORTED", "COMMITTED", "COMMITTED"]
    marks = get(client, "/api/streams/shop/orders/watermarks")
    newest = manager.event_time("shop/orders").watermark()
    assert newest is not None
    assert marks["watermarks"][0]["lower_us"] == newest.lower_us
    assert [row["writer"] for row in marks["writers"]] == ["checkout"]
    stored = get(client, f"{FLIGHTS}/storage")
    total = manager.stream_storage("nyc/flights").total
    assert (stored["files"], stored["size_bytes"]) == (total.files, total.size_bytes)


def test_history_goes_back_page_by_page_to_the_creation(
    client: TestClient, manager: StreamManager
) -> None:
    before, operations, events, versions = None, [], 0, []
    while True:
        query: dict[str, Any] = {} if before is None else {"before": before}
        page = get(client, f"{FLIGHTS}/history", limit=25, **query)
        operations += [row["operation"] for row in page["commits"]]
        events += sum(r["events"] for r in page["commits"] if r["operation"] == "APPEND")
        versions += [(row["version"], row["first_version"]) for row in page["commits"]]
        before = page["next"]
        if before is None:
            break
    info = manager.stream_info("nyc/flights")
    assert operations[-1] == "CREATE STREAM"
    assert operations.count("SCALE STREAM") == 6
    assert events == info.events
    assert versions[0][0] == info.version
    assert all(low == high + 1 for (_, low), (high, _) in itertools.pairwise(versions))


@pytest.mark.parametrize("panel", [*PANELS, *LOG_PANELS])
def test_panels_of_a_stream_without_one_are_404(client: TestClient, panel: str) -> None:
    for stream in ("nyc/none", "none/flights", "nyc/_kv", f"nyc/{'x' * 300}"):
        answer = client.get(f"/api/streams/{stream}{panel}")
        assert answer.status_code == 404, answer.text
        assert answer.json()["error"]["type"] == "NoSuchStream"


@pytest.mark.parametrize(
    "path",
    [
        *("segments?limit=0", "history?limit=0", "history?before=-1", "history?before=x"),
        *("events?limit=101", "transactions?offset=-1", "transactions?limit=201"),
    ],
)
def test_panels_with_impossible_bounds_are_400(client: TestClient, path: str) -> None:
    assert client.get(f"{FLIGHTS}/{path}").status_code == 400


def test_answers_are_computed_once_for_a_version(
    client: TestClient, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = StreamManager.stream_info

    def counted(self: StreamManager, stream: str) -> Any:
        calls.append(stream)
        return original(self, stream)

    monkeypatch.setattr(StreamManager, "stream_info", counted)
    with web_client(manager) as fresh:
        for _ in range(5):
            assert fresh.get(FLIGHTS).status_code == 200
    assert calls == ["nyc/flights"]


# ------------------------------------------------------------------------------ groups and tables


def test_groups_are_listed_and_shown_by_segment(client: TestClient, manager: StreamManager) -> None:
    page = get(client, "/api/groups", limit=2)
    assert [row["group"] for row in page["groups"]] == ["archive", "dashboards"]
    assert get(client, "/api/groups", after=page["next"])["groups"][0]["group"] == "fulfilment"
    assert get(client, "/api/groups", search="full")["total"] == 0
    found = get(client, "/api/groups/nyc/archive")
    lag = manager.reader_group("nyc/archive").lag()
    assert found["row"]["lag_events"] == lag.events
    assert sum(row["lag"] for row in found["segments"]) == lag.events
    assert len(get(client, "/api/groups/nyc/archive", limit=1)["segments"]) == 1
    for path in ("nyc/none", "none/g", "nyc/a_b"):
        assert client.get(f"/api/groups/{path}").status_code == 404


def test_tables_are_listed_and_shown(client: TestClient) -> None:
    page = get(client, "/api/tables")
    assert [row["table"] for row in page["tables"]] == ["inventory", "sessions"]
    inventory = get(client, "/api/tables/shop/inventory")
    assert (inventory["unfolded_changes"], inventory["partitions"]) == (25, 2)
    assert get(client, "/api/tables/shop/sessions")["ttl"] == "1 hour"
    for path in ("shop/none", "none/t", "nyc/a_b"):
        assert client.get(f"/api/tables/{path}").status_code == 404


# ------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize(
    ("text", "status", "kind"), [("torn", 500, "CorruptLog"), ("{}", 503, "ForeignTable")]
)
def test_a_damaged_stream_is_a_row_and_hides_no_other(
    tmp_path: Path, text: str, status: int, kind: str
) -> None:
    manager = StreamManager(tmp_path / "made")
    manager.create_scope("nyc")
    for name in ("nyc/good", "nyc/torn"):
        manager.create_stream(name)
    shutil.copytree(tmp_path / "made", tmp_path / "copy")
    log = tmp_path / "copy" / "nyc" / "torn" / "events" / "_delta_log"
    (log / f"{0:020d}.json").write_text(text)
    with web_client(StreamManager(tmp_path / "copy")) as client:
        rows = get(client, "/api/streams")["streams"]
        states = [(row["stream"], row["state"]) for row in rows]
        assert states == [("good", "ACTIVE"), ("torn", "DAMAGED")]
        told = {key for key, value in rows[1].items() if value not in (None, [])}
        assert told == {"scope", "stream", "state", "problem"}, "nothing is claimed of it"
        assert "nyc/torn" in rows[1]["problem"]
        assert rows[0]["problem"] is None
        answer = client.get("/api/streams/nyc/torn")
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


def test_no_answer_about_damage_names_a_path_of_the_server(tmp_path: Path) -> None:
    made = tmp_path / "a root"
    manager = StreamManager(made)
    manager.create_scope("nyc")
    for name in ("nyc/chunk", "nyc/log"):
        manager.create_stream(name)
        with manager.create_writer(name) as writer:
            writer.write_event(b"x", routing_key="k")
    manager.create_reader_group("nyc/g", ["nyc/log"])
    shutil.copytree(made, tmp_path / "the copy")
    events = tmp_path / "the copy" / "nyc"
    (events / "log" / "events" / "_delta_log" / f"{0:020d}.json").write_text("torn")
    chunks = [c for c in (events / "chunk").rglob("*.parquet") if "_delta_log" not in str(c)]
    assert chunks
    for chunk in chunks:
        chunk.write_text("torn")
    with web_client(StreamManager(tmp_path / "the copy")) as client:
        paths = ("streams/nyc/log", "streams/nyc/chunk/events", "attention", "groups/nyc/g")
        texts = {path: client.get(f"/api/{path}").text for path in paths}
    assert "nyc/log/events: version 0" in texts["streams/nyc/log"]
    assert "nyc/chunk/events/" in texts["streams/nyc/chunk/events"]
    assert "stream_damaged" in texts["attention"]
    for path, text in texts.items():
        assert str(tmp_path) not in text.replace("%20", " "), (path, text)
        assert "the%20copy" not in text, (path, text)


def test_a_root_of_somewhat_more_streams_than_are_watched_finds_most_watches_again(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_watch, "MAX_WATCHES", 100)
    watch = RootWatch(ServedRoot(manager), 3.0)
    names = [f"nyc/s{number}" for number in range(103)]
    last: dict[str, StreamWatch] = {}
    found = 0
    for _ in range(10):
        for name in names:
            new = watch.stream(name)
            found += last.get(name) is new
            last[name] = new
    assert len(watch._watches) == 100
    assert found > 0.7 * 9 * len(names)


# ------------------------------------------------------------------------- the document, metrics


@pytest.mark.medium
def test_the_openapi_document_describes_every_operation_completely(manager: StreamManager) -> None:
    with web_client(manager, token=TOKEN, headers=BEARER) as client:
        found = get(client, "/api/openapi.json")
    operations = [
        (path, verb, operation)
        for path, verbs in found["paths"].items()
        for verb, operation in verbs.items()
    ]
    assert len(operations) > 40
    ids = [operation["operationId"] for _, _, operation in operations]
    assert len(set(ids)) == len(ids)
    known = found["components"]["schemas"]
    for path, verb, operation in operations:
        assert operation["summary"], path
        assert operation["tags"], path
        answers = operation["responses"]
        assert "422" not in answers, path
        assert "401" in answers, path
        assert ("403" in answers) == (verb != "get" or path in HIDING), path
        for status, answer in answers.items():
            assert answer["description"], (path, status)
            if status >= "400":
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ProblemAnswer"}, (path, status)
    text = json.dumps(found)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in known
    assert found["security"] == [{"token": []}]


def test_errors_have_the_body_that_the_document_says(client: TestClient) -> None:
    for path in ("/v1/scopes/none", "/api/streams?limit=0", "/api/streams/a/b", "/nothing"):
        body = client.get(path).json()
        assert set(body) == {"error"}
        assert set(body["error"]) == {"type", "message"}


@pytest.mark.medium
def test_metrics_are_prometheus_text_and_need_the_token(manager: StreamManager) -> None:
    with web_client(manager, token=TOKEN) as client:
        assert client.get("/metrics").status_code == 401
        answer = client.get("/metrics", headers=BEARER)
    assert answer.headers["Content-Type"].startswith("text/plain")
    events = manager.stream_info("shop/orders").events
    sample = r'pravega_stream_events\{scope="shop",stream="orders"\} ([0-9.e+]+)'
    (value,) = re.findall(sample, answer.text)
    assert float(value) == events


# ------------------------------------------------------------------------------------ whole counts


@pytest.mark.medium
def test_pages_of_lists_have_every_name_also_of_scopes_that_begin_alike() -> None:
    manager = new_manager()
    scopes = ("a", "a-b", "a.c")
    for scope in scopes:
        manager.create_scope(scope)
        for name in ("x", "y"):
            manager.create_stream(f"{scope}/{name}")
            manager.create_reader_group(f"{scope}/g{name}", [f"{scope}/{name}"])
            manager.create_key_value_table(f"{scope}/t{name}")
    with web_client(manager) as client:
        for what, field, prefix in (
            ("streams", "stream", ""),
            ("groups", "group", "g"),
            ("tables", "table", "t"),
        ):
            found, after = [], None
            while True:
                query = {"limit": 1} | ({} if after is None else {"after": after})
                page = get(client, f"/api/{what}", **query)
                found += [f"{row['scope']}/{row[field]}" for row in page[what]]
                after = page["next"]
                if after is None:
                    break
            assert found == sorted(f"{s}/{prefix}{n}" for s in scopes for n in ("x", "y"))


@pytest.mark.medium
def test_a_stream_that_was_truncated_whole_has_no_bytes() -> None:
    manager = new_manager()
    manager.create_stream("nyc/f")
    with manager.create_writer("nyc/f") as writer:
        writer.write_events([b"0123456789"] * 50, routing_key="a")
    manager.scale_stream("nyc/f", [0], [(0.0, 0.5), (0.5, 1.0)])
    with manager.create_writer("nyc/f") as writer:
        writer.write_events([b"0123456789"] * 20, routing_key="a")
    manager.truncate_stream("nyc/f", manager.tail("nyc/f"))
    with manager.create_writer("nyc/f") as writer:
        writer.write_event(b"12345", routing_key="a")
    manager.seal_stream("nyc/f")
    with web_client(manager) as client:
        assert get(client, "/api/streams")["streams"][0]["size_bytes"] == 5
        manager.truncate_stream("nyc/f", manager.tail("nyc/f"))
    with web_client(manager) as client:
        row = get(client, "/api/streams")["streams"][0]
        assert (row["events"], row["size_bytes"]) == (0, 0)


def test_a_segment_s_start_and_rate_are_the_same_in_every_window() -> None:
    manager = new_manager()
    manager.create_stream("nyc/f", StreamConfiguration(scaling=ScalingPolicy.fixed(2)))
    with manager.create_writer("nyc/f") as writer:
        writer.write_events([b"1"] * 20, routing_key="a")
    time.sleep(0.02)
    segment = manager.segments("nyc/f")[0]
    middle = (segment.key_range.low + segment.key_range.high) / 2
    ranges = [(segment.key_range.low, middle), (middle, segment.key_range.high)]
    manager.scale_stream("nyc/f", [segment], ranges)
    first, second = manager.epochs("nyc/f")
    with web_client(manager) as client:
        boxes = get(client, "/api/streams/nyc/f/segments", limit=1)["segments"]
        assert {b["segment"]: b["start_ms"] for b in boxes}["1#0"] == first.created_ms
        query = {"from": second.created_ms, "to": second.created_ms + 1}
        (event,) = get(client, "/v1/scopes/nyc/streams/f/scaling-events", **query)
        starts = {s["number"]: s["startTime"] for s in event["segments"]}
        assert starts == {1: first.created_ms, 2: second.created_ms, 3: second.created_ms}
