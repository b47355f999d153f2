"""Pravega's samples: the map that processes share, and the reader that does nothing."""

from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.harness.fake_runtime import FakeRuntime, manager_of

S = "s/shared"
Properties = dict[str, str]


@pytest.fixture
def manager() -> StreamManager:
    manager = manager_of(FakeRuntime())
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    return manager


class SharedMap:
    """A map that processes share: the sample's SharedMap and SharedConfig."""

    def __init__(self, manager: StreamManager) -> None:
        self.shared = manager.state_synchronizer(S, self._applied)
        self.shared.initialize({})

    @staticmethod
    def _applied(known: Properties, update: dict[str, str | None]) -> Properties:
        return {key: value for key, value in {**known, **update}.items() if value is not None}

    def put(self, key: str, value: str | None) -> str | None:
        """Set or remove a property; return the one before."""
        return self._change(key, value, lambda old: True)

    def put_if_absent(self, key: str, value: str) -> str | None:
        return self._change(key, value, lambda old: old is None)

    def replace(self, key: str, expected: str, value: str) -> bool:
        return self._change(key, value, lambda old: old == expected) == expected

    def clear(self) -> None:
        self.shared.update_state(lambda known, updates: updates.append(dict.fromkeys(known)))

    def _change(self, key: str, value: str | None, is_due: Any) -> str | None:
        def update(known: Properties, updates: list[Any]) -> str | None:
            if is_due(known.get(key)):
                updates.append({key: value})
            return known.get(key)

        found: str | None = self.shared.update_state(update)
        return found

    @property
    def properties(self) -> Properties:
        self.shared.fetch_updates()
        found: Properties = self.shared.get_state()
        return found


def test_map_of_two_processes_is_one_map_also_over_a_compaction(manager: StreamManager) -> None:
    one, other = SharedMap(manager), SharedMap(manager)
    assert one.put("host", "a") is None
    assert other.properties == {"host": "a"}
    assert other.put_if_absent("host", "b") == "a"
    assert other.put_if_absent("port", "1") is None
    assert not one.replace("host", "b", "c"), "its value is another"
    assert not one.replace("port", "1", "2"), "this process has not seen it, and writes nothing"
    one.shared.fetch_updates()
    assert one.replace("port", "1", "2")
    assert other.put("host", None) == "a"
    one.shared.compact()
    assert other.put("zone", "x") is None
    other.shared.compact()
    assert one.properties == SharedMap(manager).properties == {"port": "2", "zone": "x"}
    one.clear()
    assert other.properties == {}


def test_reader_of_anything_counts_the_values_of_every_sample(manager: StreamManager) -> None:
    """The sample's NoopReader: it reads the bytes of any stream and does nothing with them."""
    shared = SharedMap(manager)
    for number in range(5):
        shared.put("n", str(number))
    manager.create_stream("s/events", StreamConfiguration(ScalingPolicy.fixed(3)))
    with manager.create_writer("s/events") as writer:
        writer.write_events([b"", b"\x00\xff", "text".encode("utf-16")])
    group = manager.create_reader_group("s/noop", [S, "s/events"])
    with group.create_reader("noop") as reader:
        sizes = []
        while (event := reader.read_next_event(timeout=0).event) is not None:
            sizes.append(event.size_bytes)
    streams = [manager.stream_info(name) for name in (S, "s/events")]
    assert len(sizes) == sum(stream.events for stream in streams) == 6 + 3
    assert sum(sizes) == sum(stream.size_bytes for stream in streams)
