"""What a forked child inherits refuses it at once or works, whatever locks the parent holds.

The parent forks while another of its threads holds every lock of ``process_locks``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pravega_spark
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.updates import TablePut
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.primitives import process_locks
from pravega_spark.primitives.lazy_property import lazy_property
from tests.harness.tiers import sized

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
_SECONDS = 60.0
_LAST = ("close", "abort", "commit", "prepare", "close_and_seal", "seal")
"""Called after all others."""
_SPOILT = ("detach", "fileno", "isatty", "writelines", "readline", "readlines", "readall")
"""What ``io`` adds to files, in terms of the other methods."""


def in_child(child: Callable[[], Any]) -> Any:
    """Return what a forked child returns; kill it if it is stuck, also at its end."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(_caught(child)), daemon=True)
    try:
        process.start()
        assert receiver.poll(_SECONDS), "the child hangs"
        found = receiver.recv()
        process.join(_SECONDS)
        assert process.exitcode == 0
        return found
    finally:
        process.kill()
        process.join()
        receiver.close()
        sender.close()


def _locks() -> list[Any]:
    while True:
        try:
            return list(process_locks._locks)
        except RuntimeError:  # another thread made or dropped a lock meanwhile
            continue


def everything_held(child: Callable[[], Any]) -> Any:
    """Return what a forked child returns while a thread here holds all locks."""
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        # One that nobody gives is held, too: a thread that waits to be woken holds its own.
        taken = [lock for lock in _locks() if lock.acquire(timeout=0.5)]
        try:
            held.set()
            release.wait(2 * _SECONDS)
        finally:
            for lock in reversed(taken):
                lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(_SECONDS)
        return in_child(child)
    finally:
        release.set()
        holder.join()


def _caught(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception:
        return traceback.format_exc()


def outcome(call: Callable[[], Any]) -> str:
    """Return ``works`` or the name of the error."""
    try:
        found = call()
        if isinstance(found, Iterator):
            list(itertools.islice(found, 2))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works"


def outcomes(handle: Any, arguments: dict[str, tuple[Any, ...]]) -> dict[str, str]:
    """Use every public name of a handle."""
    names = [name for name in dir(type(handle)) if name[0] != "_" and name not in _SPOILT]
    found = {}
    for name in sorted(names, key=lambda name: (name in _LAST, name)):
        attribute = getattr(type(handle), name)

        def use(name: str = name, attribute: Any = attribute) -> Any:
            is_method = callable(attribute) and not isinstance(attribute, type)
            value = getattr(handle, name)
            return value(*arguments.get(name, ())) if is_method else value

        found[name] = outcome(use)
    return found


class World:
    """A root with one handle of each kind, all of which have been used."""

    def __init__(self, root: str) -> None:
        self.manager = manager = StreamManager(root)
        manager.create_scope("s")
        for name in ("events", "other", "bytes", "revisions", "state"):
            manager.create_stream(f"s/{name}", StreamConfiguration(scaling=ScalingPolicy.fixed(1)))
        schema = StreamSchema.of(pa.schema([("n", pa.int64())]))
        manager.create_stream("s/typed", StreamConfiguration(schema=schema))
        manager.create_key_value_table("s/table", KeyValueTableConfiguration("string"))
        self.stream = manager.stream("s/events")
        self.writer = manager.create_writer("s/events")
        self.pointer = self.writer.write_event(b"1", "k").result()
        self.typed = manager.create_writer("s/typed", bad_records="dlq")
        self.typed.write_event({"n": 1}).result()
        self.reader = manager.create_reader("s/events")
        self.cut = manager.stream_info("s/events").tail
        self.byte_writer = manager.create_byte_writer("s/bytes")
        self.byte_writer.write(b"abc")
        self.byte_writer.flush()
        self.byte_reader = manager.create_byte_reader("s/bytes", timeout=0)
        self.group = manager.create_reader_group("s/group", ["s/events"])
        self.group_reader = self.group.create_reader("r")
        self.group_reader.read_next_event(0)
        self.table = manager.key_value_table("s/table")
        self.version = self.table.insert("k", b"1")
        self.revisions = manager.revisioned_stream("s/revisions")
        self.revision = self.revisions.write_unconditionally(b"1")
        self.state = manager.state_synchronizer("s/state", lambda state, update: state + update)
        self.state.initialize(0)
        self.transactions = manager.create_transactional_writer("s/events")
        self.transaction = self.transactions.begin_transaction()
        self.transaction.write_event(b"2", "k")
        self.joint_writer = manager.create_joint_writer(["s/events", "s/other"])
        self.joint = self.joint_writer.begin_transaction()
        self.joint.write_event("s/other", b"3", "k")


def update(state: int, updates: list[int]) -> None:
    """Must not be called in a child."""
    updates.append(1)
    raise AssertionError("the child decides on a state that it does not share")


EVENTS = pa.table({"event": ["4"], "routing_key": ["k"]})


def cases(world: World) -> dict[str, tuple[Any, set[str], dict[str, tuple[Any, ...]]]]:
    """Return each kind of handle: what must be refused, and the arguments of its calls."""
    writes: dict[str, tuple[Any, ...]] = {
        "write_event": (b"4", "k"),
        "write_events": ([b"4"], "k"),
        "write_table": (EVENTS,),
        "note_time": (1_000,),
    }
    typed = {
        "write_event": ({"n": 4},),
        "write_events": ([{"n": 4}],),
        "write_table": (pa.table({"n": [4]}),),
        "note_time": (1_000,),
    }
    key: dict[str, tuple[Any, ...]] = {
        "put": ("k", b"2"),
        "get": ("k",),
        "exists": ("k",),
        "remove": ("k",),
    }
    key |= {"insert": ("new", b"2"), "replace": ("k", b"2", world.version), "get_all": (["k"],)}
    key |= {"update": ([TablePut("k", b"2")],)}
    joint = {name: ("s/other", *writes[name]) for name in writes if name != "note_time"}
    joint["write_table"] = ("s/other", EVENTS)
    revision = world.revision
    return {
        "writer": (world.writer, {*writes, "flush"} - {"note_time"}, writes),
        "dead_letter_writer": (world.typed, {"write_event", "write_table", "flush"}, typed),
        "reader": (
            world.reader,
            {"events", "follow", "table"},
            {
                "read_range": (None,),
                "next_cut": (world.cut, 1),
                "distance": (world.cut, world.cut),
                "cut_at": (0,),
                "fetch": (world.pointer,),
                "follow": (0,),
            },
        ),
        "byte_writer": (
            world.byte_writer,
            {"write", "flush", "close"},
            {"write": (b"d",), "truncate_before": (0,), "readinto": (bytearray(1),), "seek": (0,)},
        ),
        "byte_reader": (
            world.byte_reader,
            {"read", "readinto", "available"},
            {"readinto": (bytearray(1),), "write": (b"d",), "seek": (0,), "skip": (0,)},
        ),
        "group_reader": (
            world.group_reader,
            {"read_next_event", "read_events", "keep_alive"},
            {
                "read_next_event": (0,),
                "read_events": (1, 0),
                "current_time_window": ("s/events",),
                "close_at": (world.group_reader.position,),
            },
        ),
        "table": (world.table, set(key), key),
        "revisioned_stream": (
            world.revisions,
            {"write_conditionally", "write_unconditionally", "read_from", "get_mark"},
            {
                "write_conditionally": (revision, b"2"),
                "write_unconditionally": (b"2",),
                "read_from": (revision,),
                "read_range": (revision, revision),
                "compare_and_set_mark": (None, revision),
                "truncate_to_revision": (revision,),
            },
        ),
        "state_synchronizer": (
            world.state,
            {"initialize", "fetch_updates", "update_state", "compact"},
            {
                "initialize": (0,),
                "update_state": (update,),
                "update_state_unconditionally": ([1],),
            },
        ),
        "transactional_writer": (
            world.transactions,
            {"begin_transaction"},
            {"get_transaction": (world.transaction.id,)},
        ),
        "transaction": (
            world.transaction,
            {"status", "write_event", "flush", "ping", "commit", "abort"},
            writes,
        ),
        "joint_writer": (world.joint_writer, {"begin_transaction"}, {}),
        "joint_transaction": (
            world.joint,
            {"status", "write_event", "flush", "ping", "commit", "abort"},
            joint,
        ),
    }


KINDS = [
    "writer", "dead_letter_writer", "reader", "byte_writer", "byte_reader", "group_reader",
    "table", "revisioned_stream", "state_synchronizer", "transactional_writer", "transaction",
    "joint_writer", "joint_transaction",
]  # fmt: skip


@pytest.fixture(scope="module", params=["local", "memory"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    """One world for all kinds: a child changes nothing of it."""
    if request.param == "memory":
        return World("memory://forked-handles")
    return World(str(tmp_path_factory.mktemp("forked") / "root"))


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_inherited_handle_refuses_a_child_or_works_there(world: World, kind: str) -> None:
    assert list(cases(world)) == KINDS
    handle, refused, arguments = cases(world)[kind]
    found = everything_held(lambda: outcomes(handle, arguments))
    allowed = re.compile("works|ForkedProcess|UnsupportedOperation|ValueError: .* closed file")
    assert {name: end for name, end in found.items() if not allowed.match(end)} == {}
    assert {n for n in refused if not found[n].startswith("ForkedProcess")} == set()


def works_in_child(world: World) -> list[str]:
    """Use what a child may inherit, and what it makes itself."""
    fresh = StreamManager(root_of(world.manager).store.url)
    found = []
    for n, manager in enumerate((world.manager, fresh)):
        with manager.create_writer("s/other") as writer:
            writer.write_event(b"child", "k").result()
        with manager.create_byte_writer("s/bytes") as byte_writer:
            byte_writer.write(b"child")
        with manager.key_value_table("s/table") as table:
            table.put("child", b"1").result()
            assert table.get("child") is not None
        with (
            manager.create_transactional_writer("s/other") as transactions,
            transactions.begin_transaction() as transaction,
        ):
            transaction.write_event(b"child", "k")
        with (
            manager.create_joint_writer(["s/events", "s/other"]) as joint,
            joint.begin_transaction() as both,
        ):
            both.write_event("s/other", b"child", "k")
        state = manager.state_synchronizer("s/state", lambda state, update: state + update)
        state.fetch_updates()
        state.update_state(lambda state, updates: updates.append(1))
        group = world.group if manager is world.manager else manager.reader_group("s/group")
        with group.create_reader(f"child-{n}") as reader:
            reader.read_next_event(0)
        found.append(f"{sum(1 for _ in manager.read('s/other'))} {state.get_state()}")
    found.append(str(len(world.stream.info().segments)))
    return found


@pytest.mark.medium
def test_managers_streams_and_groups_work_in_a_child(world: World) -> None:
    before = sum(1 for _ in world.manager.read("s/other"))
    state = world.state.get_state()
    assert everything_held(lambda: works_in_child(world)) == [
        f"{before + 3} {state + 1}", f"{before + 6} {state + 2}", "1",
    ]  # fmt: skip


@pytest.mark.long
def test_children_of_a_parent_whose_threads_work_never_wait(tmp_path: Path) -> None:
    world = World(str(tmp_path / "root"))
    numbers, over, failed = itertools.count(), threading.Event(), list[BaseException]()

    def open_again() -> None:
        manager = StreamManager(root_of(world.manager).store.url)
        assert manager.stream_info("s/other").segments

    def commit() -> None:
        with world.transactions.begin_transaction() as transaction:
            transaction.write_event(b"5", "k")

    def put() -> None:
        world.table.put(f"k{next(numbers) % 20}", b"1").result()
        world.table.get("k1")

    uses: list[Callable[[], object]] = [
        lambda: world.writer.write_event(b"5", "k").result(),
        lambda: world.group_reader.read_next_event(0.01),
        lambda: world.state.update_state(lambda state, updates: updates.append(1)),
        lambda: sum(1 for _ in world.manager.read("s/other")),
        open_again, commit, put,
    ]  # fmt: skip

    def work(use: Callable[[], object]) -> None:
        try:
            while not over.is_set():
                use()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(use,)) for use in uses]
    for thread in threads:
        thread.start()
    try:
        for _ in range(sized(4, 150, "FORKED_CHILDREN")):
            over.wait(random.random() / 50)
            found = in_child(lambda: [outcome(use) for use in uses[:3]] + works_in_child(world))
            assert [text[:13] for text in found[:3]] == ["ForkedProcess"] * 3
            assert found[-1] == "1", found
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failed == []


@pytest.mark.medium
def test_child_whose_parent_changed_the_folders_of_a_memory_store_lists_what_it_has() -> None:
    manager = StreamManager("memory://forked-folders")
    manager.create_scope("s")
    store: Any = root_of(manager).store
    store._objects["lost/half"] = store._objects[next(iter(store._objects))]  # not in its folder
    assert everything_held(lambda: [entry.key for entry in store.list("lost/")]) == ["lost/half"]


@contextlib.contextmanager
def busy(work: Callable[[], object], begun: threading.Event) -> Iterator[None]:
    """Have a thread in the midst of some work, which sets the event and waits for ``GO_ON``."""
    GO_ON.clear()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(_SECONDS)
        yield
    finally:
        GO_ON.set()
        thread.join()


GO_ON = threading.Event()


@pytest.mark.medium
def test_child_reads_a_property_that_a_thread_of_its_parent_computes() -> None:
    begun, parent = threading.Event(), os.getpid()

    class Computed:
        @lazy_property
        def value(self) -> int:
            begun.set()
            return os.getpid() if os.getpid() != parent or GO_ON.wait(_SECONDS) else 0

    shared = Computed()
    with busy(lambda: shared.value, begun):
        found = everything_held(lambda: [shared.value != parent, Computed().value != parent])
    assert found == [True, True]
    assert shared.value == shared.value == parent


@pytest.mark.medium
def test_child_does_not_wait_for_calls_in_the_background_of_its_parent() -> None:
    begun = threading.Event()
    futures: list[Future[Any]] = []

    def work() -> None:
        begun.set()
        GO_ON.wait(_SECONDS)

    def parts() -> Generator[int, None, None]:
        yield 1
        work()
        yield 2

    ahead = SYSTEM.read_ahead([parts()], 1)
    assert next(ahead) == 1
    with busy(lambda: futures.append(SYSTEM.start(work)), begun):
        while not futures:
            GO_ON.wait(0.001)
        found = everything_held(
            lambda: [outcome(futures[0].result), outcome(lambda: next(ahead)), outcome(ahead.close)]
        )
    assert [text.partition(":")[0] for text in found] == ["ForkedProcess", "ForkedProcess", "works"]
    assert futures[0].result() is None
    assert list(ahead) == [2]


@pytest.mark.medium
def test_child_imports_what_a_thread_of_its_parent_was_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    (tmp_path / "slow_to_import.py").write_text(
        "import pathlib, time, os\n"
        f"begun, go_on = pathlib.Path({str(begun)!r}), pathlib.Path({str(go_on)!r})\n"
        "is_first = not begun.exists()\n"
        "begun.touch()\n"
        "while is_first and not go_on.exists():\n"
        "    time.sleep(0.001)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    thread = threading.Thread(target=lambda: __import__("slow_to_import"))
    thread.start()
    while not begun.exists():
        thread.join(0.001)
    try:
        assert everything_held(lambda: __import__("slow_to_import").is_first) is False
    finally:
        go_on.touch()
        thread.join()


def test_every_lock_that_a_child_may_meet_is_new_there() -> None:
    folder = Path(pravega_spark.__file__).parent
    others = {
        "engine/chunks/arrow_arrays.py",  # held across a fork
        "engine/runtime/shared_calls.py",  # of one call, whose thread waits for it
        "engine/store/local_files.py",  # of a file, which a child forgets
        "engine/writing/futures.py",  # a child drops the fields of futures
        "engine/runtime/system.py",  # of the background's futures, which fail there
        "primitives/process_locks.py",
    }
    own = re.compile(r"\b(threading\.)?(R?Lock|Condition)\(\)|cached_property\(|@cached_property")
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if own.search(re.sub(r'""".*?"""', "", path.read_text(), flags=re.S))
    }
    assert found == others
