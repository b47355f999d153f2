"""A server that hides events: no path, error or document shows a payload or a key."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from pravega_spark import KeyValueTableConfiguration, StreamManager
from tests.harness.web_world import HIDING, new_manager, web_client

SECRETS = ("payload-of-an-event", "key-of-an-event", "key-of-a-table", "value-of-a-table")
BAD = ("", "?at=nonsense", "?limit=0", "?key=x&key_of=y", "?id=%ff", "?at=0%230=9", "?at=0%230=0")


@pytest.fixture(scope="module")
def manager() -> StreamManager:
    manager = new_manager()
    manager.create_stream("nyc/f")
    with manager.create_writer("nyc/f") as writer:
        writer.write_event(SECRETS[0], SECRETS[1]).result()
    manager.create_key_value_table("nyc/t", KeyValueTableConfiguration(key_type="string"))
    with manager.key_value_table("nyc/t") as table:
        table.put(SECRETS[2], SECRETS[3]).result()
    return manager


@pytest.fixture(scope="module")
def client(manager: StreamManager) -> Iterator[TestClient]:
    with web_client(manager, hide_events=True) as opened:
        yield opened


def address(path: str, *, exists: bool = True) -> str:
    names = {"scope": "nyc", "stream": "f", "table": "t", "group": "g"}
    path = path.replace("{contributor}", "storage")
    return path.format(**names) if exists else path.format(**dict.fromkeys(names, "none"))


@pytest.mark.parametrize("path", sorted(HIDING))
@pytest.mark.parametrize("query", BAD)
def test_paths_of_payloads_and_keys_answer_403_whatever_they_are_asked(
    client: TestClient, path: str, query: str
) -> None:
    for exists in (True, False):
        answer = client.get(address(path, exists=exists) + query)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "EventsHidden")


@pytest.mark.medium
def test_no_other_path_shows_a_payload_or_a_key(client: TestClient, manager: StreamManager) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    asked = 0
    for path, verbs in paths.items():
        if "get" in verbs and path != "/api/live":
            answer = client.get(address(path))
            assert (answer.status_code == 403) == (path in HIDING), path
            assert not [secret for secret in SECRETS if secret in answer.text], path
            asked += 1
    assert asked > 30
    assert not [secret for secret in SECRETS if secret in json.dumps(paths)]
    with web_client(manager) as open_client:
        shown = [open_client.get(address(path)).text for path in HIDING]
    assert [secret for secret in SECRETS if any(secret in text for text in shown)] == [*SECRETS]
