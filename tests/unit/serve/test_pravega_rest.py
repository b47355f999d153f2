"""Pravega's REST API: its paths, JSON and statuses, as its admin clients expect them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

import pravega_spark as pravega
from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration, StreamManager
from tests.harness.web_world import changing_client, new_manager, web_client

FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}
PATHS = {
    "/v1/scopes": {"get": "listScopes", "post": "createScope"},
    "/v1/scopes/{}": {"get": "getScope", "delete": "deleteScope"},
    "/v1/scopes/{}/streams": {"get": "listStreams", "post": "createStream"},
    "/v1/scopes/{}/streams/{}": {
        "get": "getStream",
        "put": "updateStream",
        "delete": "deleteStream",
    },
    "/v1/scopes/{}/streams/{}/state": {"put": "updateStreamState"},
    "/v1/scopes/{}/streams/{}/scaling-events": {"get": "getScalingEvents"},
    "/v1/scopes/{}/readergroups": {"get": "listReaderGroups"},
    "/v1/scopes/{}/readergroups/{}": {"get": "getReaderGroup", "delete": "deleteReaderGroup"},
    "/v1/health": {"get": "getHealth"},
    "/v1/health/readiness": {"get": "getReadiness"},
    "/v1/health/liveness": {"get": "getLiveness"},
    "/v1/health/details": {"get": "getDetails"},
    "/v1/health/status": {"get": "getStatus"},
    "/v1/health/{}": {"get": "getContributorHealth"},
    "/v1/health/readiness/{}": {"get": "getContributorReadiness"},
    "/v1/health/liveness/{}": {"get": "getContributorLiveness"},
    "/v1/health/details/{}": {"get": "getContributorDetails"},
    "/v1/health/status/{}": {"get": "getContributorStatus"},
}
"""The paths and operation ids of Pravega's ``Controller.yaml``."""


@pytest.fixture
def manager() -> StreamManager:
    return new_manager()


@pytest.fixture
def client(manager: StreamManager) -> Iterator[TestClient]:
    with changing_client(manager) as opened:
        yield opened


@pytest.mark.medium
def test_every_operation_of_pravega_is_there_under_its_path_and_id(client: TestClient) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    found: dict[str, dict[str, str]] = {}
    for path, verbs in paths.items():
        if path.startswith("/v1/"):
            plain = "/".join("{}" if part.startswith("{") else part for part in path.split("/"))
            ids = {verb: operation["operationId"] for verb, operation in verbs.items()}
            found.setdefault(plain, {}).update(ids)
    assert found == PATHS


def test_ping_answers_200_with_nothing(client: TestClient) -> None:
    answer = client.get("/ping")
    assert (answer.status_code, answer.content) == (200, b"")


# ---------------------------------------------------------------------------------------- scopes


def test_scopes_are_created_listed_shown_and_deleted(client: TestClient) -> None:
    created = client.post("/v1/scopes", json={"scopeName": "new"})
    assert (created.status_code, created.json()) == (201, {"scopeName": "new"})
    assert client.post("/v1/scopes", json={"scopeName": "new"}).status_code == 409
    listed = {"scopes": [{"scopeName": "new"}, {"scopeName": "nyc"}]}
    assert client.get("/v1/scopes").json() == listed
    assert client.get("/v1/scopes/").json() == listed  # as Pravega's command line asks
    assert client.get("/v1/scopes/new").json() == {"scopeName": "new"}
    deleted = client.delete("/v1/scopes/new")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert client.delete("/v1/scopes/new").status_code == 404
    assert client.get("/v1/scopes/new").status_code == 404


def test_a_scope_without_a_usable_name_is_400(client: TestClient) -> None:
    bodies: list[Any] = [{}, {"scopeName": "a_b"}, {"scopeName": 3}, [], "x"]
    for body in bodies:
        answer = client.post("/v1/scopes", json=body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["message"]


def test_a_scope_that_is_not_empty_is_412(client: TestClient, manager: StreamManager) -> None:
    manager.create_stream("nyc/flights")
    assert client.delete("/v1/scopes/nyc").status_code == 412
    assert manager.scope_exists("nyc")


# --------------------------------------------------------------------------------------- streams


def test_a_stream_is_created_shown_updated_sealed_and_deleted(
    client: TestClient, manager: StreamManager
) -> None:
    body = {
        "streamName": "flights",
        "scalingPolicy": {
            "type": "BY_RATE_IN_EVENTS_PER_SEC",
            "targetRate": 100,
            "scaleFactor": 2,
            "minSegments": 3,
        },
        "retentionPolicy": {"type": "LIMITED_DAYS", "value": 2},
        "streamTags": ["b", "a"],
        "rolloverSizeBytes": 1024,
        "unknown": "ignored",
    }
    shown = {
        "scopeName": "nyc",
        "streamName": "flights",
        "scalingPolicy": body["scalingPolicy"],
        "retentionPolicy": {
            "type": "LIMITED_DAYS",
            "value": 2,
            "timeBasedRetention": {"days": 2, "hours": 0, "minutes": 0},
            "byConsumption": False,
        },
        "tags": ["a", "b"],
        "timestampAggregationTimeout": 0,
        "rolloverSizeBytes": 0,
    }
    created = client.post("/v1/scopes/nyc/streams", json=body)
    assert (created.status_code, created.json()) == (201, shown)
    assert client.post("/v1/scopes/nyc/streams", json=body).status_code == 409
    url = "/v1/scopes/nyc/streams/flights"
    assert client.get(url).json() == shown
    configuration = manager.stream_info("nyc/flights").configuration
    assert configuration.scaling == ScalingPolicy.by_event_rate(100, 2, 3)
    assert configuration.retention == RetentionPolicy.by_time("2 days")

    updated = client.put(url, json={"scalingPolicy": FIXED, "streamTags": ["c"]})
    assert updated.status_code == 200
    assert "retentionPolicy" not in updated.json()
    assert manager.tags("nyc/flights") == {"c"}
    assert manager.stream_info("nyc/flights").configuration.retention is None

    assert client.delete(url).status_code == 412
    sealed = client.put(f"{url}/state", json={"streamState": "SEALED"})
    assert (sealed.status_code, sealed.json()) == (200, {"streamState": "SEALED"})
    assert manager.stream_info("nyc/flights").state == "SEALED"
    assert client.delete(url).status_code == 204
    assert client.delete(url).status_code == 404
    assert client.get(url).status_code == 404


def test_an_update_keeps_what_pravega_does_not_know(
    client: TestClient, manager: StreamManager
) -> None:
    manager.create_stream("nyc/flights", StreamConfiguration(settings={"grace": "2 hours"}))
    url = "/v1/scopes/nyc/streams/flights"
    assert client.put(url, json={"scalingPolicy": FIXED}).status_code == 200
    assert manager.stream_settings("nyc/flights").text("grace") == "2 hours"
    assert len(manager.segments("nyc/flights")) == 2


def test_the_timeout_of_timestamps_is_the_streams_setting_and_0_is_not_given(
    client: TestClient, manager: StreamManager
) -> None:
    url, name = "/v1/scopes/nyc/streams/flights", "timestamp_aggregation_timeout"
    field = "timestampAggregationTimeout"
    body = {"streamName": "flights", "scalingPolicy": FIXED, field: 90_000}
    created = client.post("/v1/scopes/nyc/streams", json=body)
    assert (created.status_code, created.json()[field]) == (201, 90_000)
    assert manager.stream_settings("nyc/flights").text(name) == "90 s"

    manager.update_stream("nyc/flights", settings={"grace": "2 hours"})
    for given, holds in ((0, 90_000), (1, 1), (120_000, 120_000)):
        answer = client.put(url, json={"scalingPolicy": FIXED, field: given})
        assert (answer.status_code, answer.json()[field]) == (200, holds)
        settings = manager.stream_settings("nyc/flights")
        assert (settings.value(name), settings.text("grace")) == (holds, "2 hours")
    assert client.put(url, json={"scalingPolicy": FIXED}).json()[field] == 120_000

    beyond = client.put(url, json={"scalingPolicy": FIXED, field: 1 << 60})
    assert beyond.status_code == 400
    assert name in beyond.json()["error"]["message"]
    manager.update_stream("nyc/flights", settings={name: None})
    assert client.get(url).json()[field] == 0


def test_what_is_read_can_be_written_back_and_changes_nothing(
    client: TestClient, manager: StreamManager
) -> None:
    policies = [
        None,
        RetentionPolicy.by_time("90 minutes"),
        RetentionPolicy.by_time("3 days", "7 days"),
        RetentionPolicy.by_size("10 MiB", "20 MiB"),
        RetentionPolicy.by_consumption(),
        RetentionPolicy.by_consumption("1 hour", "26 hours"),
        RetentionPolicy.by_consumption(maximum="2 MiB"),
    ]
    settings = {"timestamp_aggregation_timeout": "90 s"}
    for number, policy in enumerate(policies):
        name = f"nyc/flights{number}"
        manager.create_stream(
            name, StreamConfiguration(retention=policy, tags={"x"}, settings=settings)
        )
        before = manager.stream_info(name)
        url = f"/v1/scopes/nyc/streams/flights{number}"
        body = client.get(url).json()
        body["streamTags"] = body.pop("tags")
        assert client.put(url, json=body).status_code == 200
        after = manager.stream_info(name)
        assert after.configuration == before.configuration, policy
        assert after.version == before.version


def test_a_stream_that_cannot_be_made_is_400_and_does_not_exist(
    client: TestClient, manager: StreamManager
) -> None:
    bodies: list[dict[str, Any]] = [
        {"streamName": "ok"},
        {"streamName": "_RGgroup", "scalingPolicy": FIXED},
        {"streamName": "a/b", "scalingPolicy": FIXED},
        {"streamName": "ok", "scalingPolicy": {"type": "BY_MOON"}},
        {"streamName": "ok", "scalingPolicy": {"type": "BY_RATE_IN_EVENTS_PER_SEC"}},
        {"streamName": "ok", "scalingPolicy": {**FIXED, "minSegments": 0}},
        {"streamName": "ok", "scalingPolicy": FIXED, "retentionPolicy": {"value": 1}},
        {"streamName": "ok", "scalingPolicy": FIXED, "retentionPolicy": {"type": "LIMITED_DAYS"}},
        {"streamName": "ok", "scalingPolicy": FIXED, "streamTags": ["x" * 257]},
    ]
    for body in bodies:
        answer = client.post("/v1/scopes/nyc/streams", json=body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["message"]
    assert manager.list_streams("nyc") == []


def test_streams_of_a_scope_without_one_are_404(client: TestClient) -> None:
    body = {"streamName": "x", "scalingPolicy": FIXED}
    assert client.post("/v1/scopes/none/streams", json=body).status_code == 404
    for path in ("streams", "streams/x", "readergroups", "readergroups/g"):
        assert client.get(f"/v1/scopes/none/{path}").status_code == 404
    assert client.get("/v1/scopes/nyc/streams/a_b").status_code == 404
    assert client.put("/v1/scopes/nyc/streams/x", json=body).status_code == 404
    state = {"streamState": "SEALED"}
    assert client.put("/v1/scopes/nyc/streams/x/state", json=state).status_code == 404


def test_only_sealed_is_a_state_to_set(client: TestClient, manager: StreamManager) -> None:
    manager.create_stream("nyc/x")
    answer = client.put("/v1/scopes/nyc/streams/x/state", json={"streamState": "ACTIVE"})
    assert answer.status_code == 400
    assert manager.stream_info("nyc/x").state == "ACTIVE"


@pytest.mark.medium
def test_lists_are_filtered_by_tag_and_to_internal_streams(
    client: TestClient, manager: StreamManager
) -> None:
    manager.create_stream("nyc/a", StreamConfiguration(tags={"raw"}))
    manager.create_stream("nyc/b")
    manager.create_key_value_table("nyc/t")

    def names(**query: str) -> list[str]:
        found = client.get("/v1/scopes/nyc/streams", params=query).json()["streams"]
        return [stream["streamName"] for stream in found]

    assert names() == ["a", "b"]
    assert names(filter_type="tag", filter_value="raw") == ["a"]
    assert names(filter_type="tag", filter_value="other") == []
    assert names(filter_type="showInternalStreams") == ["_kv_tables/t"]


# -------------------------------------------------------------------------------- scaling events


def test_scaling_events_have_one_before_the_interval_as_pravegas_server_has(
    client: TestClient, manager: StreamManager
) -> None:
    manager.create_stream("nyc/f")
    first = manager.epochs("nyc/f")[0].created_ms
    manager.scale_stream("nyc/f", seal=[0], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
    second = manager.epochs("nyc/f")[1].created_ms
    url = "/v1/scopes/nyc/streams/f/scaling-events"
    everything = client.get(url, params={"from": 0, "to": second}).json()
    assert [event["timestamp"] for event in everything] == [first, second]
    last = everything[1]
    assert (last["splits"], last["merges"]) == (1, 0)
    assert last["segments"] == last["segmentList"]
    ranges = [(s["number"], s["epoch"], s["keyStart"], s["keyEnd"]) for s in last["segments"]]
    assert ranges == [(1, 1, 0.0, 0.5), (2, 1, 0.5, 1.0)]
    assert {s["start"] for s in last["segments"]} == {s["startTime"] for s in last["segments"]}
    later = client.get(url, params={"from": second + 1, "to": second + 2}).json()
    assert [event["timestamp"] for event in later] == [second]
    assert client.get(url, params={"from": 0, "to": first - 1}).json() == []


def test_scaling_events_of_an_impossible_interval_are_400(
    client: TestClient, manager: StreamManager
) -> None:
    manager.create_stream("nyc/f")
    url = "/v1/scopes/nyc/streams/f/scaling-events"
    for query in (
        *("", "from=1", "to=1", "from=2&to=1", "from=-1&to=2", "from=x&to=2"),
        f"from=0&to={2**70}",
    ):
        assert client.get(f"{url}?{query}").status_code == 400, query


# --------------------------------------------------------------------------------- reader groups


def test_reader_groups_are_listed_shown_and_deleted(
    client: TestClient, manager: StreamManager
) -> None:
    manager.create_scope("other")
    for name in ("nyc/f", "other/f"):
        manager.create_stream(name)
    group = manager.create_reader_group("nyc/g", ["nyc/f", "other/f"])
    with group.create_reader("reader-1"):
        assert client.get("/v1/scopes/nyc/readergroups").json() == {
            "readerGroups": [{"readerGroupName": "g"}]
        }
        assert client.get("/v1/scopes/nyc/readergroups/g").json() == {
            "scopeName": "nyc",
            "readerGroupName": "g",
            "streamList": ["f", "other/f"],
            "onlineReaderIds": ["reader-1"],
        }
    assert client.delete("/v1/scopes/nyc/readergroups/g").status_code == 204
    assert client.delete("/v1/scopes/nyc/readergroups/g").status_code == 404
    assert client.get("/v1/scopes/nyc/readergroups").json() == {"readerGroups": []}
    assert client.get("/v1/scopes/nyc/readergroups/a_b").status_code == 404


# ---------------------------------------------------------------------------------------- health


def test_health_has_pravegas_shape_and_the_contributors(client: TestClient) -> None:
    found = client.get("/v1/health").json()
    assert (found["name"], found["status"]) == ("pravega-spark", "UP")
    assert (found["readiness"], found["liveness"], found["details"]) == (True, True, {})
    assert set(found["children"]) == {"storage", "maintenance"}
    assert client.get("/v1/health/storage").json() == found["children"]["storage"]
    assert client.get("/v1/health/status").json() == "UP"
    assert client.get("/v1/health/status/storage").json() == "UP"
    assert client.get("/v1/health/readiness").json() is True
    assert client.get("/v1/health/liveness/maintenance").json() is True
    assert client.get("/v1/health/details/storage").json()["root"].startswith("memory://")
    for path in ("", "readiness/", "liveness/", "details/", "status/"):
        assert client.get(f"/v1/health/{path}nobody").status_code == 404


def test_a_root_that_is_gone_is_down(tmp_path: Any) -> None:
    manager = pravega.StreamManager(tmp_path / "root")
    manager.create_scope("nyc")
    (tmp_path / "root" / "_pravega_spark.json").unlink()
    with web_client(manager) as client:
        found = client.get("/v1/health").json()
        assert (found["status"], found["readiness"], found["liveness"]) == ("DOWN", False, True)
        assert client.get("/v1/health/readiness").json() is False
        assert client.get("/v1/health/liveness").json() is True


@pytest.mark.medium
def test_probes_answer_while_every_thread_waits_for_the_storage(
    client: TestClient, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(self: StreamManager) -> list[str]:
        release.wait(60)
        return []

    monkeypatch.setattr(StreamManager, "list_scopes", hang)
    with ThreadPoolExecutor(60) as callers:
        waiting = [callers.submit(client.get, "/v1/scopes") for _ in range(60)]
        try:
            assert client.get("/ping").status_code == 200
            assert client.get("/v1/health/liveness").json() is True
            assert not any(call.done() for call in waiting)
        finally:
            release.set()
        assert {call.result().status_code for call in waiting} == {200}
