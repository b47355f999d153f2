"""A stream that was lost with all its objects begins in a new life, as its row cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import (
    InvalidStreamCut,
    NoSuchScope,
    NoSuchStream,
    ScopeNotEmpty,
    StaleIdentity,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from tests.harness.backup_world import manager_of
from tests.harness.drawn_lives import DRAWN
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.folder_state import remove, wait_for_maintenance
from tests.harness.releases import run_release, start_release
from tests.harness.simulated_kills import Killed, kill

S, G, K = "s/t", "s/g", "s/k"
TWO = StreamConfiguration(ScalingPolicy.fixed(2), tags={"kept"})
STRINGS = KeyValueTableConfiguration("string")


def process(store: Store, seed: int = 1) -> StreamManager:
    return manager_of(store, FakeRuntime(seed))


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore()
    process(found).create_scope("s")
    return found


def append(manager: StreamManager, *events: bytes) -> None:
    with manager.create_writer(S) as writer:
        writer.write_events(list(events)).result()


def lose(store: Store, folder: str) -> None:
    wait_for_maintenance()
    store.delete([entry.key for entry in store.list(folder)])


def killed_creation(store: Store, name: str = S) -> None:
    manager = process(store)
    create = {K: lambda: manager.create_key_value_table(K, STRINGS)}
    with at_failpoint("create.row", kill), pytest.raises(Killed):
        create.get(name, lambda: manager.create_stream(name, TWO))()


BEGINNINGS: dict[str, Callable[[StreamManager], object]] = {
    "append": lambda manager: append(manager, b"new"),
    "create": lambda manager: manager.create_stream(S),
}


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_lost_stream_takes_nothing_that_named_the_old_one(
    store: MemoryStore, begin: Callable[[StreamManager], object]
) -> None:
    manager = process(store)
    manager.create_stream(S, TWO)
    append(manager, *(b"%d" % n for n in range(50)))
    manager.create_reader_group(G, {S: manager.tail(S)})
    cut, pointer = manager.tail(S), next(iter(manager.read(S))).pointer
    lose(store, S)
    other = process(store, 2)
    begin(other)
    append(other, b"new")
    info = other.stream_info(S)
    assert (info.life > DRAWN, len(info.segments)) == (True, 2)
    assert info.configuration.tags == {"kept"}
    with pytest.raises(InvalidStreamCut, match="life"):
        other.truncate_stream(S, cut)
    with pytest.raises(StaleIdentity):
        other.fetch_event(pointer)
    with pytest.raises(NoSuchStream), other.reader_group(G).create_reader("r") as reader:
        reader.read_next_event(0)
    assert other.list_streams("s", tag="kept") == [S]


def test_a_stream_that_was_created_again_and_lost_begins_again(store: MemoryStore) -> None:
    manager = process(store)
    manager.create_stream(S, TWO)
    manager.seal_stream(S)
    manager.delete_stream(S)
    manager.create_stream(S, TWO)
    lost = manager.stream_info(S).life
    lose(store, S)
    other = process(store, 2)
    append(other, b"new")
    assert other.stream_info(S).life > lost


def test_a_table_that_was_lost_begins_in_a_new_life(store: MemoryStore) -> None:
    manager = process(store)
    manager.create_key_value_table(K, STRINGS)
    with manager.key_value_table(K) as table:
        version = table.put("a", b"1").result()
    lose(store, "s/_kv_tables/k")
    with process(store, 2).key_value_table(K) as table:
        assert table.get("a") is None
        assert table.put("a", b"2").result().life > DRAWN > version.life


def test_a_creator_that_stands_still_has_its_stream_in_the_life_of_who_ended_it(
    store: MemoryStore,
) -> None:
    other = process(store, 2)
    with at_failpoint("create.row", lambda: append(other)):
        assert process(store).create_stream(S, TWO)
    assert process(store, 3).stream_info(S).life == other.stream_info(S).life > DRAWN
    assert not process(store, 3).create_stream(S)


@pytest.mark.parametrize("point", ["create.row", "create.drawn"])
def test_of_two_creators_one_gets_true_wherever_they_meet(store: MemoryStore, point: str) -> None:
    other, answers = process(store, 2), []
    if point == "create.drawn":
        killed_creation(store)
    with at_failpoint(point, lambda: answers.append(other.create_stream(S))):
        answers.append(process(store).create_stream(S, TWO))
    assert sorted(answers) == [False, point == "create.row"]
    assert len(process(store, 3).stream_info(S).segments) == 2, "the row that was first counts"


@pytest.mark.parametrize("name", [S, K])
def test_a_process_that_is_killed_after_it_drew_is_followed_by_the_next(
    store: MemoryStore, name: str
) -> None:
    killed_creation(store, name)
    manager = process(store, 2)
    work = {S: append, K: lambda who: who.key_value_table(K).get("a")}
    with at_failpoint("create.drawn", kill), pytest.raises(Killed):
        work[name](process(store, 3))
    work[name](manager)
    if name == S:
        assert manager.stream_info(S).life > DRAWN
        assert len(manager.stream_info(S).segments) == 2


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("name", [S, K])
def test_a_scope_is_deleted_with_a_creation_that_never_ended(
    store: MemoryStore, name: str, drawn: bool
) -> None:
    def delete() -> None:
        with pytest.raises(ScopeNotEmpty):
            process(store, 3).delete_scope("s")
        assert process(store, 3).delete_scope("s", recursive=True)

    killed_creation(store, name)
    if drawn:
        with at_failpoint("create.drawn", kill), pytest.raises(Killed):
            process(store, 2).create_stream(S) if name == S else process(
                store, 2
            ).create_key_value_table(K, STRINGS)
    delete()
    assert not process(store, 4).scope_exists("s")
    process(store, 4).create_scope("s")
    assert not process(store, 4).stream_exists(S)
    assert process(store, 4).create_stream(S)


def test_a_creator_that_stands_still_while_its_scope_is_deleted_creates_nothing(
    store: MemoryStore,
) -> None:
    def delete() -> None:
        process(store, 2).delete_scope("s", recursive=True)

    with at_failpoint("create.row", delete), pytest.raises(NoSuchScope):
        process(store).create_stream(S)
    process(store, 3).create_scope("s")
    assert not process(store, 3).stream_exists(S)
    assert process(store, 3).list_streams("s") == []


def test_a_first_creation_waits_for_nobody(store: MemoryStore) -> None:
    runtime = FakeRuntime(1)
    before = runtime.wall_ms
    assert manager_of(store, runtime).create_stream(S)
    assert runtime.wall_ms == before
    assert process(store, 2).stream_info(S).life == 1


OLD_CREATES = """
import sys
from pravega_spark import StreamManager
manager = StreamManager(sys.argv[1])
print(manager.create_stream("s/t"), manager.stream_info("s/t").life)
"""
OLD_STANDS_STILL = """
import sys
from pravega_spark import StreamManager
from pravega_spark.engine import failpoints
from pravega_spark.engine.stream import lifecycle
create = lifecycle.create
def stand_still(*given, **more):
    print("row", flush=True)
    input()
    return create(*given, **more)
lifecycle.create = stand_still
manager = StreamManager(sys.argv[1])
manager.create_stream("s/t")
lifecycle.create = create
with manager.create_writer("s/t") as writer:
    print(writer.write_event("x").result().life)
"""


@pytest.mark.medium
def test_release_0_1_0_goes_on_in_the_life_that_was_drawn(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "first")
    manager.create_scope("s")
    manager.create_stream(S)
    root = (tmp_path / "first").rename(tmp_path / "second")
    remove(root / S)
    with at_failpoint("create.drawn", kill), pytest.raises(Killed):
        append(StreamManager(root))
    said = run_release("0.1.0", OLD_CREATES, root).split()
    assert said == ["True", str(StreamManager(root).stream_info(S).life)]
    assert int(said[1]) > DRAWN


@pytest.mark.medium
def test_a_creator_of_release_0_1_0_that_stands_still_uses_the_stream(tmp_path: Path) -> None:
    StreamManager(tmp_path).create_scope("s")
    old = start_release("0.1.0", OLD_STANDS_STILL, tmp_path)
    assert old.stdout is not None
    assert old.stdout.readline() == "row\n"
    append(StreamManager(tmp_path))
    life = StreamManager(tmp_path).stream_info(S).life
    out, errors = old.communicate("go\n", timeout=60)
    assert old.returncode == 0, errors
    assert int(out) == life > DRAWN
    assert [event.data for event in StreamManager(tmp_path).read(S)] == [b"x"]
