"""Damage that a page has met: the overview tells of it until the same can be read, or is gone."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.testclient import TestClient

from pravega_spark import RetentionPolicy, StreamConfiguration
from pravega_spark.engine.store import Store
from tests.harness.counted_store import CountedRoot
from tests.harness.web_world import web_client

EVENTS = "/api/streams/nyc/f/events"


class World(CountedRoot):
    """A stream with nine events in chunks of three, of which a test damages some."""

    def __init__(self) -> None:
        super().__init__()
        self.manager.create_stream("nyc/f")
        for _ in range(3):
            with self.manager.create_writer("nyc/f") as writer:
                writer.write_events([b"x"] * 3, routing_key="k")
        self.sound: dict[str, bytes] = {}

    def chunks(self) -> list[str]:
        keys = (entry.key for entry in self.store.list("nyc/f/events/data"))
        return sorted(key for key in keys if key.endswith(".parquet"))

    def damage(self, key: str) -> None:
        store: Store = self.store
        data = bytearray(store.get(key))
        self.sound[key] = bytes(data)
        data[len(data) // 3] ^= 0xFF
        store.put(key, bytes(data))

    def mend(self) -> None:
        for key, data in self.sound.items():
            self.store.put(key, data)

    def findings(self, client: TestClient) -> list[dict[str, Any]]:
        self.runtime.sleep(3)
        answer: dict[str, Any] = client.get("/api/attention").json()
        return [f for f in answer["findings"] if f["kind"].endswith("_damaged")]


def look(client: TestClient, path: str = EVENTS, **query: Any) -> Any:
    answer = client.get(path, params={"at": "head", **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


def follow(client: TestClient, finding: dict[str, Any]) -> Any:
    """Look at what a finding links to, as its page does."""
    address = urlsplit(finding["address"])
    answer = client.get(f"/api{address.path}", params=dict(parse_qsl(address.query)))
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_damaged_chunk_that_a_page_has_met_needs_attention_until_it_is_read_again() -> None:
    world = World()
    world.damage(world.chunks()[1])
    with web_client(world.manager) as client:
        assert world.findings(client) == []  # nobody has read it
        assert len(look(client)["events"]) == 6
        (finding,) = world.findings(client)
        assert (finding["severity"], finding["subject"], finding["name"]) == (
            "critical",
            "stream",
            "nyc/f",
        )
        assert (finding["number"], finding["unit"]) == (3, "events")
        assert "damaged" in finding["text"] or "Restore" in finding["text"]
        assert world.store.url not in finding["text"]
        (lost,) = follow(client, finding)["lost"]
        assert (lost["segment"], lost["start"], lost["end"]) == ("0#0", 3, 6)
        look(client, limit=2)  # events beside it say nothing of it
        assert len(world.findings(client)) == 1

        world.mend()
        assert follow(client, finding)["lost"] == []
        assert world.findings(client) == []


def test_a_part_that_is_read_again_leaves_the_rest_and_looks_do_not_count_twice() -> None:
    world = World()
    for chunk in world.chunks()[1:]:
        world.damage(chunk)
    with web_client(world.manager) as client:
        for _ in range(2):
            look(client)
            client.get("/api/streams/nyc/f/event", params={"at": "0#0=4"})
        (finding,) = world.findings(client)
        assert finding["number"] == 6
        world.store.put(world.chunks()[1], world.sound[world.chunks()[1]])
        look(client)
        (finding,) = world.findings(client)
        assert finding["number"] == 3
        assert dict(parse_qsl(urlsplit(finding["address"]).query))["at"] == "0#0=6"


def test_what_is_truncated_or_made_again_needs_no_attention_any_more() -> None:
    for is_truncated in (True, False):
        world = World()
        world.damage(world.chunks()[1])
        with web_client(world.manager) as client:
            look(client)
            assert len(world.findings(client)) == 1
            if is_truncated:
                world.manager.truncate_stream("nyc/f", world.manager.tail("nyc/f"))
            else:
                world.manager.seal_stream("nyc/f")
                world.manager.delete_stream("nyc/f")
                world.manager.create_stream("nyc/f")
            assert world.findings(client) == []


def test_a_search_that_meets_damage_tells_of_it_and_polls_read_no_chunk() -> None:
    world = World()
    world.damage(world.chunks()[1])
    with web_client(world.manager) as client:
        world.findings(client)
        look(client, contains="none")
        world.store.kinds.clear()
        assert len(world.findings(client)) == 1
        with_damage = dict(world.store.kinds)
        world.mend()
        look(client)
        world.store.kinds.clear()
        assert world.findings(client) == []
        assert world.store.kinds == with_damage


def test_an_oldest_unread_event_that_is_damaged_is_told_before_its_reader_meets_it() -> None:
    world = World()
    policy = RetentionPolicy.by_consumption("1 min", "10 min")
    world.manager.update_stream("nyc/f", StreamConfiguration(retention=policy))
    world.manager.create_reader_group("nyc/slow", ["nyc/f"], retention="automatic")
    world.store.put(world.chunks()[0], b"torn")
    with web_client(world.manager) as client:
        world.runtime.sleep(540)  # near enough to the maximum that the event is read
        (finding,) = world.findings(client)
    assert finding["text"].startswith("that nyc/slow reads next cannot be read: ")
