"""Copies of one root that live on: no object of one is taken for an object of another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.lifecycle import draw_life
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.identity import SessionBatch, open_session
from pravega_spark.errors import (
    BadKeyVersion,
    CorruptLog,
    InvalidStreamCut,
    NoSuchStream,
    StaleIdentity,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.values.segments import EventPointer
from tests.harness.backup_world import World, copy_objects, manager_of, stream_of
from tests.harness.drawn_lives import DRAWN
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.releases import run_release
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import write

S, G, K, LOG = "s/t", "s/g", "s/k", "s/_kv_tables/k"
STRINGS = KeyValueTableConfiguration("string")


def process(store: Store, seed: int) -> StreamManager:
    """Open a root as another host does, whose clock shows the same and whose chance is its own."""
    return manager_of(store, FakeRuntime(seed))


def create_again(manager: StreamManager, name: str = S) -> None:
    manager.seal_stream(name)
    manager.delete_stream(name)
    assert manager.create_stream(name)


def fill(manager: StreamManager, *events: bytes) -> EventPointer:
    with manager.create_writer(S) as writer:
        return writer.write_events(list(events)).result()[0]


def world_with_table() -> World:
    world = World()
    world.manager.create_reader_group(G, [S])
    world.manager.create_key_value_table(K, STRINGS)
    with world.manager.key_value_table(K) as table:
        table.put("a", b"1").result()
    return world


def restored(manager: StreamManager) -> None:
    assert manager.restore().failed == {}


def one_restored(manager: StreamManager) -> None:
    manager.restore_stream(S)


def restored_twice(manager: StreamManager) -> None:
    restored(manager)
    restored(manager)


BEGINNINGS: dict[str, tuple[Callable[[StreamManager], None], Callable[[StreamManager], None]]] = {
    "two restores": (restored, restored),
    "a restore and a re-creation": (restored, create_again),
    "two re-creations": (create_again, create_again),
    "a restore of a restored root": (restored, restored_twice),
    "two restores of one stream": (one_restored, one_restored),
}


@pytest.mark.parametrize("case", BEGINNINGS)
def test_no_object_of_a_copy_is_taken_by_another(case: str) -> None:
    world = world_with_table()
    copies = [process(copy_objects(world.store), seed) for seed in (1, 2)]
    for manager, begin in zip(copies, BEGINNINGS[case], strict=True):
        begin(manager)
    one, other = copies
    pointer, _ = fill(one, b"of one"), fill(other, b"of the other")
    with pytest.raises(StaleIdentity):
        other.fetch_event(pointer)
    for cut in (one.tail(S), one.save_cut(S, "saved").cut):
        with pytest.raises(InvalidStreamCut, match="life"):
            list(other.read(S, cut))
        with pytest.raises(InvalidStreamCut, match="life"):
            other.truncate_stream(S, cut)
        with pytest.raises(InvalidStreamCut, match="life"):
            other.create_reader_group("s/h", {S: cut})
    (rng, *_) = one.create_reader(S).ranges()
    with pytest.raises(StaleIdentity):
        list(other.create_reader(S).read_range(rng))


def test_no_version_of_an_entry_of_a_restored_copy_is_taken_by_another() -> None:
    world = world_with_table()
    one, other = (process(copy_objects(world.store), seed) for seed in (1, 2))
    for manager in (one, other):
        restored(manager)
        with manager.key_value_table(K) as table:
            table.put("a", b"of seed").result()
    entry = one.key_value_table(K).get("a")
    assert entry is not None
    with other.key_value_table(K) as table, pytest.raises(BadKeyVersion):
        table.replace("a", b"new", entry.version)
    with other.key_value_table(K) as table, pytest.raises(BadKeyVersion):
        table.remove("a", version=entry.version)


def test_a_group_of_a_copy_refuses_the_stream_of_another() -> None:
    world = world_with_table()
    one, other = (process(copy_objects(world.store), seed) for seed in (1, 2))
    for manager in (one, other):
        restored(manager)
    one.reader_group(G).reset({S: "latest"})
    checkpoint = one.reader_group(G).initiate_checkpoint("c").result()
    copy_objects(root_of(one).store, root_of(other).store, lambda key: "/_reader_groups/" in key)
    other = process(root_of(other).store, 3)
    with pytest.raises(NoSuchStream), other.reader_group(G).create_reader("r") as reader:
        reader.read_next_event(0)
    other.reader_group(G).reset({S: "earliest"})
    with pytest.raises(InvalidStreamCut):
        other.reader_group(G).reset(checkpoint)


def test_a_restored_root_that_is_copied_and_restored_again_begins_lives_of_its_own() -> None:
    world = world_with_table()
    root = copy_objects(world.store)
    restored(process(root, 1))
    lives = set()
    for seed in (2, 3):
        copy = process(copy_objects(root), seed)
        restored(copy)
        lives.add((copy.stream_info(S).life, copy.key_value_table(K).get("a").version.life))  # type: ignore[union-attr]
    assert len(lives) == 2
    assert len({life for pair in lives for life in pair}) == 4


@pytest.mark.parametrize("is_backup", [True, False])
def test_first_lives_in_a_copy_are_drawn(is_backup: bool) -> None:
    world = World(store=None)
    if is_backup:
        store = copy_objects(world.store, wanted=lambda key: False)
        world.manager.backup(store.url)
    else:
        store = copy_objects(world.store)
        restored(process(store, 1))
    lives = set()
    for seed in (1, 2):
        copy = process(copy_objects(store), seed)
        assert copy.create_stream("s/new")
        assert not copy.create_stream("s/new")
        assert copy.create_key_value_table("s/new-table", STRINGS)
        with copy.key_value_table("s/new-table") as table:
            lives.add(table.put("a", b"1").result().life)
        with copy.create_writer("s/new") as writer:
            pointer = writer.write_event(b"x").result()
        assert pointer.segment == "0#0"
        lives.add(pointer.life)
        assert [event.data for event in copy.read("s/new")] == [b"x"]
        create_again(copy, "s/new")
    assert len(lives) == 4
    assert min(lives) > DRAWN
    assert world.manager.create_stream("s/new")
    assert world.manager.stream_info("s/new").life == 1, "the source is no copy"


def test_a_restore_behind_a_re_creation_does_not_meet_its_life_or_its_archive() -> None:
    world = World(2)
    before = copy_objects(world.store)
    create_again(world.manager)
    lost = world.stream.view().life
    session = open_session(world.stream, lost, "w").session
    write(world.stream, [(None, b"5")], SessionBatch("w", session, 0, 5, "note"))
    world.runtime.sleep(10 * 3_600)
    for _ in range(3):
        write(world.stream, [(None, b"x")])
    world.manager.sweep_stream(S, grace="1 h", retain="1 h", keep_records="1 h")
    # A copy that has the log from before, when it had no history, and all else from after.
    late = ("/_delta_log/", "/metadata/")
    copy = copy_objects(world.store, wanted=lambda key: not any(part in key for part in late))
    copy_objects(before, copy)
    restored(process(copy, 1))
    stream = stream_of(copy)
    life = stream.view().life
    assert life not in (1, lost)
    found = open_session(stream, life, "w")
    assert (found.session, found.last, found.note) == (1, 0, None), "none of its events is there"


def test_a_life_is_drawn_above_all_that_a_copy_names_whatever_the_clock_says() -> None:
    world = world_with_table()
    create_again(world.manager)
    lost = world.manager.stream_info(S).life
    world.manager.stream(S).seal()
    pointer = world.manager.stream(S).info()
    assert pointer.life == lost
    early = FakeRuntime(1)
    early.wall_ms = 1_000_000
    for restore in (restored, one_restored):
        copy = copy_objects(world.store)
        copy.delete([stream_of(copy).log.reader.key(pointer.version)])
        manager = manager_of(copy, early)
        restore(manager)
        life = manager.stream_info(S).life
        assert lost < life < lost + 2**22
        create_again(manager)
        assert life < manager.stream_info(S).life < life + 2**22


def test_a_draw_is_above_the_last_life_and_javascript_reads_it() -> None:
    clock = FakeRuntime()
    for wall_ms in (-5, 0, 1_795_879_474_804, 10**15):
        clock.wall_ms = wall_ms
        for above in (0, 7, DRAWN, 2**52):
            drawn = {draw_life(clock, above) for _ in range(20)}
            assert len(drawn) > 15
            assert all(above < life < 2**53 for life in drawn)


def test_a_deleted_stream_is_not_listed_after_a_restore_and_does_not_come_back() -> None:
    world = World(2)
    world.manager.create_key_value_table(K, STRINGS)
    deleted = copy_objects(world.store, wanted=lambda key: False)
    world.manager.seal_stream(S)
    world.manager.delete_stream(S)
    world.manager.delete_key_value_table(K)
    copy_objects(world.store, deleted, lambda key: "/_scope/" not in key)
    world.manager.create_stream(S)
    world.manager.create_key_value_table(K, STRINGS)
    copy_objects(world.store, deleted, lambda key: "/_scope/" in key)
    for restore in (restored, one_restored):
        copy = copy_objects(deleted)
        restore(process(copy, 1))
        manager = process(copy, 2)
        assert manager.list_streams("s") == []
        assert not manager.stream_exists(S)
        assert manager.create_stream(S)
        assert manager.list_streams("s") == [S]


@pytest.mark.parametrize("point", ["create.drawn", "create.row"])
def test_a_killed_re_creation_is_ended_by_the_next_call_in_the_drawn_life(point: str) -> None:
    world = World(1)
    world.manager.seal_stream(S)
    world.manager.delete_stream(S)
    with at_failpoint(point, kill), pytest.raises(Killed):
        process(world.store, 1).create_stream(S)
    drawn = StreamView(world.stream.newest()).life + 1  # type: ignore[arg-type]
    manager = process(world.store, 2)
    if point == "create.row":
        assert manager.list_streams("s") == [S]
        assert manager.stream_exists(S)
        assert not manager.create_stream(S)
    else:
        assert not manager.stream_exists(S)
        assert manager.create_stream(S)
    assert manager.stream_info(S).life == drawn > DRAWN


@pytest.mark.parametrize("restore", [restored, one_restored])
def test_a_life_that_was_drawn_and_had_not_begun_is_drawn_again_in_each_copy(
    restore: Callable[[StreamManager], None],
) -> None:
    world = World(1)
    world.manager.seal_stream(S)
    world.manager.delete_stream(S)
    with at_failpoint("create.row", kill), pytest.raises(Killed):
        process(world.store, 1).create_stream(S)
    lives = set()
    for seed in (2, 3):
        copy = process(copy_objects(world.store), seed)
        restore(copy)
        assert copy.list_streams("s") == []
        assert copy.create_stream(S)
        lives.add(copy.stream_info(S).life)
    assert len(lives) == 2


@pytest.mark.parametrize("point", ["create.drawn", "create.row"])
def test_creators_that_overtake_each_other_begin_one_life(point: str) -> None:
    world = World(1)
    world.manager.seal_stream(S)
    world.manager.delete_stream(S)
    one, other = process(world.store, 1), process(world.store, 2)
    answers = []
    with at_failpoint(point, lambda: answers.append(other.create_stream(S))):
        answers.append(one.create_stream(S))
    assert sorted(answers) == [False, True]
    with world.manager.create_writer(S) as writer:
        life = writer.write_event(b"x").result().life
    assert process(world.store, 3).stream_info(S).life == life
    assert process(world.store, 3).list_streams("s") == [S]


def folded_life_lost(*, swept: bool) -> Store:
    """Return a copy whose change log has only the first life of a table; ``swept``: its folds not.

    The folded table has the second life.
    """
    world = World(1)
    world.manager.create_key_value_table(K, STRINGS)
    folds(world, b"first life")
    folded = {entry.key for entry in world.store.list(f"{LOG}/table/data")}
    before = copy_objects(world.store, wanted=lambda key: f"{LOG}/events/" in key)
    world.manager.delete_key_value_table(K)
    world.manager.create_key_value_table(K, STRINGS)
    folds(world, b"second life")
    copy = copy_objects(world.store, wanted=lambda key: f"{LOG}/events/" not in key)
    copy_objects(before, copy)
    copy.delete(folded if swept else ())
    return copy


def folds(world: World, value: bytes) -> None:
    with world.manager.key_value_table(K) as table:
        for key in "abc":
            table.put(key, value).result()
    log = stream_of(world.store, LOG, world.runtime)
    assert fold(log, folded_table(log, STRINGS), ttl_ms=None).is_published


def test_a_folded_table_goes_back_to_the_life_that_its_change_log_has() -> None:
    copy = folded_life_lost(swept=False)
    assert process(copy, 1).restore().failed == {}
    table = process(copy, 2).key_value_table(K)
    assert {entry.key: entry.value for entry in table.entries()} == dict.fromkeys(
        "abc", b"first life"
    )


@pytest.mark.parametrize("counted", [False, True])
def test_a_folded_table_whose_life_was_lost_fails_alone(
    monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    if counted:  # as earlier releases did
        for module in ("engine.stream.lifecycle", "backup.restore"):
            monkeypatch.setattr(
                f"pravega_spark.{module}.draw_life", lambda runtime, above: above + 1
            )
    copy = folded_life_lost(swept=True)
    if counted:
        process(copy, 1).restore()
        monkeypatch.undo()
    done = process(copy, 1).restore()
    assert list(done.failed) == [f"{LOG}/table"]
    assert S in done.streams
    with pytest.raises(CorruptLog):
        process(copy, 2).key_value_table(K).get("a")


RELEASE_CREATES = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
print(manager.create_stream("s/t"), manager.stream_exists("s/t"), manager.stream_info("s/t").life)
with manager.create_writer("s/t", writer_id="w") as writer:
    print(writer.write_event(b"of 0.1.0").result())
print([event.data for event in manager.read("s/t", manager.head("s/t"))])
print(manager.list_streams("s"))
if sys.argv[2:]:
    print(manager.seal_stream("s/t"), manager.delete_stream("s/t"), manager.list_streams("s"))
"""

RELEASE_KILLS = """
import sys, os
import pravega_spark
from pravega_spark.engine import failpoints
manager = pravega_spark.StreamManager(sys.argv[1])
failpoints.install(lambda name: os._exit(0) if name == "create.row" else None)
manager.create_stream("s/t")
"""


def deleted_on_disk(root: Path) -> StreamManager:
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(S)
    manager.seal_stream(S)
    manager.delete_stream(S)
    return manager


@pytest.mark.medium
@pytest.mark.parametrize("is_copy", [False, True])
def test_release_ends_a_killed_creation_of_ours_in_its_drawn_life(
    tmp_path: Path, is_copy: bool
) -> None:
    if is_copy:
        source = StreamManager(tmp_path / "source")
        source.create_scope("s")
        source.backup(str(tmp_path / "root"))
        manager = StreamManager(tmp_path / "root")
    else:
        manager = deleted_on_disk(tmp_path / "root")
    with at_failpoint("create.row", kill), pytest.raises(Killed):
        manager.create_stream(S)
    out = run_release("0.1.0", RELEASE_CREATES, tmp_path / "root").splitlines()
    fresh = StreamManager(tmp_path / "root")
    life = fresh.stream_info(S).life
    segment = "0#0" if is_copy else "1#1"
    assert life > DRAWN
    assert out == [
        f"False True {life}",
        f"s/t@{life}:{segment}=0",
        "[b'of 0.1.0']",
        "['s/t']",
    ]
    with fresh.create_writer(S, writer_id="w") as writer:
        writer.write_event(b"ours").result()
    assert [event.data for event in fresh.read(S)] == [b"of 0.1.0", b"ours"]
    assert fresh.delete_scope("s", recursive=True)


def test_release_creates_writes_and_deletes_after_a_killed_draw_of_ours(tmp_path: Path) -> None:
    manager = deleted_on_disk(tmp_path)
    with at_failpoint("create.drawn", kill), pytest.raises(Killed):
        manager.create_stream(S)
    out = run_release("0.1.0", RELEASE_CREATES, tmp_path, "delete").splitlines()
    drawn = int(out[0].split()[-1])
    assert drawn > DRAWN
    assert out[0] == f"True True {drawn}"
    assert out[-1] == "True True []"
    assert manager.create_stream(S)
    assert manager.stream_info(S).life > drawn


def test_we_end_a_killed_re_creation_of_the_release(tmp_path: Path) -> None:
    manager = deleted_on_disk(tmp_path)
    run_release("0.1.0", RELEASE_KILLS, tmp_path)
    fresh = StreamManager(tmp_path)
    assert fresh.stream_info(S).life == 2
    create_again(fresh)
    assert manager.stream_info(S).life > DRAWN


def test_we_create_where_the_release_was_killed(tmp_path: Path) -> None:
    deleted_on_disk(tmp_path)
    run_release("0.1.0", RELEASE_KILLS, tmp_path)
    fresh = StreamManager(tmp_path)
    assert fresh.create_stream(S)
    life = fresh.stream_info(S).life
    assert life > DRAWN
    assert fresh.list_streams("s") == [S]
    out = run_release("0.1.0", RELEASE_CREATES, tmp_path, "delete").splitlines()
    assert out[0] == f"False True {life}"
    assert out[-1] == "True True []"


RELEASE_RESTORES = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
done = manager.restore()
print(sorted(done.failed), done.streams["s/t"].life, done.key_value_tables["s/k"].life)
print([entry.value for entry in manager.key_value_table("s/k").entries()])
"""


@pytest.mark.medium
def test_the_release_restores_what_we_restored_and_we_what_it_restored(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(S)
    manager.create_key_value_table(K, STRINGS)
    with manager.key_value_table(K) as table:
        table.put("a", b"1").result()
    restored(StreamManager(tmp_path))
    life = StreamManager(tmp_path).stream_info(S).life
    out = run_release("0.1.0", RELEASE_RESTORES, tmp_path).splitlines()
    assert out[0].startswith(f"[] {life} ")
    assert out[1] == "[b'1']"
    with StreamManager(tmp_path).create_writer(S) as writer:
        writer.write_event(b"x").result()
    assert run_release("0.1.0", RELEASE_RESTORES, tmp_path).startswith(f"[] {life + 1} ")
    restored(StreamManager(tmp_path))
    fresh = StreamManager(tmp_path)
    assert fresh.stream_info(S).life > life + 1
    entry = fresh.key_value_table(K).get("a")
    assert entry is not None
    assert entry.value == b"1"
