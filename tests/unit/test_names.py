"""Every allowed name works for every object; every other name is refused before any work."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pravega_spark import StreamManager
from pravega_spark.errors import InvalidName
from pravega_spark.manager import root_of
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.query_member import QUERY
from pravega_spark.values.names import MAX_NAME_LENGTH, MAX_SCOPE_LENGTH, is_name, split_group
from tests.harness.tiers import sized

HARD = [".a", "..a", "...", "-", ".json", ".clock", "." * MAX_NAME_LENGTH,
        "." + "x" * (MAX_NAME_LENGTH - 1)]  # fmt: skip
REFUSED: list[Any] = ["", ".", "..", "a_b", "_a", "a/b", "a b", "a\n", "ä", "٣", "a%2e", "a\\b",
                      "a:b", "x" * (MAX_SCOPE_LENGTH + 1), 7, None, b"a", ["a"], {}]  # fmt: skip

RULES = ("must be a str", "use letters", "at most 25", "one slash", "without one", "hexadecimal")

_roots = itertools.count(1)


def in_memory() -> StreamManager:
    return StreamManager(f"memory://names-{next(_roots)}")


def live(manager: StreamManager, name: str) -> None:
    """Create, use and delete a scope, a stream, a group, a reader and writers with that name."""
    full = f"{name}/{name}"
    assert manager.create_scope(name)
    assert manager.create_stream(full)
    group = manager.create_reader_group(full, [full], retention="automatic")
    assert manager.list_scopes() == [name]
    assert manager.list_streams(name) == manager.list_reader_groups(name) == [full]
    with manager.create_writer(full, name) as writer:
        writer.write_event(b"one")
    with manager.create_transactional_writer(full, name) as writer:
        with writer.begin_transaction() as transaction:
            transaction.write_event(b"two")
        assert writer.writer_id == name
    other = group.create_reader("other")
    with group.create_reader(name) as reader:
        assert {read.data for read in (next(iter(reader)), next(iter(reader)))} == {b"one", b"two"}
        assert other.read_next_event(0).event is None
        assert group.expire_readers() == []
    assert not group.reader_offline(name)
    other.close()
    assert manager.subscribe(full, name) == 0
    assert manager.publish(full, name, manager.tail(full))
    assert [info.name for info in manager.list_subscribers(full)] == [name, full]
    assert manager.delete_scope(name, recursive=True)
    assert manager.list_scopes() == []


@pytest.mark.parametrize("name", HARD)
def test_hard_names_work_on_a_disk(tmp_path: Path, name: str) -> None:
    live(StreamManager(tmp_path.as_uri()), name)


@pytest.mark.medium
@settings(max_examples=sized(15, 200))
@given(st.text(string.ascii_letters + string.digits + ".-", min_size=1).filter(is_name))
@example(".reader")
def test_every_allowed_name_works(name: str) -> None:
    live(in_memory(), name)


@pytest.mark.parametrize("name", REFUSED)
def test_every_other_name_is_refused_everywhere_with_the_rule(name: Any) -> None:
    manager = in_memory()
    manager.create_scope("s")
    manager.create_stream("s/t")
    opened = manager.create_reader_group("s/g", ["s/t"])
    stream = root_of(manager).stream("s/t")
    in_scope = f"s/{name}" if isinstance(name, str) else name
    calls: list[tuple[str, Callable[[Any], object], Any]] = [
        ("scope", manager.create_scope, name),
        ("scope", manager.list_streams, name),
        ("scope", manager.scope_exists, name),
        ("scope", manager.delete_scope, name),
        ("scope", manager.sweep_scope, name),
        ("scope", manager.list_reader_groups, name),
        ("stream", manager.create_stream, in_scope),
        ("stream", manager.delete_stream, in_scope),
        ("stream", lambda n: ReaderGroupConfiguration([n]), in_scope),
        ("reader group", manager.reader_group, in_scope),
        ("reader group", lambda n: manager.create_reader_group(n, ["s/t"]), in_scope),
        ("subscriber", lambda n: manager.subscribe("s/t", n), name),
        ("subscriber", lambda n: manager.unsubscribe("s/t", n), name),
        ("subscriber", lambda n: manager.publish("s/t", n, "latest"), name),
        ("reader", opened.create_reader, name),
        ("reader", opened.reader_offline, name),
        ("transaction", manager.create_transactional_writer("s/t").get_transaction, name),
    ]
    if name is not None:  # which is a writer without an id of its own
        calls += [
            ("writer", lambda n: manager.create_writer("s/t", n), name),
            ("writer", lambda n: manager.create_transactional_writer("s/t", n), name),
        ]
    version = stream.view().version
    for kind, call, given_name in calls:
        with pytest.raises(InvalidName, match=kind) as refused:
            call(given_name)
        assert repr(name)[1:20].rstrip("'") in str(refused.value)
        assert any(rule in str(refused.value) for rule in RULES)
    assert stream.view().version == version
    assert opened.online_readers() == []


def test_reserved_reader_names_are_refused() -> None:
    manager = in_memory()
    manager.create_scope("s")
    manager.create_stream("s/t")
    group = manager.create_reader_group("s/g", ["s/t"])
    with pytest.raises(InvalidName, match="that of streaming queries"):
        group.create_reader(QUERY)
    assert split_group("s/g") == ("s", "g")


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_LENGTH + 1), "\ud800", "a\udfff", 5, b"c"])
def test_name_of_a_checkpoint_is_a_text_that_can_be_stored(name: Any) -> None:
    manager = in_memory()
    manager.create_scope("s")
    manager.create_stream("s/t")
    group = manager.create_reader_group("s/g", ["s/t"])
    with pytest.raises(InvalidName, match="checkpoint"):
        group.initiate_checkpoint(name)
    assert group._lifecycle.state().checkpoints == ()
    for allowed in ("a_b / \u00e4 \U0001f600", "x" * MAX_NAME_LENGTH):
        assert group.initiate_checkpoint(allowed).result(0).name == allowed
    assert group.initiate_checkpoint().result(0).name.startswith("checkpoint-")
