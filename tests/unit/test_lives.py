"""A call of one life never changes the next life, wherever the call is stalled.

Each verb of StreamManager that writes first reads the present state. The call is then stalled, in
turn, before and after each of its later writes, and before each listing and each opening of a log,
while another process deletes the group, the stream and the scope and creates them again. Then the
call continues: every object of the next life stays the same, byte for byte, and no log gets a
commit. The other verbs write nothing. Objects of a life, such as those that verbs return, are used
after that life has ended: they are refused, and the next life stays the same.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.byte_streams.reader import ByteStreamReader
from pravega_spark.byte_streams.writer import ByteStreamWriter
from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log import checkpoint
from pravega_spark.errors import (
    IllegalState,
    NoSuchCut,
    NoSuchStream,
    NotFound,
    PravegaSparkError,
    ReinitializationRequired,
    StaleIdentity,
)
from pravega_spark.event_reader import EventReader
from pravega_spark.event_time.stream_time import StreamTime
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.updates import TablePut
from pravega_spark.manager import StreamManager, manager_over
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.retention.stream_retention import StreamRetention
from pravega_spark.scaling.auto import StreamScaling
from pravega_spark.txn.joint import JointTransaction
from pravega_spark.txn.transaction import Transaction, add_staged, keep_alive
from pravega_spark.txn.writer import TransactionalWriter
from pravega_spark.values.segments import EventPointer, SegmentRange, StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import NOW_MS, FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill
from tests.harness.spy_store import Spy
from tests.harness.tiers import IS_LONG, sized
from tests.unit.test_stream import verbs as stream_verbs

S, G, H, K = "s/t", "s/g", "s/h", "s/k"
ONE = "s/one"
"""A stream of one segment."""
STREAM, SCOPE = f"{S}/events", "s/_scope"
TABLE = "s/_kv_tables/k/events"
GROUP, HALF_MADE = "s/_reader_groups/g", "s/_reader_groups/h"
WRITING = ("put", "put_if_absent", "delete")
KEEP_ONE_BYTE = RetentionPolicy.by_size(1)
FIRST = StreamConfiguration(ScalingPolicy.fixed(2), KEEP_ONE_BYTE, tags=frozenset({"first"}))
SECOND = StreamConfiguration(ScalingPolicy.fixed(3), KEEP_ONE_BYTE, tags=frozenset({"second"}))
THIRD = StreamConfiguration(ScalingPolicy.fixed(4), tags=frozenset({"third"}))


@dataclass
class World:
    """One store, seen by the process under test (``manager``) and by another one (``other``)."""

    wall_ms: float = NOW_MS
    transaction: str = ""
    """The id of a transaction that is open in the first life."""
    tail: StreamCut = StreamCut.EARLIEST
    event: EventPointer | None = None
    joint: str = ""
    """The id of a joint transaction that is open in the first life."""

    def __post_init__(self) -> None:
        self.runtime = FakeRuntime()
        self.runtime.wall_ms = self.wall_ms
        self.inner = memory(self.runtime)
        self.store = Spy(self.inner)
        self.manager = manager_over(self.store, self.runtime)
        self.other = manager_over(self.inner, self.runtime)

    def copy(self) -> World:
        """A copy of all objects, which changes independently."""
        made = World(self.runtime.wall_ms, self.transaction, self.tail, self.event, self.joint)
        made.inner._objects = dict(self.inner._objects)
        made.inner._folders.rebuild(made.inner._objects)
        return made

    def objects(self) -> dict[str, bytes]:
        return {key: found.data for key, found in self.inner._objects.items()}

    def head(self, path: str) -> int:
        """The newest version of a log, -1 if there is none."""
        names = [key.rsplit("/", 1)[-1] for key in self.objects() if f"{path}/_delta_log/0" in key]
        return max((int(name[:20]) for name in names), default=-1)

    # ------------------------------------------------------------------- what another process does

    def begin(self, configuration: StreamConfiguration) -> None:
        """A scope, a stream with events, a transaction, a group and a subscriber that hold data."""
        other = self.other
        other.create_scope("s")
        other.create_stream(S, configuration)
        with other.create_writer(S, "w") as writer:
            for n in range(2):
                writer.write_event(b"event", f"k{n}")
                writer.flush()
        with other.create_transactional_writer(S, "tw") as writer:
            writer.begin_transaction(lease=10).write_event(b"x", "k")
            flushed = writer.begin_transaction(lease=10)
            flushed.write_event(b"y", "k")
            flushed.flush()
        other.create_stream(ONE)
        other.create_reader_group(G, [S], retention="manual")
        other.subscribe(S, "nightly")
        other.create_key_value_table(
            K, KeyValueTableConfiguration("string", tags=configuration.tags)
        )
        with other.key_value_table(K) as table:
            table.insert("k", "1")
            log = table._stream  # folded: otherwise its deletion creates the folded table
            fold(log, folded_table(log, table.configuration))

    def end(self) -> None:
        """Delete everything, in any state that the process under test has left."""
        other = self.other
        with contextlib.suppress(NotFound):
            other.delete_scope("s", recursive=True)

    def next_life(self) -> None:
        self.end()
        self.begin(SECOND)

    def let(self, happen: Callable[[World], object]) -> None:
        """Let it happen, or take over what it left when it happened to the same objects before."""
        state = (happen, self.runtime.wall_ms, frozenset(self.inner._objects.items()))
        left = _left_by.get(state)
        if left is None:
            happen(self)
            _left_by[state] = self.runtime.wall_ms, dict(self.inner._objects)
        else:
            self.runtime.wall_ms, objects = left
            self.inner._objects = dict(objects)
            self.inner._folders.rebuild(objects)


_left_by: dict[object, tuple[float, dict[str, Any]]] = {}
"""What another process left behind, by the objects that it found: to begin a life takes long."""


def nothing(world: World) -> None:
    """Leave the first life unchanged."""


def sealed(world: World) -> None:
    world.other.seal_stream(S)


def emptied(world: World) -> None:
    world.end()
    world.other.create_scope("s")


def long_deleted(world: World) -> None:
    """A deleted stream whose log is so old that a sweep of the scope may clean it."""
    emptied(world)
    for _ in range(3):
        world.runtime.sleep(86_400)
        world.other.sweep_scope("s", grace="1h", retain="1h")
    world.runtime.sleep(86_400)


def next_life_and_seal(world: World) -> None:
    world.next_life()
    world.other.seal_stream(S)


def half_made(world: World) -> None:
    """A group whose creation is in its own log, but not in its stream's."""
    with at_failpoint("group.change.noted", kill), pytest.raises(Killed):
        world.other.create_reader_group(H, [S], retention="automatic")


@dataclass(frozen=True)
class Verb:
    """A call, the log that it reads first, and what happens before and during it."""

    call: Callable[[World], Any]
    looks_at: str = STREAM
    before: Callable[[World], object] = nothing
    meanwhile: Callable[[World], object] = World.next_life


def asked(world: World) -> None:
    """A reader that has yet to answer a checkpoint."""
    group = world.other.reader_group(G)
    group.create_reader("r")
    group.initiate_checkpoint("asked")


def overloaded(world: World) -> None:
    """A stream that grows faster than its policy wants, for 20 minutes."""
    by_rate = StreamConfiguration(ScalingPolicy.by_event_rate(1, minimum=2), KEEP_ONE_BYTE)
    world.other.update_stream(S, by_rate)
    with world.other.create_writer(S) as writer:
        for n in range(80):
            writer.write_events([b"x"] * 60, f"k{n}").result()
            world.runtime.sleep(15)


def noted(world: World) -> None:
    """A writer that notes times, and one that has left."""
    for name in ("here", "gone"):
        writer = world.other.create_writer(S, name)
        writer.note_time(100).result()
        if name == "gone":
            writer.close()


def cut_looked_up(world: World) -> None:
    with pytest.raises(NoSuchCut):
        world.manager.saved_cut(S, "none")


def many_chunks(world: World) -> None:
    """Old chunks that are merged, and a head that divides one of them."""
    with world.other.create_writer(S) as writer:
        for n in range(60):
            writer.write_events([b"x", b"y"], f"k{n % 2}").result()
    head = {s: offset and offset // 4 * 2 + 1 for s, offset in world.other.tail(S)}
    world.other.truncate_stream(S, StreamCut(S, 1, head), past_subscribers=True)
    world.runtime.sleep(2 * 86_400)


def written(writer: Any) -> None:
    with writer:
        writer.write_event(b"late", "k")


def of_one_segment(world: World) -> None:
    """A stream of bytes, and a next life that is one, too."""
    world.other.update_stream(S, scaling=ScalingPolicy.fixed(1))
    with world.other.create_byte_writer(S) as writer:
        writer.write(b"0123456789")


def bytes_written(writer: Any) -> None:
    with writer:
        writer.write(b"late")


def bytes_read(world: World) -> None:
    of_one_segment(world)
    assert world.manager.create_byte_reader(S, timeout=0).read(4) == b"0123"


def bytes_truncated(manager: StreamManager) -> None:
    with manager.create_byte_writer(S) as writer:
        writer.truncate_before(5, past_subscribers=True)


def marked(log: Any) -> None:
    for value in (b"a", b"b"):
        log.write_unconditionally(value)
    log.write_conditionally(log.fetch_latest_revision(), b"c")
    log.compare_and_set_mark(None, log.fetch_latest_revision())
    log.truncate_to_revision(log.get_mark())
    log.compare_and_set_mark(log.get_mark(), None)


def counted(state: Any) -> None:
    state.initialize(0)
    state.update_state(lambda known, updates: updates.append(1))
    state.update_state_unconditionally([1])
    state.compact()
    state.compact()


def written_jointly(transaction: JointTransaction) -> None:
    with transaction:
        transaction.write_event(S, b"late", "k")


WRITES: dict[str, list[Verb]] = {
    "create_scope": [
        Verb(lambda w: w.manager.create_scope("s"), SCOPE, World.end),
    ],
    "delete_scope": [
        Verb(lambda w: w.manager.delete_scope("s"), SCOPE, emptied),
        Verb(lambda w: w.manager.delete_scope("s", recursive=True), SCOPE),
    ],
    "create_stream": [
        Verb(lambda w: w.manager.create_stream(S, THIRD)),
        Verb(lambda w: w.manager.create_stream(S, THIRD), STREAM, emptied),
    ],
    "update_stream": [
        Verb(lambda w: w.manager.update_stream(S, THIRD)),
        Verb(lambda w: w.manager.update_stream(S, retention=None, add_tags=["third"])),
        Verb(lambda w: w.manager.update_stream(S, add_tags=["third"], expected_version=0)),
    ],
    "seal_stream": [Verb(lambda w: w.manager.seal_stream(S))],
    "delete_stream": [
        Verb(lambda w: w.manager.delete_stream(S)),
        Verb(lambda w: w.manager.delete_stream(S), STREAM, sealed),
        Verb(lambda w: w.manager.delete_stream(S), STREAM, sealed, next_life_and_seal),
        Verb(lambda w: w.manager.delete_stream(S), STREAM, emptied),
    ],
    "truncate_stream": [
        Verb(lambda w: w.manager.truncate_stream(S, StreamCut.LATEST, past_subscribers=True)),
        Verb(lambda w: w.manager.truncate_stream(S, w.tail, past_subscribers=True)),
    ],
    "subscribe": [
        Verb(lambda w: w.manager.subscribe(S, "batch")),
        Verb(lambda w: w.manager.subscribe(S, "batch", w.tail, generation=3)),
    ],
    "unsubscribe": [
        Verb(lambda w: w.manager.unsubscribe(S, "nightly")),
        Verb(lambda w: w.manager.unsubscribe(S, "nightly", generation=3)),
    ],
    "publish": [
        Verb(lambda w: w.manager.publish(S, "nightly", w.tail)),
        Verb(lambda w: w.manager.publish(S, "nightly", StreamCut.LATEST, generation=0)),
    ],
    "retention": [
        Verb(lambda w: w.manager.retention(S).run(expire="1h", grace="1h", retain="1h")),
    ],
    "sweep_stream": [
        Verb(lambda w: w.manager.sweep_stream(S, grace="1h", retain="1h", keep_completed="1h")),
    ],
    "compact_stream": [Verb(lambda w: w.manager.compact_stream(S), before=many_chunks)],
    "sweep_scope": [
        Verb(lambda w: w.manager.sweep_scope("s", grace="1h", retain="1h"), SCOPE),
        Verb(lambda w: w.manager.sweep_scope("s", grace="1h", retain="1h"), SCOPE, long_deleted),
    ],
    "maintain": [
        Verb(lambda w: w.manager.maintain(kinds=["transactions"], streams=[S])),
        Verb(lambda w: w.manager.maintain(kinds=["retention"], streams=[S])),
        Verb(lambda w: w.manager.maintain(kinds=["sweeping"], streams=[S])),
        Verb(lambda w: w.manager.maintain(kinds=["scaling"], streams=[S]), before=overloaded),
        Verb(lambda w: w.manager.maintain(kinds=["watermarks"], streams=[S]), before=noted),
    ],
    "scale_stream": [
        Verb(lambda w: w.manager.scale_stream(S, [0, 1], [(0, 0.3), (0.3, 0.6), (0.6, 1)])),
    ],
    "scaling": [Verb(lambda w: w.manager.scaling(S).run(), before=overloaded)],
    "event_time": [
        Verb(lambda w: w.manager.event_time(S).update(), before=noted),
        Verb(lambda w: w.manager.event_time(S).note("job", 100)),
        Verb(lambda w: w.manager.event_time(S).remove_mark("here"), before=noted),
    ],
    "create_transactional_writer": [
        Verb(lambda w: w.manager.create_transactional_writer(S, "tw").close()),
        Verb(lambda w: written(w.manager.create_transactional_writer(S).begin_transaction())),
    ],
    "transaction": [
        Verb(lambda w: written(w.manager.transaction(S, w.transaction))),
        Verb(lambda w: w.manager.transaction(S, w.transaction).abort()),
        Verb(lambda w: w.manager.transaction(S, w.transaction).prepare()),
        Verb(lambda w: w.manager.transaction(S, w.transaction).ping()),
    ],
    "create_joint_writer": [
        Verb(lambda w: written_jointly(w.manager.create_joint_writer([S]).begin_transaction())),
    ],
    "joint_transaction": [
        Verb(lambda w: written_jointly(w.manager.joint_transaction(w.joint))),
        Verb(lambda w: w.manager.joint_transaction(w.joint).abort()),
    ],
    "sweep_transactions": [Verb(lambda w: w.manager.sweep_transactions(S))],
    "create_reader_group": [
        Verb(lambda w: w.manager.create_reader_group(H, [S], retention="automatic")),
        Verb(
            lambda w: w.manager.create_reader_group(G, [S]),
            GROUP,
            lambda w: w.other.delete_reader_group(G),
        ),
    ],
    "reader_group": [
        Verb(lambda w: w.manager.reader_group(G).publish({S: w.tail}), GROUP),
        Verb(lambda w: w.manager.reader_group(G).initiate_checkpoint("late"), GROUP),
        Verb(lambda w: w.manager.reader_group(G).cancel_outstanding_checkpoints(), GROUP, asked),
        Verb(lambda w: w.manager.reader_group(G).reader_offline("r"), GROUP, asked),
        Verb(lambda w: w.manager.reader_group(G).reset(), GROUP),
        Verb(lambda w: w.manager.reader_group(G).update(refresh="1 s"), GROUP),
        Verb(lambda w: w.manager.reader_group(G).update(remove=[S], add=[S]), GROUP),
    ],
    "delete_reader_group": [Verb(lambda w: w.manager.delete_reader_group(G), GROUP)],
    "repair_reader_groups": [
        Verb(lambda w: w.manager.repair_reader_groups(), HALF_MADE, half_made),
    ],
    "save_cut": [
        Verb(lambda w: w.manager.save_cut(S, "yesterday")),
        Verb(lambda w: w.manager.save_cut(S, "yesterday", w.manager.head(S))),
    ],
    "delete_cut": [
        Verb(
            lambda w: w.manager.delete_cut(S, "yesterday"),
            before=lambda w: w.other.save_cut(S, "yesterday"),
        )
    ],
    "fence": [
        Verb(lambda w: w.manager.fence(S, "second leader")),
        Verb(lambda w: w.manager.fence(S, "second leader", expected="")),
    ],
    "create_key_value_table": [
        Verb(lambda w: w.manager.create_key_value_table(K), TABLE),
        Verb(lambda w: w.manager.create_key_value_table(K), TABLE, emptied),
    ],
    "update_key_value_table": [
        Verb(lambda w: w.manager.update_key_value_table(K, add_tags={"third"}), TABLE),
        Verb(lambda w: w.manager.update_key_value_table(K, remove_tags={"first"}), SCOPE),
    ],
    "seal_key_value_table": [Verb(lambda w: w.manager.seal_key_value_table(K), TABLE)],
    "delete_key_value_table": [
        Verb(lambda w: w.manager.delete_key_value_table(K), SCOPE),
    ],
    "key_value_table": [
        Verb(lambda w: w.manager.key_value_table(K).put("k", "late").result(), TABLE),
        Verb(lambda w: w.manager.key_value_table(K).remove("k").result(), TABLE),
        Verb(lambda w: w.manager.key_value_table(K).insert("late", "late"), TABLE),
        Verb(lambda w: w.manager.key_value_table(K).update([TablePut("k", "late")]), TABLE),
    ],
    "create_byte_writer": [
        Verb(lambda w: w.manager.create_byte_writer(S, "w").close(), before=of_one_segment),
        Verb(lambda w: bytes_written(w.manager.create_byte_writer(S)), before=of_one_segment),
        Verb(lambda w: bytes_truncated(w.manager), before=of_one_segment),
        Verb(lambda w: w.manager.create_byte_writer(S).seal(), before=of_one_segment),
    ],
    "revisioned_stream": [
        Verb(lambda w: marked(w.manager.revisioned_stream(ONE)), f"{ONE}/events"),
    ],
    "state_synchronizer": [
        Verb(
            lambda w: counted(w.manager.state_synchronizer(ONE, lambda a, b: a + b)),
            f"{ONE}/events",
        ),
    ],
    "create_writer": [
        Verb(lambda w: w.manager.create_writer(S, "w").close()),
        Verb(lambda w: written(w.manager.create_writer(S))),
        Verb(lambda w: written(w.manager.create_writer(S, "w", fencing_token=""))),
    ],
}
"""Verbs that write, with calls on the objects that they return."""

READS: dict[str, Callable[[World], Any]] = {
    "settings": lambda w: w.manager.settings(),
    "maintenance": lambda w: w.manager.maintenance(),
    "stream_settings": lambda w: w.manager.stream_settings(S),
    "scope_exists": lambda w: w.manager.scope_exists("s"),
    "list_scopes": lambda w: w.manager.list_scopes(),
    "stream": lambda w: w.manager.stream(S).info(),
    "stream_exists": lambda w: w.manager.stream_exists(S),
    "list_streams": lambda w: w.manager.list_streams("s"),
    "stream_info": lambda w: w.manager.stream_info(S),
    "stream_storage": lambda w: w.manager.stream_storage(S),
    "list_subscribers": lambda w: w.manager.list_subscribers(S),
    "list_saved_cuts": lambda w: w.manager.list_saved_cuts(S),
    "saved_cut": cut_looked_up,
    "fencing_token": lambda w: w.manager.fencing_token(S),
    "tags": lambda w: w.manager.tags(S),
    "head": lambda w: w.manager.head(S),
    "head_filter": lambda w: w.manager.head_filter(S),
    "tail": lambda w: w.manager.tail(S),
    "cut_at": lambda w: w.manager.cut_at(S, w.manager.stream_info(S).version),
    "segments": lambda w: w.manager.segments(S),
    "segment": lambda w: w.manager.segment(S, 0),
    "successors": lambda w: w.manager.successors(S, 0),
    "predecessors": lambda w: w.manager.predecessors(S, 0),
    "epochs": lambda w: w.manager.epochs(S),
    "segments_between": lambda w: w.manager.segments_between(S, "earliest", "latest"),
    "distance": lambda w: w.manager.distance(S, "earliest", "latest"),
    "check_scale": lambda w: w.manager.check_scale(S, 0),
    "list_transactions": lambda w: w.manager.list_transactions(S),
    "list_completed_transactions": lambda w: w.manager.list_completed_transactions(S),
    "list_reader_groups": lambda w: w.manager.list_reader_groups("s"),
    "create_byte_reader": bytes_read,
    "create_reader": lambda w: list(w.manager.create_reader(S).events()),
    "read": lambda w: list(w.manager.read(S)),
    "read_table": lambda w: w.manager.read_table(S),
    "schemas": lambda w: w.manager.schemas(S),
    "follow": lambda w: list(w.manager.follow(S, "earliest", timeout=0)),
    "fetch_event": lambda w: w.manager.fetch_event(str(w.event)),
    "list_key_value_tables": lambda w: w.manager.list_key_value_tables("s"),
    "key_value_table_tags": lambda w: w.manager.key_value_table_tags(K),
    "segment_ranges": lambda w: w.manager.segment_ranges(S),
}

OF_NO_LIFE = {"close", "update_settings", "confirm_clock", "backup", "restore", "restore_stream"}
"""These work on the root, which has one life, or on logs regardless of lives: a backup pins
versions of any life, and no other process uses a copy that is being restored."""

CASES = [(f"{name}-{n}", verb) for name, verbs in WRITES.items() for n, verb in enumerate(verbs)]


@pytest.fixture(scope="module", autouse=True)
def maintenance_in_the_foreground() -> Iterator[None]:
    """Let each call maintain its logs itself: another thread would come to the call's stops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "maintain_in_background", checkpoint._maintain_quietly)
        yield


@pytest.fixture(scope="module")
def first() -> World:
    world = World()
    world.begin(FIRST)
    world.transaction = world.other.list_transactions(S)[0].transaction_id
    with world.other.create_joint_writer([S]) as writer:
        world.joint = writer.begin_transaction(lease=10).id
    world.tail = world.other.tail(S)
    world.event = next(world.other.read(S)).pointer
    world.runtime.sleep(2 * 86_400)  # long enough for sweeps and expiries
    return world


def test_every_verb_of_the_manager_is_tested_here() -> None:
    methods = inspect.getmembers(StreamManager, inspect.isfunction)
    assert not WRITES.keys() & READS.keys()
    verbs = {name for name, _ in methods if not name.startswith("_")}
    assert verbs == WRITES.keys() | READS.keys() | OF_NO_LIFE


def test_every_verb_of_a_stream_is_tested_here() -> None:
    # The manager's verbs call the stream's: tests/unit/test_stream.py shows it for each.
    assert set(stream_verbs().values()) <= WRITES.keys() | READS.keys() | OF_NO_LIFE


@pytest.mark.parametrize("name", READS)
def test_verb_that_reads_writes_nothing(first: World, name: str) -> None:
    world = first.copy()
    READS[name](world)
    assert not any(operation in WRITING for operation, _ in world.store.calls)


@dataclass
class Stop:
    """Lets another process begin the next life when the call reaches its n-th stopping point."""

    world: World
    left: int
    looked: str
    """The key that ends the first read of the call: the version after the newest one."""
    meanwhile: Callable[[World], object]
    has_looked: bool = False
    has_written: bool = False
    earlier: dict[str, bytes] | None = None
    begun: dict[str, bytes] | None = None

    def __call__(self, operation: str, key: str) -> None:
        opens = key.endswith("/_pravega/latest.json")
        is_place = opens or self.has_written or operation in (*WRITING, "list", "folders")
        if self.has_looked and is_place:
            if self.left == 0:
                self.earlier = self.world.objects()
                self.world.let(self.meanwhile)
                self.begun = self.world.objects()
            self.left -= 1
        self.has_looked = self.has_looked or key == self.looked
        self.has_written = operation in WRITING

    def touched(self) -> list[str]:
        """What the call did to the next life: objects that it changed, commits that it made.

        A sweep of a state table is of its log, in whatever life: that commit is none of a life. So
        is the record of a sweep: a late one holds less than the log, and the next sweep reads on. A
        record of a compaction names its life, so a late one is of no use. Rows of the layout name
        theirs, and those of the greatest life count.
        """
        assert self.earlier is not None
        assert self.begun is not None
        now = self.world.objects()
        theirs = {k: data for k, data in self.begun.items() if self.earlier.get(k) != data}
        changed = [key for key, data in theirs.items() if now.get(key) != data]
        new = now.keys() - self.begun.keys()
        commits = [key for key in new if "/_delta_log/0" in key and key.endswith(".json")]
        # The log of decisions is the root's, and its records name lives.
        commits = [key for key in commits if not key.startswith("_transactions/")]
        kinds = {key: set(re.findall(rb'"record":"(\w+)"', now[key])) for key in commits}
        commits = [key for key in commits if kinds[key] != {b"layout"}]
        swept = [key for key in commits if STREAM not in key and b'"SWEEP"' in now[key]]
        names = ("/_pravega/sweep.json", "/_pravega/compaction.json")
        records = [key for key in changed if key.endswith(names)]
        return sorted({*changed, *commits} - {*swept, *records})


def stops(start: World, verb: Verb) -> Iterator[tuple[Stop, Any]]:
    """Repeat the call, once for each stopping point; yield its outcome.

    The short form stops at the first one, and at every ninth of the others.
    """
    for left in itertools.chain([0], itertools.count(1, sized(9, 1))):
        world = start.copy()
        looked = f"{verb.looks_at}/_delta_log/{world.head(verb.looks_at) + 1:020d}.json"
        stop = world.store.hook = Stop(world, left, looked, verb.meanwhile)
        try:
            outcome = verb.call(world)
        except PravegaSparkError as error:
            outcome = error
        assert stop.has_looked, "the call looks first"
        if stop.begun is None:
            assert left > 0, "the call goes on after its look"
            return
        yield stop, outcome


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("verb", [verb for _, verb in CASES], ids=[name for name, _ in CASES])
def test_stalled_call_leaves_the_next_life_unchanged(first: World, verb: Verb) -> None:
    start = first.copy()
    verb.before(start)
    for number, (stop, outcome) in enumerate(stops(start, verb)):
        print(number, repr(outcome)[:150])
        assert stop.touched() == [], f"stopped at place {number}: {outcome!r}"


def test_creation_after_the_end_of_its_life_leaves_no_row() -> None:
    world = World()
    world.other.create_scope("s")

    def begun_and_ended(world: World) -> None:
        world.other.create_stream(S)
        world.other.seal_stream(S)
        world.other.delete_stream(S)

    stop = world.store.hook = Stop(world, 0, f"{STREAM}/_delta_log/{0:020d}.json", begun_and_ended)
    assert not world.manager.create_stream(S)
    assert stop.begun is not None
    assert world.other.list_streams("s") == []
    assert world.other.delete_scope("s")


def test_group_releases_a_former_stream_only_in_the_life_that_it_held(first: World) -> None:
    world = first.copy()

    world.other.create_stream("s/u")
    with at_failpoint("group.change.noted", kill), pytest.raises(Killed):
        world.other.reader_group(G).reset(ReaderGroupConfiguration(["s/u"], retention="manual"))
    world.other.seal_stream(S)
    world.other.delete_stream(S)
    world.other.create_stream(S, SECOND)
    head = world.head(STREAM)
    assert world.manager.repair_reader_groups() == {}
    assert world.head(STREAM) == head
    assert world.other.list_subscribers("s/u")[0].name == G


@dataclass(frozen=True)
class Handle:
    """An object that belongs to one life: its calls, and its members that need no storage."""

    kind: type
    make: Callable[[World], Any]
    calls: dict[str, Callable[[Any, World], Any]]
    local: frozenset[str] = frozenset()
    error: type[PravegaSparkError] = StaleIdentity


def id_there(world: World) -> str:
    """The id of a transaction of the present life."""
    return world.other.list_transactions(S)[0].transaction_id


def iterate(reader: Any, world: World) -> None:
    next(iter(reader))


HANDLES = [
    Handle(
        TransactionalWriter,
        lambda w: w.manager.create_transactional_writer(S, "mine"),
        {
            "last_note": lambda writer, w: writer.last_note,
            "begin_transaction": lambda writer, w: writer.begin_transaction(),
            "get_transaction": lambda writer, w: writer.get_transaction(id_there(w)),
        },
        frozenset({"writer_id", "close"}),
    ),
    Handle(
        Transaction,
        lambda w: w.manager.transaction(S, w.transaction),
        {
            "status": lambda transaction, w: transaction.status,
            "write_event": lambda transaction, w: written(transaction),
            "write_events": lambda transaction, w: [
                transaction.write_events([b"late"]),
                transaction.flush(),
            ],
            "write_table": lambda transaction, w: [
                transaction.write_table(pa.table({"event": [b"late"]})),
                transaction.flush(),
            ],
            "flush": lambda transaction, w: [transaction.write_event(b"x"), transaction.flush()],
            "_add_staged": lambda transaction, w: add_staged(transaction, []),
            "ping": lambda transaction, w: transaction.ping(),
            "prepare": lambda transaction, w: transaction.prepare(),
            "commit": lambda transaction, w: transaction.commit(),
            "abort": lambda transaction, w: transaction.abort(),
        },
        frozenset({"id", "epoch", "is_open", "lease_ms", "_keep_alive"}),
    ),
    Handle(
        EventStreamWriter,
        lambda w: w.manager.create_writer(S, "mine"),
        {
            "write_event": lambda writer, w: writer.write_event(b"late").result(),
            "write_events": lambda writer, w: writer.write_events([b"late"]).result(),
            "write_table": lambda writer, w: writer.write_table(
                pa.table({"event": [b"late"]})
            ).result(),
            "flush": lambda writer, w: [writer.write_event(b"late"), writer.flush("note")],
            "note_time": lambda writer, w: writer.note_time(1).result(),
        },
        frozenset({"writer_id", "last_event_number", "last_note", "last_note_event_number"})
        | {"close"},
    ),
    Handle(
        ByteStreamWriter,
        lambda w: w.manager.create_byte_writer(ONE, "mine"),
        {
            "write": lambda writer, w: [writer.write(b"late"), writer.flush()],
            "flush": lambda writer, w: [writer.write(b"late"), writer.flush()],
            "fetch_head_offset": lambda writer, w: writer.fetch_head_offset(),
            "fetch_tail_offset": lambda writer, w: writer.fetch_tail_offset(),
            "truncate_before": lambda writer, w: writer.truncate_before(0),
            "seal": lambda writer, w: writer.seal(),
            "close_and_seal": lambda writer, w: writer.close_and_seal(),
        },
        frozenset({"writer_id", "acknowledged_bytes", "readable", "readinto", "writable"})
        | {"tell", "close", "closed"},
    ),
    Handle(
        ByteStreamReader,
        lambda w: w.manager.create_byte_reader(ONE, timeout=0),
        {
            "seek": lambda reader, w: reader.seek(0, 2),
            "skip": lambda reader, w: reader.skip(1),
            "available": lambda reader, w: reader.available(),
            "fetch_head_offset": lambda reader, w: reader.fetch_head_offset(),
            "fetch_tail_offset": lambda reader, w: reader.fetch_tail_offset(),
            "wait_for_data": lambda reader, w: reader.wait_for_data(0),
            "readinto": lambda reader, w: reader.readinto(bytearray(1)),
            "read": lambda reader, w: reader.read(1),
            "readall": lambda reader, w: reader.readall(),
            "readline": lambda reader, w: reader.readline(),
            "readlines": lambda reader, w: reader.readlines(),
        },
        frozenset({"readable", "seekable", "writable", "write", "tell", "close"}),
    ),
    Handle(
        StreamRetention,
        lambda w: w.manager.retention(S),
        {
            "explain": lambda retention, w: retention.explain(),
            "samples": lambda retention, w: retention.samples(),
            "run": lambda retention, w: retention.run(expire="1h", grace="1h", retain="1h"),
        },
    ),
    Handle(
        StreamScaling,
        lambda w: w.manager.scaling(S),
        {
            "explain": lambda scaling, w: scaling.explain(),
            "run": lambda scaling, w: scaling.run(),
        },
    ),
    Handle(
        StreamTime,
        lambda w: w.manager.event_time(S),
        {
            "watermark": lambda time, w: time.watermark(),
            "watermarks": lambda time, w: time.watermarks(),
            "update": lambda time, w: time.update(),
            "cut_at": lambda time, w: time.cut_at(1),
            "cut_before": lambda time, w: time.cut_before(1),
            "window_at": lambda time, w: time.window_at("earliest"),
            "marks": lambda time, w: time.marks(),
            "note": lambda time, w: time.note("job", 1),
            "remove_mark": lambda time, w: time.remove_mark("job"),
        },
    ),
    Handle(
        EventReader,
        lambda w: w.manager.create_reader(S),
        {
            "events": lambda reader, w: reader.events(),
            "batches": lambda reader, w: reader.batches(),
            "table": lambda reader, w: reader.table(),
            "follow": lambda reader, w: list(reader.follow("earliest", timeout=0)),
            "ranges": lambda reader, w: reader.ranges(),
            "read_range": lambda reader, w: reader.read_range(SegmentRange(S, 1, 0, 0, 1)),
            "next_cut": lambda reader, w: reader.next_cut("earliest", 1),
            "distance": lambda reader, w: reader.distance("earliest", "latest"),
            "cut_at": lambda reader, w: reader.cut_at(0),
            "fetch": lambda reader, w: reader.fetch(w.event),
        },
        frozenset({"position", "current_time_window", "known_lag", "observed_as"}),
    ),
    Handle(
        EventStreamReader,
        lambda w: w.manager.reader_group(G).create_reader("late"),
        {
            "read_next_event": lambda reader, w: reader.read_next_event(0),
            "read_events": lambda reader, w: reader.read_events(timeout=0),
            "keep_alive": lambda reader, w: reader.keep_alive(),
            "__iter__": iterate,
        },
        frozenset({"position", "close", "close_at", "current_time_window", "rewind"}),
        ReinitializationRequired,
    ),
]
REFUSED: dict[tuple[type, str], Callable[[Any], object]] = {
    (ByteStreamWriter, "readinto"): lambda writer: writer.readinto(bytearray(1)),
    (ByteStreamReader, "write"): lambda reader: reader.write(b"late"),
    (EventStreamReader, "rewind"): lambda reader: reader.rewind(),
}
"""What these handles refuse in any life."""


@pytest.mark.parametrize("handle", HANDLES, ids=lambda handle: handle.kind.__name__)
def test_every_member_of_a_handle_is_tested_here(handle: Handle) -> None:
    members = {name for name in vars(handle.kind) if not name.startswith("_")}
    walked = handle.calls.keys() | handle.local
    assert members == {name for name in walked if not name.startswith("_")}


MEMBERS = [(handle, name) for handle in HANDLES for name in (*handle.calls, *sorted(handle.local))]


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize(
    ("handle", "name", "is_known"),
    [
        pytest.param(handle, name, known, id=f"{handle.kind.__name__}-{name}-{known}")
        for number, (handle, name) in enumerate(MEMBERS)
        for known in ([True, False] if IS_LONG else [number % 2 == 0])
    ],
)
def test_handle_of_an_ended_life_does_nothing_in_the_next(
    first: World, handle: Handle, name: str, is_known: bool
) -> None:
    world = first.copy()
    made = handle.make(world)
    earlier = world.objects()
    world.let(World.next_life)
    if is_known:  # to this process, from another call
        world.manager.stream_info(S)
    begun = world.objects()
    call = handle.calls.get(name)
    if call is not None:
        with pytest.raises(handle.error):
            call(made, world)
    elif name == "close_at":
        made.close_at(made.position)
    elif name == "_keep_alive":
        keep_alive(made)
    elif (handle.kind, name) in REFUSED:
        with pytest.raises((io.UnsupportedOperation, IllegalState)):
            REFUSED[handle.kind, name](made)
    elif handle.kind is EventStreamReader and name == "current_time_window":
        with pytest.raises(NoSuchStream):
            made.current_time_window(S)
    else:
        member = getattr(made, name)
        _ = member() if callable(member) else member
    now = world.objects()
    theirs = {key: data for key, data in begun.items() if earlier.get(key) != data}
    assert {key for key, data in theirs.items() if now.get(key) != data} == set()
    assert not any("/_delta_log/0" in key for key in now.keys() - begun.keys())
