"""The settings reach every run, sweep and check: a flag, then the stream, the root, the default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.config.root_settings import SettingOrigin
from pravega_spark.engine.state.settings_table import SETTINGS_TABLE, SettingsTable
from pravega_spark.engine.state.state_table import TableChange
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.errors import CorruptLog, InvalidConfiguration
from pravega_spark.manager import StreamManager, manager_over, root_of
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.spy_store import Spy

S = "s/t"
MINUTE, HOUR = 60, 3_600


@dataclass
class World:
    """A root with one stream, a clock that the test moves, and the calls of its storage."""

    runtime: FakeRuntime = field(default_factory=FakeRuntime)

    def __post_init__(self) -> None:
        self.store = Spy(memory(self.runtime))
        self.manager = self.process()
        self.manager.create_scope("s")
        keep = RetentionPolicy.by_consumption()
        self.manager.create_stream(S, StreamConfiguration(retention=keep))

    def process(self) -> StreamManager:
        """A manager as another process has it, without any state in memory."""
        return manager_over(self.store, self.runtime)

    def write(self, count: int = 1) -> None:
        with self.manager.create_writer(S) as writer:
            for _ in range(count):
                writer.write_event(b"event", "k").result()

    def forget_calls(self) -> None:
        wait_for_maintenance()
        self.store.calls.clear()

    def settings_calls(self) -> list[tuple[str, str]]:
        return [call for call in self.store.calls if SETTINGS_TABLE in call[1]]


@pytest.fixture
def world() -> World:
    return World()


# --------------------------------------------------------------------------- what each decides


def grace(world: World, **flags: Any) -> bool:
    """Whether a sweep takes three hours for long enough to raise the horizon."""
    world.write(3)
    world.runtime.sleep(3 * HOUR)
    before = world.manager.sweep_stream(S, grace="3650 days").horizon
    return world.manager.sweep_stream(S, **flags).horizon > before


def grace_of_a_run(world: World, **flags: Any) -> bool:
    world.write(3)
    world.runtime.sleep(3 * HOUR)
    done = world.manager.retention(S).run(**flags)
    assert done.swept is not None
    return done.swept.horizon > 0


def retain(world: World, **flags: Any) -> bool:
    """Whether a sweep takes three hours for long enough to let versions go."""
    world.write(3)
    world.runtime.sleep(3 * HOUR)
    return world.manager.sweep_stream(S, grace="1 hour", **flags).retention_mark > 0


def sample_every(world: World, **flags: Any) -> bool:
    """Whether a sample is due three hours after the one before."""
    world.write()
    assert world.manager.retention(S).run(sample_every=0, sweep=False).sampled
    world.runtime.sleep(3 * HOUR)
    world.write()
    return world.manager.retention(S).run(sweep=False, **flags).sampled


def expire(world: World, **flags: Any) -> bool:
    """Whether a subscriber that was silent for three hours is removed."""
    log = root_of(world.manager).stream(S)
    subscribe(log, "s/slow", 0)
    publish(log, "s/slow", 0, world.manager.head(S))
    world.write()
    world.runtime.sleep(3 * HOUR)
    world.write()
    explained = world.manager.retention(S).explain(**flags).idle
    done = world.manager.retention(S).run(sweep=False, **flags).explanation.idle
    assert explained == done
    return bool(done)


def keep_completed(world: World, **flags: Any) -> bool:
    """Whether a sweep drops the outcome of a transaction that ended three hours ago."""
    with world.manager.create_transactional_writer(S) as writer:
        writer.begin_transaction().abort()
    world.write()
    world.runtime.sleep(3 * HOUR)
    world.write()
    world.manager.sweep_stream(S, grace="1 hour", **flags)
    return not world.manager.list_completed_transactions(S)


def retain_of_a_run(world: World, **flags: Any) -> bool:
    world.write(3)
    world.runtime.sleep(3 * HOUR)
    swept = world.manager.retention(S).run(grace="1 hour", **flags).swept
    assert swept is not None
    return swept.retention_mark > 0


def keep_completed_of_a_run(world: World) -> bool:
    with world.manager.create_transactional_writer(S) as writer:
        writer.begin_transaction().abort()
    world.write()
    world.runtime.sleep(3 * HOUR)
    world.write()
    world.manager.retention(S).run(grace="1 hour")
    return not world.manager.list_completed_transactions(S)


def keep_records(world: World, **flags: Any) -> bool:
    """Whether a sweep moves the record of a writer that wrote nothing for three hours."""
    with world.manager.create_writer(S, "named") as writer:
        writer.write_event(b"x", "k").result()
    world.write()
    world.runtime.sleep(3 * HOUR)
    world.write()
    world.manager.sweep_stream(S, grace="1 hour", **flags)
    return root_of(world.manager).stream(S).view().writer("named") is None


def keep_records_of_a_run(world: World, sweep: Callable[[World], object] | None = None) -> bool:
    with world.manager.create_writer(S, "named") as writer:
        writer.write_event(b"x", "k").result()
    world.write()
    world.runtime.sleep(3 * HOUR)
    world.write()
    if sweep is None:
        world.manager.retention(S).run(grace="1 hour")
    else:
        sweep(world)
    return root_of(world.manager).stream(S).view().writer("named") is None


def keep_records_of_a_round(world: World) -> bool:
    def sweep(world: World) -> None:
        world.manager.update_settings(grace="1 hour")
        done = world.manager.maintain(kinds=["sweeping"], full=True)
        assert done.failures == {}

    return keep_records_of_a_run(world, sweep)


def prepared(world: World) -> str:
    with world.manager.create_transactional_writer(S) as writer:
        transaction = writer.begin_transaction(lease=10)
        transaction.write_event(b"x", "k")
        transaction.ping()
        transaction.prepare()
    world.runtime.sleep(3 * HOUR)
    return transaction.id


def prepared_limit(world: World, **flags: Any) -> bool:
    """Whether a transaction that was prepared three hours ago is aborted."""
    name = prepared(world)
    return name in world.manager.sweep_transactions(S, **flags).aborted


DECIDES: dict[str, tuple[str, Callable[..., bool], str]] = {
    "grace": ("grace", grace, "1 day"),
    "grace of a run": ("grace", grace_of_a_run, "1 day"),
    "retain": ("retain", retain, "1 day"),
    "retain of a run": ("retain", retain_of_a_run, "1 day"),
    "sample_every": ("sample_every", sample_every, "1 day"),
    "expire": ("expire", expire, "never"),
    "keep_completed": ("keep_completed", keep_completed, "1 day"),
    "keep_completed of a run": ("keep_completed", keep_completed_of_a_run, "1 day"),
    "keep_records": ("keep_records", keep_records, "never"),
    "keep_records of a run": ("keep_records", keep_records_of_a_run, "1 day"),
    "keep_records of a round": ("keep_records", keep_records_of_a_round, "1 day"),
    "prepared_limit": ("prepared_limit", prepared_limit, "1 day"),
}
WITHOUT_FLAG = {"keep_completed of a run", "keep_records of a run", "keep_records of a round"}
SHORT = "2 hours"


@pytest.mark.medium
@pytest.mark.parametrize("case", DECIDES)
def test_root_the_stream_and_the_flag_decide_in_this_order(case: str) -> None:
    name, acts, long = DECIDES[case]

    def world_with(root: str | None = None, stream: str | None = None) -> World:
        made = World()
        made.process().update_settings(**{name: root})
        if stream is not None:
            made.process().update_stream(S, settings={name: stream})
        return made

    assert acts(world_with(root=SHORT)), "the root"
    assert not acts(world_with(root=long)), "the root"
    assert acts(world_with(root=long, stream=SHORT)), "the stream before the root"
    assert not acts(world_with(root=SHORT, stream=long)), "the stream before the root"
    if case in WITHOUT_FLAG:
        return
    assert acts(world_with(root=long, stream=long), **{name: SHORT}), "the flag before both"
    assert not acts(world_with(root=SHORT, stream=SHORT), **{name: long}), "the flag before both"


def test_sweep_before_a_sweep_and_writers_follow_the_limit_of_prepared_transactions() -> None:
    sweeps: list[Callable[[World], object]] = [
        lambda w: w.manager.sweep_stream(S),
        lambda w: w.manager.retention(S).run(),
    ]
    for sweep in sweeps:
        for limit, status in ((SHORT, TransactionStatus.ABORTED), ("1 day", "PREPARED")):
            world = World()
            world.process().update_settings(prepared_limit=limit)
            name = prepared(world)
            sweep(world)
            assert world.manager.transaction(S, name).status in (status, TransactionStatus(status))


def test_transactional_writer_reads_the_limit_when_it_sweeps_and_at_no_other_time() -> None:
    world = World()
    name = prepared(world)
    with world.manager.create_transactional_writer(S) as writer:
        world.process().update_settings(prepared_limit=SHORT)
        world.forget_calls()
        for _ in range(3):
            with writer.begin_transaction() as transaction:
                transaction.write_event(b"x", "k")
        assert world.settings_calls() == []
        assert world.manager.transaction(S, name).status is TransactionStatus.PREPARED
        world.runtime.sleep(31)
        writer.begin_transaction().abort()
    assert world.manager.transaction(S, name).status is TransactionStatus.ABORTED


def test_no_append_read_or_sweep_without_open_transactions_reads_the_settings(
    world: World,
) -> None:
    world.process().update_settings(grace=SHORT)
    world.forget_calls()
    world.write(5)
    assert len(list(world.manager.read(S))) == 5
    with world.manager.create_transactional_writer(S) as writer:
        world.runtime.sleep(31)
        with writer.begin_transaction() as transaction:
            transaction.write_event(b"x", "k")
    assert world.settings_calls() == []


def test_sweep_reads_the_settings_once(world: World) -> None:
    world.write(3)
    world.manager.settings()
    table = SettingsTable(world.store, world.runtime)
    table.read()
    world.forget_calls()
    table.read()
    assert len(world.settings_calls()) == 1


# ------------------------------------------------------------------------------ shown, refused


def test_settings_of_a_stream_show_where_each_was_given(world: World) -> None:
    world.manager.update_settings(grace=SHORT, retain="3 days")
    world.manager.update_stream(S, settings={"grace": "5 hours", "expire": "never"})
    found = world.manager.stream_settings(S)
    assert found == world.manager.stream(S).settings()
    assert found.summary() == (
        "grace=5 hours (stream), retain=3 days (root), expire=never (stream)"
    )
    assert world.manager.settings().origin("grace") is SettingOrigin.ROOT
    done = world.manager.retention(S).run(grace="1 day")
    assert done.settings.origin("grace") is SettingOrigin.FLAG
    assert "grace=1 day (flag)" in done.row()["settings"]
    assert world.manager.stream_settings(S) == found, "a flag holds for its run alone"


def test_stream_s_settings_change_field_by_field_and_none_ends_an_override(
    world: World,
) -> None:
    world.manager.update_stream(S, settings={"grace": "5 hours"})
    world.process().update_stream(S, settings={"retain": "3 days"})
    assert dict(world.manager.stream_info(S).configuration.settings) == {
        "grace": 5 * HOUR * 1_000,
        "retain": 72 * HOUR * 1_000,
    }
    assert world.manager.update_stream(S, settings={"grace": None})
    assert not world.manager.update_stream(S, settings={"grace": None})
    assert list(world.manager.stream_info(S).configuration.settings) == ["retain"]
    assert world.manager.stream_info(S).configuration.retention is not None


def test_stream_without_settings_of_its_own_is_stored_as_before(world: World) -> None:
    record = world.manager.stream_info(S).configuration.to_json()
    assert "settings" not in record
    assert StreamConfiguration.from_json(record).settings == {}


@pytest.mark.parametrize(
    "settings", [{"grace": "1 s"}, {"scaling_interval": "1h"}, {"grase": 1}, "grace", [1]]
)
def test_bad_settings_of_a_stream_are_refused_and_nothing_changes(
    world: World, settings: Any
) -> None:
    version = world.manager.stream_info(S).version
    with pytest.raises(InvalidConfiguration):
        StreamConfiguration(settings=settings)
    with pytest.raises(InvalidConfiguration):
        world.manager.update_stream(S, settings=settings)
    assert world.manager.stream_info(S).version == version


def test_damaged_settings_stop_what_deletes_and_nothing_else(world: World) -> None:
    row = {"name": "grace", "value": "soon"}
    table = SettingsTable(world.store, world.runtime).table
    table.change(lambda state: (TableChange("DAMAGE", {"grace": row}), None))
    world.write(3)
    name = prepared(world)
    world.runtime.sleep(60 * 24 * HOUR)
    world.store.calls.clear()
    manager = world.manager
    calls: list[Callable[[], object]] = [
        lambda: manager.sweep_stream(S),
        lambda: manager.sweep_scope("s"),
        lambda: manager.retention(S).run(),
        lambda: manager.retention(S).explain(),
        lambda: manager.sweep_transactions(S),
        manager.settings,
    ]
    for call in calls:
        with pytest.raises(CorruptLog, match="_settings"):
            call()
    assert world.store.count("delete") == 0
    with manager.create_transactional_writer(S) as writer:
        world.runtime.sleep(31)
        with writer.begin_transaction() as transaction:  # logs that it could not sweep
            transaction.write_event(b"x", "k")
    assert manager.transaction(S, name).status is TransactionStatus.PREPARED
    world.write()
    assert len(list(manager.read(S))) == 5
    manager.update_settings(grace=SHORT)
    assert manager.sweep_stream(S).horizon > 0
