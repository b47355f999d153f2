"""What a look at a stream costs, and what its rates tell of the time in which nobody looked."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from starlette.testclient import TestClient

from pravega_spark import StreamManager
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import NoSuchStream
from pravega_spark.manager import manager_over, root_of
from pravega_spark.serve.call_budget import Allowance, BudgetSpent
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.traffic import DAY_MS, HOUR_MS, TrafficHistory
from pravega_spark.serve.watch import PAGE_READS, ROW_READS, RootWatch, StreamWatch
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.spy_store import Spy
from tests.harness.tiers import only_long, sized
from tests.harness.web_world import web_client

EVENT = b"0123456789"


class World:
    """A root whose clock a test moves, one stream, and a watch that counts its calls."""

    def __init__(self) -> None:
        self.clock = FakeRuntime()
        self.manager = manager_of(self.clock)
        self.manager.create_scope("nyc")
        self.manager.create_stream("nyc/f")
        self.spy = Spy(root_of(self.manager).store)
        self.log = StreamLog(self.spy, "nyc/f", self.clock)
        self.watch = StreamWatch(self.log)

    def write(self, events: int = 1, manager: StreamManager | None = None) -> None:
        """Commit events in one append."""
        with (manager or self.manager).create_writer("nyc/f") as writer:
            writer.write_events([EVENT] * events, routing_key="a")

    def write_often(self, commits: int, pause: float, events: int = 1) -> None:
        """Commit events again and again, with a pause in seconds before each commit."""
        with self.manager.create_writer("nyc/f") as writer:
            for _ in range(commits):
                self.clock.sleep(pause)
                writer.write_events([EVENT] * events, routing_key="a").result()
        wait_for_maintenance()  # which writes the state files

    def calls(self, action: Any) -> int:
        """Return how many storage calls an action makes; waits for a disk are none."""
        self.spy.calls.clear()
        action()
        return len(self.spy.calls) - self.spy.count("make_durable")

    def row(self) -> Any:
        return self.watch.row(self.watch.look())

    def filled(self, range_ms: int) -> Any:
        """Look until the watch has read all that it can of a range; each look is bounded."""
        while True:
            self.clock.sleep(3)
            looked = self.calls(self.watch.look)
            assert looked <= 2 * ROW_READS
            asked = self.calls(lambda: self.watch.traffic(range_ms))
            assert asked <= PAGE_READS + ROW_READS
            found = self.watch.traffic(range_ms)
            if not found.is_reading:
                return found


@pytest.fixture
def world() -> World:
    return World()


def sum_of(values: list[float | None], times_ms: list[int]) -> float:
    """Return how much a series of rates tells of."""
    begun = [2 * times_ms[0] - times_ms[1], *times_ms]
    lengths = [(end - start) / 1_000 for start, end in pairwise(begun)]
    return sum((value or 0) * length for value, length in zip(values, lengths, strict=True))


def test_a_look_without_news_is_one_call_and_a_shared_one_is_none(world: World) -> None:
    world.write(5)
    world.watch.look()
    view = world.watch.look()
    assert world.calls(world.watch.look) == 1
    assert world.spy.calls[0][1].endswith(f"_delta_log/{view.version + 1:020d}.json")

    def shared() -> None:
        world.watch.look(max_age=60)
        world.watch.row(view)
        world.watch.segment_rates()
        world.watch.traffic(HOUR_MS)

    assert world.calls(shared) == 0


def test_a_look_at_news_reads_each_new_commit_once(world: World) -> None:
    before = world.watch.look().version
    world.clock.sleep(3)
    world.write(7)
    assert world.calls(world.watch.look) == world.watch.look().version - before + 1
    assert world.row().events == 7


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_a_look_far_behind_costs_the_same_after_many_more_commits() -> None:
    costs = []
    for commits in (600, sized(2_136, 5_976)):  # as far behind a state file
        world = World()
        world.watch.look()
        world.write_often(commits, 0.02)
        costs.append(world.calls(world.watch.look))
        assert world.row().events == commits
    assert costs[1] <= costs[0] + 10
    assert max(costs) < 600


@pytest.mark.medium
def test_after_a_pause_the_minutes_are_those_of_the_commits(world: World) -> None:
    world.clock.sleep(3_600)
    world.watch.look()
    for _ in range(5):  # until 41 minutes, and then four minutes of silence
        world.clock.sleep(8 * 60)
        world.write(1_000)
    world.manager.scale_stream("nyc/f", seal=[0], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
    world.clock.sleep(5 * 60)
    row = world.row()
    assert row.events_per_second == 0
    found = world.filled(HOUR_MS)
    busy = [index for index, value in enumerate(found.events_per_second) if value]
    assert len(busy) == 5
    rates = [found.events_per_second[index] for index in busy]
    assert rates == pytest.approx([1_000 / 60] * 5, rel=1e-3)
    ages = [(found.times_ms[-1] - found.times_ms[index]) / 60_000 for index in busy]
    assert ages == pytest.approx([37, 29, 21, 13, 5], abs=1.1)
    assert None not in found.events_per_second + found.size_bytes
    assert [found.size_bytes[index] for index in busy] == [10_000 * n for n in range(1, 6)]


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_a_first_look_at_a_busy_stream_knows_the_hour_by_its_state_files(world: World) -> None:
    commits = sized(2_400, 6_000)
    rate = commits / 1_200
    world.clock.sleep(86_400)
    world.write_often(commits, 1 / rate)  # for twenty minutes
    world.clock.sleep(1)
    row = world.row()
    assert row.events_per_second == pytest.approx(rate, rel=0.1)
    found = world.filled(HOUR_MS)
    assert None not in found.events_per_second
    assert sum_of(found.events_per_second, found.times_ms) == pytest.approx(commits, rel=0.02)
    assert sum_of(found.commits_per_second, found.times_ms) == pytest.approx(commits, rel=0.02)
    assert sum_of(found.bytes_per_second, found.times_ms) == pytest.approx(10 * commits, rel=0.02)
    assert found.events_per_second[-17:-5] == pytest.approx([rate] * 12, rel=0.1)
    assert found.events_per_second[:35] == [0] * 35


@pytest.mark.long
@only_long("test_a_first_look_at_a_busy_stream_knows_the_hour_by_its_state_files")
def test_the_past_of_a_busy_stream_is_read_by_few_objects() -> None:
    read = []
    for commits in (1_000, 10_000):  # in the same time
        world = World()
        world.clock.sleep(86_400)
        world.write_often(commits, 1_500 / commits)
        world.spy.calls.clear()
        counted = 0
        for _ in range(40):
            world.clock.sleep(3)
            counted += world.calls(world.watch.look)
            counted += world.calls(lambda w=world: w.watch.traffic(HOUR_MS))
        assert not world.watch.traffic(HOUR_MS).is_reading
        read.append(counted)
    assert read[1] < read[0]


def test_what_the_log_has_no_more_is_not_known(world: World) -> None:
    world.clock.sleep(86_400)
    world.write_often(40, 30)
    newest = world.log.view().version
    for version in range(1, newest - 20):
        world.log.store.delete([world.log.log.reader.key(version)])
    found = world.filled(HOUR_MS)
    assert found.events_per_second[0] is None
    assert found.events_per_second[-1] is not None


def test_a_commit_of_the_future_has_no_minute(world: World) -> None:
    for _ in range(3):
        world.clock.sleep(60)
        world.write(60)
    ahead = FakeRuntime()
    ahead.wall_ms = 1_900_000_000_000.0
    for _ in range(3):
        world.write(7_000, StreamManager(world.manager.root, runtime=ahead))
    world.clock.sleep(20)
    row = world.row()
    assert row.future_ms is not None
    assert row.future_ms > world.clock.now_ms()
    assert row.events_per_second is None
    found = world.filled(HOUR_MS)
    before = [value for value in found.events_per_second if value is not None]
    assert before[-2:] == pytest.approx([1] * 2)
    assert max(before) <= 1
    assert found.events_per_second[-1] is None
    assert max(value or 0 for value in row.series) <= 1


def test_a_commit_of_the_future_between_two_looks_is_not_counted_as_now(world: World) -> None:
    world.watch.look()
    world.clock.sleep(3)
    ahead = FakeRuntime()
    ahead.wall_ms = 1_900_000_000_000.0
    world.write(7_000, StreamManager(world.manager.root, runtime=ahead))
    assert not world.row().events_per_second
    world.clock.sleep(60)
    world.watch.look()
    for _ in range(30):  # from now on the looks tell when events came
        world.clock.sleep(3)
        world.write(30, StreamManager(world.manager.root, runtime=ahead))
        world.watch.look()
    assert world.row().events_per_second == pytest.approx(10, rel=0.1)


def test_traffic_is_counted_by_segment_over_a_scale(world: World) -> None:
    world.watch.look()
    world.clock.sleep(3)
    world.write(10)
    world.manager.scale_stream("nyc/f", seal=[0], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
    world.write(20)
    row, rates = world.row(), world.watch.segment_rates()
    assert (row.segments, row.events) == (2, 30)
    assert rates is not None
    written = [number for number, (events, _) in rates.items() if events > 0]
    assert 0 in written
    assert len(written) == 2
    total = sum(events for events, _ in rates.values())
    assert total == pytest.approx(row.events_per_second, rel=0.01)


def test_a_stream_that_is_made_again_begins_anew(world: World) -> None:
    world.write(10)
    world.watch.look()
    world.manager.seal_stream("nyc/f")
    world.manager.delete_stream("nyc/f")
    with pytest.raises(NoSuchStream):
        world.watch.look()
    world.clock.sleep(1)
    world.manager.create_stream("nyc/f")
    world.clock.sleep(15)
    row = world.row()
    assert (row.events, row.size_bytes) == (0, 0)
    assert row.series == [None] * 59 + [0]
    world.clock.sleep(300)
    assert world.filled(DAY_MS).events_per_second == [None] * 287 + [0]


def test_a_truncation_lowers_the_size_and_no_rate(world: World) -> None:
    world.watch.look()
    for _ in range(4):
        world.clock.sleep(60)
        world.write(60)
    world.manager.truncate_stream("nyc/f", str(world.log.view().tail))
    world.clock.sleep(60)
    world.write(6)
    world.clock.sleep(15)  # until the span that it is in has ended
    found = world.filled(HOUR_MS)
    assert found.size_bytes[-1] == 60
    assert found.size_bytes[-4] is None, "what was cut off is not known from the commits"
    assert sum_of(found.events_per_second, found.times_ms) == pytest.approx(246, rel=1e-3)
    assert min(value for value in found.events_per_second if value is not None) == 0


def test_commits_behind_one_of_the_future_have_their_own_times(world: World) -> None:
    ahead = FakeRuntime()
    ahead.wall_ms = 1_900_000_000_000.0
    world.write(7_000, StreamManager(world.manager.root, runtime=ahead))
    for _ in range(20):
        world.clock.sleep(60)
        world.write(60)
    world.clock.sleep(15)
    row = world.row()
    assert row.future_ms is not None
    assert row.future_ms > world.clock.now_ms()
    assert row.events_per_second == pytest.approx(1, rel=0.3)
    found = world.filled(HOUR_MS)
    assert found.events_per_second[-18:-2] == pytest.approx([1] * 16, rel=1e-3)
    assert max(value or 0 for value in found.events_per_second) < 2


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_what_is_kept_of_a_stream_does_not_grow_with_days(world: World) -> None:
    """Looks behind the watch: nothing else shows what it holds."""
    world.watch.look()
    history = world.watch._history
    for _ in range(sized(60, 200)):
        world.clock.sleep(3 * 3_600)
        world.write(10)
        world.watch.look()
        world.watch.traffic(DAY_MS)
    assert isinstance(history, TrafficHistory)
    assert len(world.watch._history.known.spans) <= 3
    assert len(world.watch._past._gaps) <= 16


@pytest.mark.medium
def test_a_poll_of_many_streams_is_bounded_and_soon_one_call_for_each() -> None:
    clock = FakeRuntime()
    manager = manager_of(clock)
    manager.create_scope("nyc")
    names = [f"nyc/s{number}" for number in range(8)]
    for name in names:
        manager.create_stream(name)
    clock.sleep(86_400)
    writers = [manager.create_writer(name) for name in names]
    for _ in range(100):
        clock.sleep(20)
        for writer in writers:
            writer.write_event(EVENT, routing_key="a").result()
    for writer in writers:
        writer.close()
    spy = Spy(root_of(manager).store)
    watch = RootWatch(ServedRoot(manager_over(spy, clock)), 3.0)
    polls = []
    for _ in range(8):
        clock.sleep(3)
        spy.calls.clear()
        rows = watch.rows(names)
        polls.append(len(spy.calls) - spy.count("make_durable"))
        assert len(rows) == len(names)
    opening = 120  # each stream has some hundred commits and no state file
    assert polls[0] <= len(names) * (opening + ROW_READS + 1)
    assert max(polls[1:]) <= len(names) * (ROW_READS + 2)
    assert polls[-1] == len(names)
    assert all(None not in row.series for row in rows)


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    with web_client(world.manager) as opened:
        yield opened


@pytest.mark.parametrize(
    ("last", "width", "points"), [("15m", 15, 60), ("1h", 60, 60), ("24h", 300, 288)]
)
def test_the_page_gets_a_range_of_rates(
    world: World, client: TestClient, last: str, width: int, points: int
) -> None:
    world.write(600)
    world.clock.sleep(320)
    found = client.get(f"/api/streams/nyc/f/traffic?last={last}").json()
    curves = [found[name] for name in found if name not in ("is_reading", "created_ms")]
    assert {len(curve) for curve in curves} == {points}
    times = found["times_ms"]
    assert {later - earlier for earlier, later in pairwise(times)} == {width * 1_000}
    assert sum_of(found["events_per_second"], times) == pytest.approx(600, rel=0.01)
    assert found["size_bytes"][-1] == 6_000


@pytest.mark.medium
def test_each_point_is_the_mean_of_its_own_span_alone(world: World, client: TestClient) -> None:
    """Events come each 5 s, so every whole span has the same mean, whenever somebody looks."""
    world.clock.sleep(7)
    world.write_often(900 // 5, 5, 10)
    for pause in (0.1, 4, 3, 4, 3, 4):
        world.clock.sleep(pause)
        for last, width_ms in (("15m", 15_000), ("24h", 300_000)):
            found = client.get(f"/api/streams/nyc/f/traffic?last={last}").json()
            now_ms = world.clock.now_ms()
            assert now_ms - width_ms <= found["times_ms"][-1] <= now_ms
            assert found["times_ms"][-1] % width_ms == 0
            assert width_ms == found["times_ms"][-1] - found["times_ms"][-2]
            if pause == 0.1:
                assert found["events_per_second"][-2:] == [2, 2]


def test_the_page_is_told_which_ranges_there_are(client: TestClient) -> None:
    assert client.get("/api/streams/nyc/f/traffic?last=7m").status_code == 400
    assert client.get("/api/streams/nyc/none/traffic").status_code == 404


def read_to_the_end(world: World, client: TestClient, last: str) -> Any:
    """Ask for a curve as an open page does, until the server has read all that it tells."""
    while True:
        world.clock.sleep(3)
        found = client.get(f"/api/streams/nyc/f/traffic?last={last}").json()
        if not found["is_reading"]:
            return found


@pytest.mark.medium
def test_a_budget_that_is_spent_while_the_past_is_read_counts_nothing_twice_or_never(
    world: World,
) -> None:
    world.clock.sleep(86_400)
    world.write_often(600, 1.0)
    watch = RootWatch(ServedRoot(manager_over(world.spy, world.clock)), 3.0).stream("nyc/f")
    world.clock.sleep(15)
    spent = 0
    for calls in range(40):  # of each look that reads the past, another call is one too many
        world.clock.sleep(3)
        watch.look(reads=0)
        try:
            with Allowance(calls).applied():
                watch.read_past()
        except BudgetSpent:
            spent += 1
    assert spent > 20
    while (found := watch.traffic(HOUR_MS)).is_reading:
        world.clock.sleep(3)
        watch.look()
    assert None not in found.events_per_second
    assert sum_of(found.events_per_second, found.times_ms) == pytest.approx(600, rel=0.01)
    assert sum_of(found.commits_per_second, found.times_ms) == pytest.approx(600, rel=0.01)


def look_from_afar(client: TestClient) -> None:
    """Look as the overview does: at all streams, without reading the past of any."""
    assert client.get("/api/attention").json()["streams"]["looked"] == 1


@pytest.mark.medium
def test_looks_of_the_overview_do_not_spoil_what_a_page_shows_later(
    world: World, client: TestClient
) -> None:
    for _ in range(30):
        world.clock.sleep(6)
        world.write(60)
        look_from_afar(client)
    world.clock.sleep(15)
    found = read_to_the_end(world, client, "15m")
    assert {8.0, 12.0}.issuperset(found["events_per_second"][-12:-2])
    told = sum_of(found["events_per_second"], found["times_ms"])
    assert told == pytest.approx(30 * 60, rel=1e-3)


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_looks_far_apart_leave_no_time_that_a_page_cannot_fill(
    world: World, client: TestClient
) -> None:
    world.clock.sleep(3_600)
    commits, looks = 330, sized(6, 20)  # more commits than a look reads one by one
    for _ in range(looks):
        world.write_often(commits, 0.02)
        look_from_afar(client)
    found = read_to_the_end(world, client, "15m")
    assert None not in found["events_per_second"]
    told = sum_of(found["events_per_second"], found["times_ms"])
    assert told == pytest.approx(looks * commits, rel=0.02)


def test_the_last_minute_is_a_minute_long_at_each_of_its_seconds(
    world: World, client: TestClient
) -> None:
    for _ in range(3):
        world.clock.sleep(1)
        world.write(1_000)  # once a minute
        for pause in (0, 7, 13, 22, 17):
            world.clock.sleep(pause)
            row = client.get("/api/streams/nyc/f").json()["row"]
            assert row["events_per_second"] == pytest.approx(1_000 / 60, abs=0.001)
            assert row["bytes_per_second"] == pytest.approx(10_000 / 60, abs=0.1)


@pytest.mark.medium
def test_watched_minutes_are_those_of_the_commits(world: World, client: TestClient) -> None:
    for _ in range(8):
        for pause in (9, 8, 7, 9, 7, 9):  # so that looks and points of the curve differ
            world.clock.sleep(pause)
            client.get("/api/streams/nyc/f")
        world.clock.sleep(6)
        world.write(600)
    world.clock.sleep(31)
    client.get("/api/streams/nyc/f")
    found = client.get("/api/streams/nyc/f/traffic?last=15m").json()
    assert {*found["events_per_second"][-30:]} == {0, 40}, "a commit is of one point alone"


@pytest.mark.parametrize("range_name", ["15m", "1h", "24h"])
def test_before_a_stream_existed_its_curves_have_a_gap(
    world: World, client: TestClient, range_name: str
) -> None:
    world.clock.sleep(640)
    found = client.get(f"/api/streams/nyc/f/traffic?last={range_name}").json()
    told: dict[str, set[float | None]] = {"existed": set(), "did not": set()}
    for time, *values in zip(
        found["times_ms"], found["events_per_second"], found["size_bytes"], strict=True
    ):
        told["existed" if time >= found["created_ms"] else "did not"] |= {*values}
    assert told == {"existed": {0}, "did not": {None}}
    assert not found["is_reading"]
    if range_name == "1h":
        row = client.get("/api/streams/nyc/f").json()["row"]
        assert row["series"] == found["events_per_second"]


def test_after_a_commit_of_the_future_no_rate_is_said_until_a_minute_was_watched(
    world: World, client: TestClient
) -> None:
    world.clock.sleep(600)
    ahead = FakeRuntime()
    ahead.wall_ms = 1_900_000_000_000.0
    world.write(7, StreamManager(world.manager.root, runtime=ahead))
    for _ in range(16):
        details = client.get("/api/streams/nyc/f").json()
        assert details["row"]["events_per_second"] is None
        assert details["row"]["bytes_per_second"] is None
        assert details["segments"][0]["events_per_second"] is None
        world.clock.sleep(3.5)


def of_a_clock_behind(world: World, seconds: float) -> tuple[FakeRuntime, StreamManager]:
    """Return a host whose clock is behind; it stands until a test moves it."""
    clock = FakeRuntime()
    clock.wall_ms = world.clock.wall_ms - 1_000 * seconds
    return clock, StreamManager(world.manager.root, runtime=clock)


@pytest.mark.medium
@pytest.mark.parametrize("behind", [90, 5 * 3_600])
def test_watched_commits_of_a_clock_that_is_behind_have_the_times_of_the_looks(
    world: World, client: TestClient, behind: int
) -> None:
    world.clock.sleep(40)  # a whole point of the curve ends here
    client.get("/api/streams/nyc/f")
    for has_own in (False, True):  # beside it a writer whose clock is right
        for _ in range(10):
            world.clock.sleep(6)
            for _ in range(5):
                world.write(12, of_a_clock_behind(world, behind)[1])
            if has_own:
                world.write(60)
            row = client.get("/api/streams/nyc/f").json()["row"]
        assert row["events_per_second"] == pytest.approx(20 if has_own else 10, rel=0.01)
    world.clock.sleep(15)
    client.get("/api/streams/nyc/f")
    found = client.get("/api/streams/nyc/f/traffic?last=15m").json()
    told = sum_of(found["events_per_second"], found["times_ms"])
    assert told == pytest.approx(1_800, rel=0.01)


def test_after_a_pause_commits_of_a_clock_that_is_behind_are_no_silence(
    world: World, client: TestClient
) -> None:
    client.get("/api/streams/nyc/f")
    for _ in range(30):
        world.clock.sleep(20)
        world.write(60, of_a_clock_behind(world, 5 * 3_600)[1])
    world.clock.sleep(5)
    found = read_to_the_end(world, client, "15m")
    assert {*found["events_per_second"][-38:-2]} == {None}, "nothing tells when they came"


def test_after_a_pause_commits_of_a_clock_that_is_behind_came_after_those_before_them(
    world: World, client: TestClient
) -> None:
    world.clock.sleep(600)
    client.get("/api/streams/nyc/f")
    for _ in range(30):
        world.clock.sleep(15)
        world.write(60)
        world.write(90, of_a_clock_behind(world, 5 * 3_600)[1])
    world.clock.sleep(15)
    found = read_to_the_end(world, client, "15m")
    assert found["events_per_second"][-30:-3] == [10] * 27


@pytest.mark.medium
def test_a_commit_of_the_future_raises_no_time_of_those_after_it(
    world: World, client: TestClient
) -> None:
    ahead = FakeRuntime()
    ahead.wall_ms = 1_900_000_000_000.0
    world.write(1, StreamManager(world.manager.root, runtime=ahead))
    client.get("/api/streams/nyc/f")
    for _ in range(60):
        world.clock.sleep(3)
        world.write(30)
        row = client.get("/api/streams/nyc/f").json()["row"]
    assert row["events_per_second"] == pytest.approx(10)
    kinds = {f["kind"] for f in client.get("/api/attention").json()["findings"]}
    assert "clock_ahead" in kinds
    assert "clock_behind" not in kinds


@pytest.mark.medium
def test_a_first_look_believes_no_silence_behind_a_clock_that_proves_wrong(
    world: World, client: TestClient
) -> None:
    world.clock.sleep(600)
    behind, manager = of_a_clock_behind(world, 5 * 3_600)
    with manager.create_writer("nyc/f") as writer:
        for _ in range(20):
            for clock in (behind, world.clock):
                clock.sleep(6)
            writer.write_events([EVENT] * 60, routing_key="a")
            writer.flush()
            row = client.get("/api/streams/nyc/f").json()["row"]
    assert row["events_per_second"] == pytest.approx(10, rel=0.01)
    found = client.get("/api/streams/nyc/f/traffic?last=15m").json()
    assert 0 not in found["events_per_second"][-12:]
