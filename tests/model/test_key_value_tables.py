"""A key-value table against a dict with versions, seen by two processes that share the storage.

Each step may lose the answer of a commit, or the request; other steps split and merge the segments
of the change log, fold it, and truncate what was folded. A handle that asks the head agrees with
the model, however far its index was behind; readers of earlier versions see what they saw.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    rule,
)

from pravega_spark.config.policies import ScalingPolicy
from pravega_spark.engine.layout.epochs import split
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import BadKeyVersion, ConditionalTableUpdate, NoSuchKey
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import KeyVersion
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.key_value.reader import TableReader
from pravega_spark.key_value.updates import TableInsert, TablePut, TableRemove
from pravega_spark.manager import StreamManager, manager_over
from pravega_spark.retention.run import RetentionOptions, run_retention
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.values.segments import KeyRange
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized

T = "s/t"
COMMITS = "*/_kv_tables/t/events/_delta_log/*"
KEYS = st.sampled_from([f"k{n}" for n in range(6)])
VALUES = st.binary(max_size=3)
SEGMENTS = st.integers(1, 3)
SIDES = st.integers(0, 1)
FAULTS = st.sampled_from([None, None, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.RESEND])
Entries = dict[str, tuple[bytes, KeyVersion]]


class TableMachine(RuleBasedStateMachine):
    """The steps; the model is ``entries``, and the versions that keys had at any time."""

    versions = Bundle("versions")
    readers = Bundle("readers")

    def __init__(self) -> None:
        super().__init__()
        self.runtime = FakeRuntime()
        self.inner = memory(self.runtime)
        self.stores = [Spy(self.inner), Spy(self.inner)]
        self.entries: Entries = {}
        self.seen: set[KeyVersion] = set()
        self.folded = 0
        self.tables: list[KeyValueTable] = []

    @initialize(partitions=SEGMENTS)
    def create(self, partitions: int) -> None:
        manager = self.manager(0)
        manager.create_scope("s")
        policy = ScalingPolicy.by_event_rate(1_000)
        manager.create_key_value_table(T, KeyValueTableConfiguration("string", scaling=policy))
        self.tables = [self.manager(side).key_value_table(T) for side in range(2)]
        self.scale(0, partitions)

    def manager(self, side: int) -> StreamManager:
        return manager_over(self.stores[side], self.runtime)

    def fault(self, side: int, fault: Fault | None) -> None:
        if fault is not None:
            self.stores[side].rules.add(Rule(fault, "put_if_absent", COMMITS, nth=1))

    def took(self, key: str, value: bytes | None, version: KeyVersion) -> KeyVersion:
        """Change the model, and check that the version is new and above the key's last one."""
        assert version not in self.seen
        self.seen.add(version)
        if key in self.entries:
            assert version > self.entries[key][1]
        if value is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = value, version
        return version

    def refused(self, key: str, error: BadKeyVersion) -> None:
        """Check that a refusal names the version that the key has."""
        assert error.version == str(self.entries[key][1])

    @rule(target=versions, side=SIDES, key=KEYS, value=VALUES, fault=FAULTS)
    def put(self, side: int, key: str, value: bytes, fault: Fault | None) -> Any:
        self.fault(side, fault)
        return key, self.took(key, value, self.tables[side].put(key, value).result())

    @rule(side=SIDES, key=KEYS, fault=FAULTS)
    def remove(self, side: int, key: str, fault: Fault | None) -> None:
        self.fault(side, fault)
        self.took(key, None, self.tables[side].remove(key).result())

    @rule(target=versions, side=SIDES, key=KEYS, value=VALUES, fault=FAULTS)
    def insert(self, side: int, key: str, value: bytes, fault: Fault | None) -> Any:
        self.fault(side, fault)
        try:
            version = self.tables[side].insert(key, value)
        except BadKeyVersion as error:
            self.refused(key, error)
            return multiple()
        assert key not in self.entries
        return key, self.took(key, value, version)

    @rule(
        target=versions,
        side=SIDES,
        known=versions,
        value=st.none() | VALUES,
        fault=FAULTS,
    )
    def change(self, side: int, known: Any, value: bytes | None, fault: Fault | None) -> Any:
        """Replace or remove a key by a version that it has, or had."""
        key, version = known
        self.fault(side, fault)
        table = self.tables[side]
        current = self.entries.get(key)
        try:
            if value is None:
                found = table.remove(key, version=version)
            else:
                found = table.replace(key, value, version)
        except NoSuchKey:
            assert current is None
            return multiple()
        except BadKeyVersion as error:
            self.refused(key, error)
            assert current is not None
            assert current[1] != version
            return multiple()
        assert current is not None
        assert current[1] == version
        self.took(key, value, found)
        return multiple() if value is None else (key, found)

    @rule(
        side=SIDES,
        parts=st.dictionaries(KEYS, st.tuples(st.sampled_from("ipr"), VALUES, st.booleans())),
        fault=FAULTS,
    )
    def update(self, side: int, parts: dict[str, Any], fault: Fault | None) -> None:
        """Several keys at once: the conditions of some are those of the model, of others not."""
        steps, holds = list[Any](), True
        for key, (kind, value, conditional) in parts.items():
            known = self.entries.get(key)
            version = KeyVersion.NO_VERSION
            if conditional and known is not None:
                version = known[1]
            if kind == "i":
                steps.append(TableInsert(key, value))
                holds = holds and known is None
            elif kind == "p":
                steps.append(TablePut(key, value, version))
            else:
                steps.append(TableRemove(key, version))
        self.fault(side, fault)
        try:
            versions = self.tables[side].update(steps)
        except ConditionalTableUpdate:
            assert not holds
            return
        assert holds
        for (key, (kind, value, _)), version in zip(parts.items(), versions, strict=True):
            self.took(key, None if kind == "r" else value, version)

    @rule(side=SIDES, segments=SEGMENTS)
    def scale(self, side: int, segments: int) -> None:
        log = self.tables[side]._stream
        view = log.view()
        ranges = split(KeyRange(0.0, 1.0), segments)
        scale_stream(log, view.active.segment_ids, ranges, life=view.life)

    @rule(side=SIDES, truncates=st.booleans())
    def fold_log(self, side: int, truncates: bool) -> None:
        """Fold, and perhaps let the log be truncated: readers that are open keep what they hold."""
        log, view = self.tables[side]._stream, self.tables[side]._stream.view()
        done = fold(log, folded_table(log, self.tables[side].configuration), life=view.life)
        self.folded = max(self.folded, view.version)
        if truncates:
            truncate(log, done.cut, life=view.life)

    @rule(side=SIDES, order=st.permutations(["fold", "scale", "retain"]), segments=SEGMENTS)
    def maintain(self, side: int, order: list[str], segments: int) -> None:
        """A round: retention truncates what is folded, though it may have been split since."""
        for work in order:
            if work == "fold":
                self.fold_log(side, truncates=False)
            elif work == "scale":
                self.scale(side, segments)
            else:
                run_retention(self.tables[side]._stream, RetentionOptions(root={}))

    @rule(side=SIDES)
    def reopen(self, side: int) -> None:
        """Another process opens the table: it has read nothing yet."""
        self.tables[side].close()
        self.stores[side] = Spy(self.inner)
        self.tables[side] = self.manager(side).key_value_table(T)

    @rule(target=readers, side=SIDES)
    def read_at(self, side: int) -> Any:
        return self.tables[side].at(), dict(self.entries)

    @rule(reader=readers, side=SIDES)
    def still_reads(self, reader: Any, side: int) -> None:
        """A reader, and another process that reads at its version, see what there was then."""
        made, entries = reader
        self.check(made, entries)
        if made.version >= self.folded:
            self.check(self.tables[side].at(made.version), entries)

    @rule(reader=consumes(readers))
    def forget(self, reader: Any) -> None:
        """Drop a reader."""

    @rule(side=SIDES, keys=st.lists(KEYS, max_size=4))
    def get(self, side: int, keys: list[str]) -> None:
        table = self.tables[side]
        expected = [self.entries.get(key) for key in keys]
        every = table.get_all(keys, fresh=True)
        assert [None if e is None else (e.value, e.version) for e in every] == expected
        assert [table.exists(key) for key in keys] == [e is not None for e in expected]

    def check(self, reader: TableReader, entries: Entries) -> None:
        found = {e.key: (e.value, e.version) for e in reader.entries()}
        assert found == entries
        assert list(reader.keys()) == sorted(entries)

    @rule(side=SIDES, key=KEYS)
    def get_fresh(self, side: int, key: str) -> None:
        found = self.tables[side].get(key, fresh=True)
        assert (found and (found.value, found.version)) == self.entries.get(key)

    def teardown(self) -> None:
        for side, table in enumerate(self.tables):
            self.check(table.at(), self.entries)
            self.reopen(side)
            self.check(self.tables[side].at(), self.entries)
            self.tables[side].close()


TableMachine.TestCase.settings = settings(
    max_examples=sized(8, 1_000, "TABLE_EXAMPLES"), stateful_step_count=25, deadline=None
)
test_tables = pytest.mark.long(TableMachine.TestCase)
