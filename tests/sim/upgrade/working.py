"""One process of a fleet: rounds of all verbs on a root, by the release that it imports.

``python -m tests.sim.upgrade.working ROOT HISTORY NAME PLACE SEED``. A line on its standard input
is an order, a line on its standard output says that it was carried out: ``create``, ``round``,
``expire PROCESS`` and ``audit``. The end of the input is the order to end as an application does.
It uses nothing but the public face of the package, so that every release can run it.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pravega_spark
from pravega_spark import (
    EncryptionPolicy,
    ExpectedPosition,
    KeyValueTableConfiguration,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
    StreamSchema,
    TableInsert,
    TablePut,
    TableRemove,
)
from pravega_spark.cli import main
from pravega_spark.errors import PravegaSparkError, ReinitializationRequired
from tests.sim import large_events
from tests.sim.answers import cut_of, position_of
from tests.sim.history import SharedHistory
from tests.sim.recording import Processes, ended, text_of, version_of

STREAM, OTHER, TYPED, SECRET, LARGE = "s/t", "s/u", "s/rows", "s/secret", "s/large"
TEXTS = {LARGE: large_events.text_of}
STATE, TABLE = "s/state", "s/k"
GROUP, PROCESSING = "s/g", "s/p"
GROUPS = ((GROUP, "next", "automatic"), (PROCESSING, "transaction", "none"))
KEY = "master"
"""Of the encrypted stream; the fleet has a key management system for it."""
BYTES = "s/bytes-"
KEYS = ("k0", "k1", "k2")
TIMES = 1_700_000_000_000


def create_all(process: Processes) -> None:
    """Create what the fleet uses; the first process of a root does."""
    manager = process.manager
    process.ask("create", lambda: manager.create_scope("s"), scope="s")
    kept = RetentionPolicy.by_consumption()
    rows = StreamSchema.from_ddl("item string, number int")
    made = {
        STREAM: StreamConfiguration(ScalingPolicy.fixed(2), kept),
        OTHER: StreamConfiguration(ScalingPolicy.fixed(1), kept),
        TYPED: StreamConfiguration(ScalingPolicy.fixed(2), schema=rows),
        SECRET: StreamConfiguration(ScalingPolicy.fixed(1), encryption=EncryptionPolicy(KEY)),
        LARGE: StreamConfiguration(ScalingPolicy.fixed(2)),
        STATE: StreamConfiguration(ScalingPolicy.fixed(1)),
    }
    for name, configuration in made.items():
        process.ask("create", partial(manager.create_stream, name, configuration), stream=name)
    table = KeyValueTableConfiguration(partitions=2, key_type="string")
    process.ask("create", lambda: manager.create_key_value_table(TABLE, table), table=TABLE)
    for group, acknowledge, kept_for_it in GROUPS:
        process.ask(
            "create_group",
            partial(
                manager.create_reader_group,
                group,
                [STREAM],
                acknowledge=acknowledge,
                retention=kept_for_it,
            ),
            group=group,
            streams={STREAM: {}},
        )


class Working:
    """What one process does: each round has every verb, in an order that its seed draws."""

    def __init__(self, process: Processes, place: str, seed: int) -> None:
        self.process, self.place = process, place
        self.manager, self.name = process.manager, process.process
        self.dice = random.Random(seed)
        self.number = 0
        self.handles: dict[str, Any] = {}
        self.readers: dict[str, str] = {}
        self.checkpoints: dict[str, tuple[Any, Any]] = {}
        self.known: dict[str, Any] = {}
        self.last: Any = None
        self.cuts: dict[str, Any] = {}
        self.has_grown = self.has_subscribed = False
        self.verbs: tuple[Callable[[], None], ...] = (
            *(self.plain, self.burst, self.batch, self.named, self.named),
            *(self.expecting, self.fenced, self.rows, self.secret, self.large),
            *(self.transaction, self.aborted, self.joint, self.processing),
            *(self.put, self.change, self.get, self.scan, self.update_state, self.fetch),
            *(self.read, self.read_other, self.next, self.next, self.next, self.checkpoint),
            *(self.scale, self.truncate, self.release, self.retain),
            *(self.compact, self.sweep, self.maintain),
            *(self.note, self.watermark, self.append_bytes),
        )

    def round(self) -> None:
        """Do everything once."""
        for verb in self.dice.sample(self.verbs, len(self.verbs)):
            verb()
        self.next()

    def close(self) -> None:
        """End as an application does: readers leave, the rest is closed."""
        for group in list(self.readers):
            self.leave(group)
        noting = self.handles.pop("noting", None)
        if noting is not None:
            who = {"stream": OTHER, "writer": f"t-{self.place}"}
            self.process.ask("forget", noting.close, **who)
        for handle in self.handles.values():
            handle.close()
        self.manager.close()

    # ------------------------------------------------------------------------------- handles

    def handle(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a handle that stays open until a call on it says otherwise."""
        if name not in self.handles:
            self.handles[name] = make()
        return self.handles[name]

    def event(self, key: str) -> tuple[str, str]:
        self.number += 1
        size = self.dice.choice((0, 0, 0, 9_000))
        return key, f"{self.name}-{self.number}" + "." * size

    def key(self) -> str:
        return self.dice.choice(KEYS)

    # ---------------------------------------------------------------------------- plain events

    def plain(self) -> None:
        writer = self.handle("plain", lambda: self.manager.create_writer(STREAM))
        self.written(
            "plain", self.process.write(writer, self.name, STREAM, [self.event(self.key())])
        )

    def batch(self) -> None:
        writer = self.handle("plain", lambda: self.manager.create_writer(STREAM))
        key = self.key()
        events = [self.event(key) for _ in range(3)]
        self.written("plain", self.process.write(writer, self.name, STREAM, events))

    def burst(self) -> None:
        """Write without waiting, so that processes offer their batches to one another."""
        writer = self.handle("plain", lambda: self.manager.create_writer(STREAM))
        open_writes = []
        for _ in range(12):
            key, event = self.event(self.key())
            call = self.process.history.invoke(
                self.name, "write", stream=STREAM, writer=self.name, events=[[key, event]]
            )
            open_writes.append((call, writer.write_event(event, key)))
        for call, future in open_writes:
            try:
                pointer = future.result()
            except PravegaSparkError as error:
                ended(call, error)
                self.written("plain", error)
            else:
                call.ok([position_of(pointer)])

    def written(self, name: str, found: Any) -> None:
        """A writer whose write failed is opened anew."""
        if isinstance(found, PravegaSparkError):
            self.handles.pop(name, None)

    def named(self) -> None:
        """Write the next event of the place's id, whichever release wrote those before."""
        writer_id = f"id-{self.place}"
        session = f"{self.name}.{self.number}"
        who = {"stream": STREAM, "writer": writer_id}
        if "named" not in self.handles:
            opened = self.process.ask(
                "open_writer",
                lambda: self.manager.create_writer(STREAM, writer_id),
                lambda writer: writer.last_event_number,
                **who,
                session=session,
            )
            if isinstance(opened, PravegaSparkError):
                return
            self.handles["named"], self.session = opened, session
        writer = self.handles["named"]
        number = writer.last_event_number + 1
        key, event = KEYS[number % 3], f"{writer_id}-{number}"
        found = self.process.ask(
            "write",
            lambda: writer.write_event(event, key).result(),
            lambda pointer: [position_of(pointer)],
            **who,
            session=self.session,
            events=[[key, event]],
        )
        self.written("named", found)

    def expecting(self) -> None:
        """Append at a place that is expected: behind the last one, or at the tail."""
        writer = self.handle("expecting", lambda: self.manager.create_writer(STREAM))
        key, event = self.event(self.key())
        expected: ExpectedPosition
        if self.last is not None and self.dice.random() < 0.3:
            last = self.last
            expected = pravega_spark.EventPointer(
                last.stream, last.life, last.segment_id, last.offset + 1
            )
            told: Any = {"position": position_of(expected)}
        else:
            expected = self.manager.tail(STREAM)
            told = {"cut": cut_of(expected)}
        found = self.process.ask(
            "write_if",
            lambda: writer.write_event(event, key, expected=expected).result(),
            lambda pointer: [position_of(pointer)],
            stream=STREAM,
            writer=f"if-{self.name}",
            events=[[key, event]],
            expected=told,
        )
        if isinstance(found, pravega_spark.errors.ConditionFailed):
            return
        if isinstance(found, PravegaSparkError):
            self.handles.pop("expecting")
        else:
            self.last = found

    def fenced(self) -> None:
        """Take a stream over, and write with the token while nobody else did."""
        token = f"{self.name}-{self.number}"
        process, manager = self.process, self.manager
        process.ask("fence", lambda: manager.fence(OTHER, token), stream=OTHER, token=token)
        try:
            writer = manager.create_writer(OTHER, fencing_token=token)
        except PravegaSparkError:
            return
        key, event = self.event(self.key())
        process.ask(
            "write",
            lambda: writer.write_event(event, key).result(),
            lambda pointer: [position_of(pointer)],
            stream=OTHER,
            writer=f"fencing-{self.name}",
            events=[[key, event]],
            token=token,
        )
        with contextlib.suppress(PravegaSparkError):  # it may be fenced by now
            writer.close()

    def rows(self) -> None:
        """Write a row of a typed stream."""
        writer = self.handle("rows", lambda: self.manager.create_writer(TYPED))
        key, event = self.event(self.key())
        row = {"item": event, "number": self.number}
        if self.place == "0":
            self.grow()
        found = self.process.ask(
            "write",
            lambda: writer.write_event(row, key).result(),
            lambda pointer: [position_of(pointer)],
            stream=TYPED,
            writer=self.name,
            events=[[key, event]],
        )
        self.written("rows", found)

    def secret(self) -> None:
        """Write to the encrypted stream."""
        writer = self.handle("secret", lambda: self.manager.create_writer(SECRET))
        events = [self.event(self.key())]
        self.written("secret", self.process.write(writer, self.name, SECRET, events))

    def large(self) -> None:
        """Write a large event."""
        writer = self.handle("large", lambda: self.manager.create_writer(LARGE, large_events=True))
        self.number += 1
        events = [(self.key(), f"{self.name}-{self.number}")]
        found = self.process.write(writer, self.name, LARGE, events, large_events.large_event)
        self.written("large", found)

    def grow(self) -> None:
        """Add a column, while others write and read rows without it; each process one."""
        if not self.has_grown:
            self.has_grown = True
            schema = self.manager.schemas(TYPED)[-1].schema
            column = self.name.replace("-", "_")
            grown = StreamSchema.from_ddl(f"{schema}, {column} int")
            self.manager.update_stream(TYPED, schema=grown)

    # ---------------------------------------------------------------------------- transactions

    def transaction(self) -> None:
        writer = self.handle("alone", lambda: self.manager.create_transactional_writer(STREAM))
        pairs = [self.event(key) for key in KEYS]
        found = self.process.commit(writer, f"alone-{self.name}-{self.number}", {STREAM: pairs})
        self.written("alone", found)

    def aborted(self) -> None:
        writer = self.handle("alone", lambda: self.manager.create_transactional_writer(STREAM))
        name, pair = f"aborted-{self.name}-{self.number}", self.event(self.key())
        self.process.ask("stage", lambda: None, transaction=name, streams={STREAM: [list(pair)]})

        def abort() -> None:
            transaction = writer.begin_transaction()
            transaction.write_event(pair[1], pair[0])
            transaction.flush()
            transaction.abort()

        self.written("alone", self.process.ask("abort", abort, transaction=name))

    def joint(self) -> None:
        writer = self.handle("joint", lambda: self.manager.create_joint_writer([STREAM, OTHER]))
        key = self.key()
        parts = {name: [self.event(key)] for name in (STREAM, OTHER)}
        found = self.process.commit(writer, f"joint-{self.name}-{self.number}", parts)
        self.written("joint", found)

    def processing(self) -> None:
        """Read in a group and write, in one transaction with what was read."""
        reader = self.reader(PROCESSING, "transaction")
        if reader is None:
            return
        writer = self.handle("processing", lambda: self.manager.create_joint_writer([OTHER]))
        try:
            transaction = writer.begin_transaction(readers=[reader])
        except ReinitializationRequired:
            self.expired(PROCESSING)
            return
        self.number += 1
        name, reads, staged = f"processed-{self.name}-{self.number}", [], []
        for _ in range(4):
            found = self.ask_next(PROCESSING, reader)
            if isinstance(found, PravegaSparkError):
                break
            if found.event is not None:
                text = found.event.data.decode()
                reads.append([STREAM, text])
                staged.append([None, f"{name}.{text.rstrip('.')}"])
                transaction.write_event(OTHER, staged[-1][1])
        self.process.ask("stage", lambda: None, transaction=name, streams={OTHER: staged})
        if staged and PROCESSING in self.readers:
            found = self.process.ask("commit", transaction.commit, transaction=name, reads=reads)
            if not isinstance(found, PravegaSparkError):
                return
        else:
            self.process.ask("abort", transaction.abort, transaction=name)

    # ----------------------------------------------------------------------- tables and states

    def put(self) -> None:
        table = self.handle("table", lambda: self.manager.key_value_table(TABLE))
        _, value = self.event("")
        keys = self.dice.sample(KEYS, self.dice.choice((1, 2)))
        self.process.update(table, TABLE, dict.fromkeys(keys, value))

    def change(self) -> None:
        """Change an entry on the version that is known, or insert or remove it."""
        table = self.handle("table", lambda: self.manager.key_value_table(TABLE))
        key, value = self.event(self.key())
        entry = self.known.get(key)
        change: dict[str, Any] = {"key": key, "value": value}
        step: Any
        if entry is None:
            step, change["expected"] = TableInsert(key, value), "absent"
        else:
            change["expected"] = version_of(entry.version)
            if self.dice.random() < 0.3:
                step, change["value"] = TableRemove(key, entry.version), None
            else:
                step = TablePut(key, value, entry.version)
        self.process.ask(
            "update",
            lambda: table.update([step]),
            lambda versions: [version_of(version) for version in versions],
            table=TABLE,
            changes=[change],
        )

    def get(self) -> None:
        table = self.handle("table", lambda: self.manager.key_value_table(TABLE))
        found = self.process.get(table, TABLE, KEYS)
        if not isinstance(found, PravegaSparkError):
            self.known.update(zip(KEYS, found, strict=True))

    def scan(self) -> None:
        table = self.handle("table", lambda: self.manager.key_value_table(TABLE))
        self.process.ask(
            "scan",
            lambda: list(table.entries()),
            lambda found: {e.key: [e.value.decode(), version_of(e.version)] for e in found},
            table=TABLE,
        )

    def shared(self) -> Any:
        def make() -> Any:
            shared = self.manager.state_synchronizer(STATE, lambda state, step: [*state, step])
            shared.initialize([])
            return shared

        return self.handle("state", make)

    def update_state(self) -> None:
        shared = self.shared()
        if self.dice.random() < 0.2:
            shared.compact()
        _, update = self.event("")
        update = update.rstrip(".")

        def generator(known: Any, updates: list[Any]) -> Any:
            updates.append(update)
            return list(known)

        self.process.ask(
            "update_state", lambda: shared.update_state(generator), list, state=STATE, update=update
        )

    def fetch(self) -> None:
        shared = self.shared()

        def fetch() -> Any:
            shared.fetch_updates()
            return shared.get_state()

        self.process.ask("fetch_updates", fetch, list, state=STATE)

    # --------------------------------------------------------------------------------- readers

    def read(self) -> None:
        self.process.read(STREAM)

    def read_other(self) -> None:
        name = self.dice.choice((OTHER, TYPED, SECRET, LARGE))
        self.process.read(name, TEXTS.get(name, text_of))

    # ---------------------------------------------------------------------------------- groups

    def reader(self, group: str, acknowledge: str) -> Any:
        """Return this process's reader in a group; None if it could not join."""
        if group not in self.readers:
            reader_id = f"{self.name}-{self.number}"
            members = self.manager.reader_group(group)
            reader = self.process.ask(
                "join",
                lambda: members.create_reader(reader_id, lease="10 minutes"),
                group=group,
                reader=reader_id,
                acknowledge=acknowledge,
                streams=[STREAM],
                retention="automatic" if group == GROUP else "none",
            )
            if isinstance(reader, PravegaSparkError):
                return None
            self.readers[group], self.handles[group] = reader_id, reader
        return self.handles[group]

    def ask_next(self, group: str, reader: Any, timeout: float = 0.0) -> Any:
        def told(found: Any) -> Any:
            if found.checkpoint is not None:
                return {"checkpoint": found.checkpoint}
            event = found.event
            if event is None:
                return None
            return {"stream": STREAM, "position": position_of(event), "event": event.data.decode()}

        who = {"group": group, "reader": self.readers[group]}
        found = self.process.ask("next", lambda: reader.read_next_event(timeout), told, **who)
        if isinstance(found, ReinitializationRequired):
            self.expired(group)
        return found

    def expired(self, group: str) -> None:
        reader_id = self.readers.pop(group)
        self.handles.pop(group)
        self.process.ask("expire", lambda: None, group=group, reader=reader_id)

    def next(self) -> None:
        reader = self.reader(GROUP, "next")
        for _ in range(6):
            if reader is None or GROUP not in self.readers:
                return
            self.ask_next(GROUP, reader)
        self.look_at_checkpoints()

    def leave(self, group: str) -> None:
        reader_id, reader = self.readers.pop(group), self.handles.pop(group)
        self.process.ask("leave", reader.close, group=group, reader=reader_id)

    def expire(self, reader_id: str) -> None:
        """Say of a killed process that its readers are gone."""
        for group in (GROUP, PROCESSING):
            members = self.manager.reader_group(group).online_readers()
            for member in members:
                if member.startswith(f"{reader_id}-"):
                    offline = partial(self.manager.reader_group(group).reader_offline, member)
                    self.process.ask("expire", offline, group=group, reader=member)

    def checkpoint(self) -> None:
        """Ask for a checkpoint; the readers answer in their next calls."""
        group, name = self.manager.reader_group(GROUP), f"{self.name}-{self.number}"
        call = self.process.history.invoke(self.name, "checkpoint", group=GROUP, name=name)
        try:
            self.checkpoints[name] = call, group.initiate_checkpoint(name)
        except PravegaSparkError as error:
            call.failed(error)

    def look_at_checkpoints(self) -> None:
        for name, (call, future) in list(self.checkpoints.items()):
            try:
                if not future.done():
                    continue
                found = future.result(0.0)
            except PravegaSparkError as error:
                call.failed(error)
            else:
                call.ok({stream: cut_of(cut) for stream, cut in found.stream_cuts.items()})
            del self.checkpoints[name]

    # ---------------------------------------------------------------------------- maintenance

    def scale(self) -> None:
        segments = sorted(self.manager.segments(STREAM), key=lambda s: s.key_range.low)
        ranges: list[tuple[float, float]]
        if len(segments) > 2:
            at = self.dice.randrange(len(segments) - 1)
            seal = segments[at : at + 2]
            ranges = [(seal[0].key_range.low, seal[1].key_range.high)]
        else:
            seal = [self.dice.choice(segments)]
            low, high = seal[0].key_range.low, seal[0].key_range.high
            ranges = [(low, (low + high) / 2), ((low + high) / 2, high)]
        self.process.ask(
            "scale", lambda: self.manager.scale_stream(STREAM, seal, ranges), stream=STREAM
        )

    def truncate(self) -> None:
        """Truncate at the tail of the time before, so that something stays."""
        name = self.dice.choice((OTHER, TYPED, LARGE))
        tail = self.manager.tail(name)
        cut = self.cuts.get(name, tail)
        self.cuts[name] = tail

        def truncate() -> Any:
            self.manager.truncate_stream(name, cut)
            return self.manager.head(name)

        self.process.ask("truncate", truncate, cut_of, stream=name, cut=cut_of(cut))

    def release(self) -> None:
        """Subscribe by the place's name, and release what two groups have read up to now."""
        who = {"stream": STREAM, "subscriber": f"needs-{self.place}"}
        stream = self.manager.stream(STREAM)
        head = stream.head()
        if not self.has_subscribed:
            self.has_subscribed = True
            self.process.ask(
                "subscribe", lambda: stream.subscribe(who["subscriber"]), **who, cut=cut_of(head)
            )
        cut = self.manager.reader_group(GROUP).stream_cuts()[STREAM]
        self.process.ask(
            "release", lambda: stream.publish(who["subscriber"], cut), **who, cut=cut_of(cut)
        )

    def retain(self) -> None:
        retention = self.manager.retention(STREAM)

        def run() -> Any:
            retention.run(sweep=False)
            return self.manager.head(STREAM)

        self.process.ask("retain", run, cut_of, stream=STREAM)

    def compact(self) -> None:
        self.process.ask("compact", lambda: self.manager.compact_stream(STREAM), stream=STREAM)

    def sweep(self) -> None:
        name = self.dice.choice((STREAM, OTHER, TYPED, LARGE))
        grace = self.dice.choice((0, "1 hour"))
        self.process.ask(
            "sweep",
            lambda: self.manager.sweep_stream(name, grace=grace, retain=0),
            stream=name,
            grace=grace,
        )

    def maintain(self) -> None:
        def maintain() -> None:
            failures = self.manager.maintain(full=True).failures
            assert not failures, failures

        self.process.ask("maintain", maintain)

    # --------------------------------------------------------------------------- times, bytes

    def note(self) -> None:
        """Note the time of the place: one that rises whoever has the place."""
        writer = self.handle("noting", lambda: self.manager.create_writer(OTHER, f"t-{self.place}"))
        time = max((m.time_us // 1_000 for m in self.manager.event_time(OTHER).marks()), default=0)
        time = max(time, TIMES) + self.dice.randint(1, 50)
        found = self.process.ask(
            "note_time",
            lambda: writer.note_time(time).result(),
            stream=OTHER,
            writer=f"t-{self.place}",
            time=time,
        )
        self.written("noting", found)

    def watermark(self) -> None:
        times = self.manager.event_time(OTHER)

        def watermark() -> Any:
            times.update()
            return times.watermark()

        def told(found: Any) -> Any:
            return found and {
                "lower": found.lower_us // 1_000,
                "upper": found.upper_us // 1_000,
                "cut": cut_of(found.cut),
            }

        self.process.ask("watermark", watermark, told, stream=OTHER)

    def append_bytes(self) -> None:
        """Append lines to the place's own byte stream, which is known whoever wrote it."""
        stream = BYTES + self.place
        if "bytes" not in self.handles:
            self.manager.create_stream(stream)
            self.handles["bytes"] = self.manager.create_byte_writer(stream, "upload")
        writer = self.handles["bytes"]
        done = writer.acknowledged_bytes
        writer.write(expected_bytes(done + 100)[done:])
        writer.flush()
        self.check_bytes(stream, done + 100)

    def check_bytes(self, stream: str, count: int = 0) -> None:
        with self.manager.create_byte_reader(stream, follow=False) as reader:
            found = reader.read(1 << 20)
        assert len(found) >= count
        assert found == expected_bytes(len(found))

    # --------------------------------------------------------------------------------- the end

    def audit(self) -> None:
        """Read everything; nobody else is there any more."""
        for name in (STREAM, OTHER, TYPED, SECRET, LARGE):
            self.process.read(name, TEXTS.get(name, text_of))
        if self.can_tell_the_layout():
            self.layout()
        self.get()
        self.scan()
        self.fetch()
        self.watermark()
        reader = self.reader(GROUP, "next")
        group = self.manager.reader_group(GROUP)
        while not self.is_read(group):
            self.ask_next(GROUP, reader, 1.0)
        for name in self.manager.list_streams("s"):
            if name.startswith(BYTES):
                self.check_bytes(name)
        assert main(["fsck", "--deep", "--root", self.manager.root]) == 0

    def is_read(self, group: Any) -> bool:
        return all(lag.events == 0 for lag in group.lag().segments)

    def can_tell_the_layout(self) -> bool:
        """Release 0.1.0 does not know segments below the head any more."""
        return pravega_spark.__version__ != "0.1.0"

    def layout(self) -> None:
        def layout() -> Any:
            found: dict[str, list[str]] = {}
            for epoch in self.manager.epochs(STREAM):
                for segment in epoch.segments:
                    text = str(segment.segment_id)
                    if text not in found:
                        above = self.manager.predecessors(STREAM, segment)
                        found[text] = [str(one.segment_id) for one, _ in above]
            return found

        self.process.ask("layout", layout, dict, stream=STREAM)


def expected_bytes(count: int) -> bytes:
    """Return the first bytes of what every byte stream of the fleet has."""
    return b"".join(b"%09d\n" % number for number in range(count // 10 + 1))[:count]


def work() -> None:
    """Carry out the orders that come."""
    root, path, name, place, seed = sys.argv[1:]
    process = Processes(StreamManager(root), SharedHistory(path), name)
    working = Working(process, place, int(seed))
    print(pravega_spark.__version__, flush=True)
    for line in sys.stdin:
        order, _, what = line.strip().partition(" ")
        if order == "create":
            create_all(process)
        elif order == "expire":
            working.expire(what)
        else:
            {"round": working.round, "audit": working.audit}[order]()
        print(order, flush=True)
    working.close()


if __name__ == "__main__":
    work()
