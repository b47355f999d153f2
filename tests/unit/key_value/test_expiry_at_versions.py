"""What had expired at a version is the same while it is the newest one and later."""

from __future__ import annotations

from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from tests.harness.fake_runtime import FakeRuntime, manager_of


def test_a_given_version_shows_the_same_before_and_after_the_next_put() -> None:
    runtime = FakeRuntime()
    manager = manager_of(runtime)
    manager.create_scope("s")
    manager.create_key_value_table("s/t", KeyValueTableConfiguration("string", ttl="1 hour"))
    table = manager.key_value_table("s/t")
    table.put("a", "1").result()
    version = table.at().version
    runtime.sleep(7_200)
    assert [entry.key for entry in table.at(version).entries()] == ["a"]
    assert list(table.entries()) == []
    table.put("b", "1").result()
    assert [entry.key for entry in table.at(version).entries()] == ["a"]
