"""Copies of a root that all live on: each holds what its own line of life acknowledged, no more.

Random sequences of appends, transactions over one and two streams, puts, folds, re-creations and
sweeps that archive writers, in roots that are copied, backed up and restored, also by processes
that are killed and by copies that lack their newest objects. What must hold:

- A root has exactly the events and entries that were acknowledged in it, or in its source before
  it was copied; a writer's id continues after its last event there.
- A copy that lacks objects has the beginning of each stream, and counts the rest. A transaction
  over two streams is in both or in none, or the restore names it as torn.
- A pointer, a cut, a version of an entry or a transaction that a root accepts means there what it
  was made for.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from pravega_spark.backup.restore import RestoredTable
from pravega_spark.backup.root_restore import RestoreResult
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.root_marker import read_record
from pravega_spark.engine.stream.archived_records import find_writer
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import NoSuchTable, PravegaSparkError
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import KeyVersion
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.manager import StreamManager
from pravega_spark.txn.decision_log import DecisionLog
from pravega_spark.txn.joint import JointTransaction
from pravega_spark.txn.transaction import Transaction
from pravega_spark.values.segments import EventPointer, StreamCut
from tests.harness.backup_world import copy_objects, manager_of, stream_of
from tests.harness.failpoints import at_failpoint, register
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.joint_world import JointProcess
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.simulated_kills import Killed, kill, kill_at_visit
from tests.harness.tiers import sized
from tests.harness.transaction_world import begun

STREAMS = S, U = "s/t", "s/u"
WRITERS = ("v", "w")
K, LOG = "s/k", "s/_kv_tables/k"
E, X = "s/e", "s/x"
"""A stream and a table that are there at times."""
STRINGS = KeyValueTableConfiguration("string")
JOINT_POINTS = ("joint.prepared", "joint.decided", "joint.closed", "joint.carried-out")
BACKUP_POINTS = (
    *("backup.pinned", "backup.pinned", "backup.files", "backup.log", "backup.file"),
    *("backup.table", "backup.table", "backup.marker", "backup.folded"),
)
UPDATE_POINTS = (
    *BACKUP_POINTS,
    *("backup.led-up", "backup.prepared", "backup.applied", "backup.applied", "backup.changed"),
)
RESTORE_POINTS = (
    *("restore.planned", "restore.cleared", "restore.replaced", "restore.last", "restore.row"),
    *("restore.marker", "restore.folded"),
)
VERBS = (
    *("append", "append", "append", "put", "put", "remove", "fold", "create_again", "archive"),
    *("toggle", "begin", "begin", "begin_joint", "begin_joint", "end", "end", "end", "sweep"),
    *("copy", "copy_in_part", "restore", "restore_stream", "back_up"),
    *("back_up_amid", "back_up_amid", "back_up_amid_archive"),
    *("update_copy", "update_copy", "update_copy_amid", "update_copy_amid"),
)


@dataclass(frozen=True)
class Txn:
    """A transaction, with the events that it would add to each of its streams."""

    token: str
    events: dict[str, bytes]
    parts: dict[str, str]
    """The ids of its parts, by stream: one is that of a transaction over one stream alone."""
    is_joint: bool


@dataclass
class Root:
    """A root, and what it must hold."""

    store: Store
    runtime: FakeRuntime
    events: dict[str, list[bytes]]
    entries: dict[str, bytes] = field(default_factory=dict)
    open: dict[str, Txn] = field(default_factory=dict)
    decided: dict[str, Txn] = field(default_factory=dict)
    """Joint transactions whose process died between the decision and the last of its streams."""
    is_whole: bool = True
    """Whether it is no copy that lacked something, which every restore reports again."""
    extras: frozenset[str] = frozenset()
    """Which of ``E`` and ``X`` exist."""

    @property
    def manager(self) -> StreamManager:
        return manager_of(self.store, self.runtime)

    @property
    def joint(self) -> JointProcess:
        return JointProcess(self.store, self.runtime)

    def stream(self, name: str) -> StreamLog:
        return stream_of(self.store, name, self.runtime)

    def found(self, name: str) -> list[bytes]:
        return [event.data for event in self.manager.read(name)]

    def check(self) -> None:
        for name in STREAMS:
            assert self.settled(name) == self.events[name], name
            stream = self.stream(name)
            for writer_id in WRITERS:
                known = find_writer(stream, stream.view(), writer_id)
                last = 0 if known is None else max(known.last, 0)
                assert last == self.count(name, writer_id), f"{writer_id} is known after {last}"
        table = self.manager.key_value_table(K)
        assert {entry.key: entry.value for entry in table.entries()} == self.entries
        assert self.found_extras() == self.extras

    def count(self, name: str, writer_id: str) -> int:
        return sum(event.startswith(f"{writer_id}:".encode()) for event in self.events[name])

    def found_extras(self) -> frozenset[str]:
        """Return which of the names that come and go exist; whoever looks mends what lists them."""
        has_stream, has_table = self.manager.stream_exists(E), self._has_table()
        found = {name for name, exists in ((E, has_stream), (X, has_table)) if exists}
        listed = {*self.manager.list_streams("s"), *self.manager.list_key_value_tables("s")}
        assert listed == {S, U, K, *found}
        return frozenset(found)

    def _has_table(self) -> bool:
        try:
            return self.manager.key_value_table(X).get("a") is None
        except NoSuchTable:
            return False

    def settled(self, name: str) -> list[bytes]:
        """Return a stream's events, after noting the decided ones that it has got by now."""
        found = self.found(name)
        known = set(self.events[name])
        late = {txn.events[name] for txn in self.decided.values() if name in txn.events}
        if set(found) - known <= late:
            ours = [event for event in found if event in known]
            assert ours == self.events[name], name
            self.events[name] = found
        return found

    def end(self, txn: Txn, *, is_committed: bool) -> None:
        """Note the end of a transaction that was open or decided here."""
        self.open.pop(txn.token, None)
        self.decided.pop(txn.token, None)
        if is_committed:
            for name, event in txn.events.items():
                if event not in self.events[name]:
                    self.events[name].append(event)

    def carried_out(self) -> None:
        """Everything that is decided is in all of its streams now, at places that are not known."""
        for name in STREAMS:
            found = self.settled(name)
            assert found == self.events[name], name
            for txn in self.decided.values():
                assert name not in txn.events or txn.events[name] in found, (name, txn)
        self.decided.clear()

    def handle(self, txn: Txn) -> Transaction | JointTransaction:
        if txn.is_joint:
            return self.joint.open(txn.token)
        ((name, part),) = txn.parts.items()
        return Transaction(self.stream(name), part)


class Copies:
    """Some roots that began as one, and the objects that each of them made."""

    def __init__(self, seed: int) -> None:
        self.dice, self.values = random.Random(seed), 0
        runtime = FakeRuntime(seed)
        first = Root(memory(runtime), runtime, {name: [] for name in STREAMS})
        first.manager.create_scope("s")
        for name in STREAMS:
            first.manager.create_stream(name)
        first.manager.create_key_value_table(K, STRINGS)
        first.manager.create_stream(E)
        first.manager.create_key_value_table(X)
        first.extras = frozenset({E, X})
        self.roots = [first]
        self.kept: dict[str, Store] = {}
        """The copy of a root that is brought up to date, by the root's URL."""
        self.pointers: list[tuple[EventPointer, bytes]] = []
        self.cuts: list[tuple[str, StreamCut, bytes]] = []
        self.versions: list[tuple[str, KeyVersion, bytes]] = []
        self.begun: list[Txn] = []

    def value(self, writer: str) -> bytes:
        self.values += 1
        return f"{writer}:{self.values}".encode()

    def act(self, step: Step) -> None:
        verb, seed = step
        self.dice = random.Random(seed)
        root = self.dice.choice(self.roots)
        root.runtime.sleep(self.dice.choice((0.0, 1.0, 30.0)))
        getattr(self, verb)(root)
        for one in {id(one): one for one in (root, self.roots[-1])}.values():
            one.check()

    # -------------------------------------------------------------------------- what a root does

    def append(self, root: Root) -> None:
        self.append_to(root, self.dice.choice(STREAMS), self.dice.choice(WRITERS))

    def append_to(self, root: Root, name: str, writer_id: str) -> None:
        data, cut = self.value(writer_id), root.manager.tail(name)
        with root.manager.create_writer(name, writer_id) as writer:
            assert writer.last_event_number == root.count(name, writer_id)
            pointer = writer.write_event(data).result()
        root.events[name].append(data)
        self.pointers.append((pointer, data))
        self.cuts.append((name, cut, data))

    def put(self, root: Root) -> None:
        key, value = self.dice.choice("abc"), self.value("k")
        with root.manager.key_value_table(K) as table:
            version = table.put(key, value).result()
        root.entries[key] = value
        self.versions.append((key, version, value))

    def remove(self, root: Root) -> None:
        key = self.dice.choice("abc")
        with root.manager.key_value_table(K) as table:
            table.remove(key)
        root.entries.pop(key, None)

    def fold(self, root: Root) -> None:
        log = root.stream(LOG)
        fold(log, folded_table(log, STRINGS), ttl_ms=None)

    def create_again(self, root: Root) -> None:
        manager = root.manager
        if self.dice.random() < 0.3:
            manager.delete_key_value_table(K)
            assert manager.create_key_value_table(K, STRINGS)
            root.entries = {}
            return
        name = self.dice.choice(STREAMS)
        root.joint.sweep()  # a decision is carried out in the life in which it was made
        root.carried_out()
        for txn in [txn for txn in root.open.values() if name in txn.events]:
            self.try_to_end(root, txn, commits=False)  # none that is prepared may be there
        manager.seal_stream(name)
        manager.delete_stream(name)
        assert manager.create_stream(name)
        root.events[name] = []

    def toggle(self, root: Root) -> None:
        """Create or delete what comes and goes."""
        manager, name = root.manager, self.dice.choice((E, X))
        if name not in root.extras:
            create = manager.create_stream if name == E else manager.create_key_value_table
            assert create(name)
        elif name == E:
            manager.seal_stream(name)
            manager.delete_stream(name)
        else:
            manager.delete_key_value_table(name)
        root.extras ^= {name}

    def archive(self, root: Root) -> None:
        """Let the records of writers go to their archive; leases run out meanwhile."""
        for name in STREAMS:
            for writer_id in WRITERS:
                self.append_to(root, name, writer_id)
        root.runtime.sleep(10 * 3_600)
        for name in STREAMS:
            with root.manager.create_writer(name) as writer:
                root.events[name].append(self.value("n"))
                writer.write_event(root.events[name][-1])
            root.manager.sweep_stream(name, grace="1 h", retain="1 h", keep_records="1 h")

    # ------------------------------------------------------------------------------ transactions

    def begin(self, root: Root) -> None:
        name, event = self.dice.choice(STREAMS), self.value("t")
        handle = begun(root.stream(name))
        handle.write_event(event)
        handle.flush()
        if self.dice.random() < 0.3:
            handle.prepare()
        self.note(root, Txn(handle.id, {name: event}, {name: handle.id}, is_joint=False))

    def begin_joint(self, root: Root) -> None:
        """Begin a transaction over both streams; it may end here, or die in its commit."""
        events = {name: self.value("j") for name in STREAMS}
        handle = root.joint.written(events)
        handle.flush()
        txn = Txn(handle.id, events, handle.part_ids, is_joint=True)
        self.note(root, txn)
        what = self.dice.choice(("open", "commit", "killed", "killed", "killed"))
        if what == "open":
            return
        point = self.dice.choice(JOINT_POINTS)
        action = kill_at_visit(1) if what == "killed" else lambda: None
        try:
            with at_failpoint(point, action):
                handle.commit()
        except Killed:
            if point != "joint.prepared":
                root.decided[txn.token] = root.open.pop(txn.token)
        else:
            root.end(txn, is_committed=True)

    def note(self, root: Root, txn: Txn) -> None:
        root.open[txn.token] = txn
        self.begun.append(txn)

    def end(self, root: Root) -> None:
        """Commit or abort a transaction, of this root or not."""
        if not self.begun:
            return
        ours = [*root.open.values(), *root.decided.values()]
        txn = self.dice.choice(ours if ours and self.dice.random() < 0.7 else self.begun)
        self.try_to_end(root, txn, commits=self.dice.random() < 0.6)

    def try_to_end(self, root: Root, txn: Txn, *, commits: bool) -> None:
        """Only one that is open here can end here; a lease may have run out before."""
        is_open, is_decided = txn.token in root.open, txn.token in root.decided
        try:
            handle = root.handle(txn)
            if commits:
                handle.commit()
            else:
                handle.abort()
        except PravegaSparkError:
            commits = False
        if is_open or (is_decided and commits):
            root.end(txn, is_committed=commits)

    def sweep(self, root: Root) -> None:
        """Settle what dead processes left; nothing that is open runs out of its lease."""
        root.joint.sweep()
        root.carried_out()

    # ------------------------------------------------------------------------------------ copies

    def copy(self, root: Root) -> None:
        self.add(root, copy_objects(root.store))

    def back_up(self, root: Root) -> None:
        target = MemoryStore()
        done = root.manager.backup(target.url)
        root.carried_out()
        assert set(done.transactions) >= {name for t in root.open.values() for name in t.parts}
        self.add(root, target)

    def back_up_amid(self, root: Root) -> None:
        """A root goes on amid a backup, or after its death, before the call that completes it."""
        self.back_up_while(root, self.dice.choice(BACKUP_POINTS), archives=False)

    def back_up_amid_archive(self, root: Root) -> None:
        """Records of writers are archived before the backup of a stream, and newer ones amid it."""
        self.archive(root)
        self.back_up_while(root, "backup.files", archives=True)

    def update_copy(self, root: Root) -> None:
        """Bring the copy of a root up to date, or make it."""
        target = self.kept.setdefault(root.store.url, MemoryStore())
        root.manager.backup(target.url, update=True)
        root.carried_out()
        self.add(root, copy_objects(target))

    def update_copy_amid(self, root: Root) -> None:
        target = self.kept.setdefault(root.store.url, MemoryStore())
        self.back_up_while(root, self.dice.choice(UPDATE_POINTS), archives=False, target=target)

    def back_up_while(
        self, root: Root, point: str, *, archives: bool, target: Store | None = None
    ) -> None:
        """Each stream and table of the copy is of one moment or of the other.

        A ``target`` is a copy that is brought up to date.
        """
        updates, has_died, has_come = target is not None, False, False
        target = MemoryStore() if target is None else target
        before = self.state(root)

        def go_on() -> None:
            nonlocal has_come, before
            has_come = True
            root.carried_out()
            before = self.state(root)
            if archives:
                self.archive(root)
            own = [self.append, self.append, self.put, self.fold, self.create_again]
            own += [self.archive, self.archive, self.toggle, self.toggle]
            for _ in range(self.dice.randint(1, 3)):
                self.dice.choice([*own, self.begin, self.begin_joint])(root)

        def die() -> None:
            nonlocal has_died
            has_died = True
            kill()

        action = go_on if archives else self.dice.choice((die, go_on))
        was_finished = "finished_ms" in (read_record(target) or {}).get("backup", {})
        with at_visit(point, self.dice.randint(1, 5), action):
            root.manager.backup(target.url, update=updates)
        if has_died:
            if was_finished:  # open, whatever has killed the update
                half = Root(target, self.new_runtime(root), {})
                for name in STREAMS:
                    half.found(name)
                list(half.manager.key_value_table(K).entries())
            go_on()
            root.manager.backup(target.url, update=updates)
        self.sweep(root)
        after = self.state(root)
        before = before if has_come else after
        late = {e for name in STREAMS for e in after.events[name] if e.startswith(b"j:")}
        copy = copy_objects(target) if updates else target
        made = Root(copy, self.new_runtime(root), {}, is_whole=False)
        for name in STREAMS:
            found = made.events[name] = made.found(name)
            ours = [event for event in found if event not in late]
            assert ours in (
                [e for e in one.events[name] if e not in late] for one in (before, after)
            )
        table = made.manager.key_value_table(K)
        made.entries = {str(entry.key): bytes(entry.value) for entry in table.entries()}
        assert made.entries in (before.entries, after.entries)
        made.extras = made.found_extras()
        assert before.extras & after.extras <= made.extras <= before.extras | after.extras
        assert not has_died or made.extras == after.extras, "what was deleted stays so"
        made.check()  # also as it is, before a restore looks at its versions again
        self.restore_and_add(made)

    def copy_in_part(self, root: Root) -> None:
        """Copy a root without the newest objects of one of its streams."""
        name = self.dice.choice(STREAMS)
        keys = sorted(entry.key for entry in root.store.list(name))
        log = [key for key in keys if "/_delta_log/0" in key and key.endswith(".json")]
        log = [key for key in log if key.startswith(f"{name}/events/")]
        newest = set(log[max(1, len(log) - self.dice.randint(0, 3)) :])
        lost, what = set(newest), self.dice.choice(("none", "data", "manifests"))
        if what == "data" and (data := [key for key in keys if "/events/data/" in key]):
            lost.add(self.dice.choice(data))
        elif what == "manifests":
            lost |= {key for key in keys if "/transactions/" in key}
        target = copy_objects(root.store, wanted=lambda key: key not in lost)
        made = replace(self.state(root), store=target, runtime=self.new_runtime(root))
        made.decided, made.open, made.is_whole = {}, {}, False
        done = self.restored(made)
        if name not in done.streams or done.streams[name].life is None:
            return  # nothing of it is whole, or only a life that had ended
        if made.stream(name).view().record.state is not StreamState.ACTIVE:
            return  # an earlier life at its end
        made.events = {one: made.found(one) for one in STREAMS}
        self.check_whole(made, root, U if name == S else S)
        self.check_part(made, root, done.streams[name], is_counted=not newest)
        self.roots = [*self.roots, made][:5]

    def check_whole(self, made: Root, root: Root, name: str) -> None:
        """A stream that lost nothing has all, and what was decided."""
        late = {txn.events[name] for txn in root.decided.values()} - set(root.events[name])
        assert [e for e in made.events[name] if e not in late] == root.events[name]
        assert late <= set(made.events[name]), name

    def check_part(
        self, made: Root, root: Root, result: RestoredTable, *, is_counted: bool
    ) -> None:
        """A stream that lost its end has its beginning, or that of an earlier life of its own."""
        name = result.path.removesuffix("/events")
        other = U if name == S else S
        late = {txn.events[name] for txn in root.decided.values()} - set(root.events[name])
        found, whole = [e for e in made.events[name] if e not in late], root.events[name]
        if found != whole[: len(found)]:
            assert not set(found) & set(whole), "events of two lives"
            return
        if is_counted:
            assert result.dropped_events >= len(whole) - len(found)
        known = DecisionLog(made.store, made.runtime).read()
        for txn in self.begun:
            if txn.is_joint and txn.token in known:
                was_here = txn.events[name] in whole or txn.token in root.decided
                is_here = txn.events[name] in made.events[name]
                is_there = txn.events[other] in made.events[other]
                is_torn = was_here and is_there and not is_here
                is_told = txn.token in result.torn
                assert is_told >= is_torn, txn
                assert is_told == is_torn or not root.is_whole, txn  # an earlier loss is told again

    def state(self, root: Root) -> Root:
        """Return what a root holds, apart from what it will hold."""
        events = {name: list(found) for name, found in root.events.items()}
        return replace(root, events=events, entries=dict(root.entries))

    def new_runtime(self, root: Root) -> FakeRuntime:
        """Return a host whose chance is its own, and whose clock shows the same."""
        runtime = FakeRuntime(self.dice.randrange(1 << 30))
        runtime.sleep(root.runtime.elapsed - runtime.elapsed)
        return runtime

    def add(self, root: Root, store: Store) -> None:
        """Restore a copy of all that a root has, and let it live on."""
        made = replace(self.state(root), store=store, runtime=self.new_runtime(root))
        made.decided, made.open = dict(root.decided), dict(root.open)
        self.restore_and_add(made)

    def restore_and_add(self, made: Root) -> None:
        assert self.restored(made).failed == {}
        if len(self.roots) < 5:
            self.roots.append(made)

    def restored(self, root: Root) -> RestoreResult:
        """Restore a whole copy, by processes that may die; what is open there is aborted."""
        for _ in range(self.dice.choice((0, 0, 1, 2))):
            with at_visit(self.dice.choice(RESTORE_POINTS), self.dice.randint(1, 4), kill):
                root.manager.restore()
        done = root.manager.restore()
        root.open.clear()
        return done

    def restore(self, root: Root) -> None:
        done = self.restored(root)
        assert done.failed == {}
        for one in done.streams.values():
            assert not root.is_whole or (one.dropped_versions, one.torn) == (0, ())
        root.carried_out()

    def restore_stream(self, root: Root) -> None:
        """Restore one stream of a root that goes on: the rest of the root is as it was."""
        name = self.dice.choice(STREAMS)
        done = root.manager.restore_stream(name)
        assert not root.is_whole or (done.dropped_versions, done.torn) == (0, ())
        root.carried_out()
        root.open = {token: txn for token, txn in root.open.items() if name not in txn.events}

    # --------------------------------------------------------------------- objects of other roots

    def show_all(self) -> None:
        """Show every object to every root."""
        for root in self.roots:
            self.sweep(root)
            root.check()
            for txn in self.begun:
                self.try_to_end(root, txn, commits=True)
            root.check()
            manager = root.manager
            for pointer, data in self.pointers:
                with contextlib.suppress(PravegaSparkError):
                    found = manager.fetch_event(pointer).data
                    assert found == data, (pointer, found, data)
            for name, cut, data in self.cuts:
                with contextlib.suppress(PravegaSparkError):
                    events = [event.data for event in manager.read(name, cut)]
                    assert events[0] == data, (cut, events, data)
            with manager.key_value_table(K) as table:
                for key, version, value in self.versions:
                    present = table.get(key)
                    with contextlib.suppress(PravegaSparkError):
                        table.replace(key, value, version)
                        assert present is not None
                        assert present.value == value, (key, version, present.value, value)


@contextlib.contextmanager
def at_visit(point: str, visit: int, action: Callable[[], None]) -> Iterator[None]:
    """Run an action at the n-th visit of a failpoint; a kill ends only what runs here."""
    left = visit

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            action()

    register(point, count)
    try:
        yield
    except Killed:
        pass
    finally:
        register(point, None)


def play(seed: int, steps: Iterable[Step]) -> None:
    copies = Copies(seed)
    for step in steps:
        copies.act(step)
    copies.show_all()


def sequence(seed: int) -> None:
    play_shortest(seed, drawn_steps(seed, VERBS, 4 + seed % 14), partial(play, seed))


@pytest.mark.long
def test_no_copy_takes_what_another_made(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    for seed in range(sized(5, 5_000, "COPIES_SEEDS")):
        sequence(seed)
