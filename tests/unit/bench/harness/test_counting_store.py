from __future__ import annotations

from bench.harness.counting_store import CountingStore
from pravega_spark.engine.store.memory import MemoryStore


def test_every_call_is_counted_and_passed_on() -> None:
    store = CountingStore(MemoryStore())
    store.put("a/1", b"one")
    store.put_if_absent("a/2", b"two")
    assert store.get("a/1") == b"one"
    assert store.get_many(["a/1", "a/2", "a/3"]) == [b"one", b"two", None]
    assert [entry.key for entry in store.list("a")] == ["a/1", "a/2"]
    store.delete(iter(["a/1", "a/2"]))
    assert store.folders("") == []
    assert store.calls == {"put": 2, "get": 4, "list": 2, "delete": 2}
    assert (store.total, store.listed, store.read_bytes, store.written_bytes) == (10, 2, 9, 6)
