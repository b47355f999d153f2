"""Outages of an object store under everything that works on a stream at the same time.

A real S3 server is killed and started again on its port, or stopped; the network before it refuses,
resets, cuts and stalls. Up to the storage option ``retry_timeout`` nobody fails, and each
acknowledged event is there once and in order, for every reader.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pravega_spark import EventStreamWriter, StreamManager
from pravega_spark.engine.store import s3_client
from pravega_spark.errors import CommitUnknown, StoreUnavailable
from pravega_spark.manager import root_of
from tests.harness.outage_world import STREAM, OutageWorld
from tests.harness.s3_outages import S3Outages
from tests.harness.s3_server import S3Server, start_s3
from tests.harness.tcp_proxy import Network, TcpProxy, tcp_proxy
from tests.harness.tiers import IS_LONG

pytestmark = pytest.mark.s3

_roots = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """A server of this module alone, since its outages would fail others' tests."""
    with start_s3("outages") as server:
        yield server


@pytest.fixture(scope="module")
def outages(server: S3Server) -> Iterator[S3Outages]:
    with S3Outages(server) as outages:
        yield outages


@pytest.fixture
def proxy(server: S3Server) -> Iterator[TcpProxy]:
    with tcp_proxy(server.endpoint_url) as proxy:
        yield proxy


def world(server: S3Server, endpoint: str, **options: object) -> OutageWorld:
    root = f"s3://{server.bucket}/outage-{next(_roots)}"
    return OutageWorld(root, **{**server.options, "endpoint_url": endpoint, **options})


def check_warnings(caplog: pytest.LogCaptureFixture, least: int = 0) -> None:
    """Check that each outage was one warning, whatever waited, and one line at its end.

    A machine that is busy may make one of its own, so their number has no upper limit.
    """
    marks = ("does not answer; each call is repeated", "answers again, after")

    def lines() -> list[str]:
        return [mark for r in list(caplog.records) for mark in marks if mark in r.getMessage()]

    while len(found := lines()) % 2:  # a call in the background has not been answered yet
        time.sleep(0.02)
    assert found == [*marks] * (len(found) // 2)
    assert len(found) // 2 >= least
    elsewhere = "pravega_spark.reader_groups.lease_extender"  # readers that earlier tests left
    loud = [r for r in caplog.records if r.levelno >= logging.WARNING]
    warnings = [record for record in loud if record.name != elsewhere]
    assert len(warnings) == len(found) // 2, [record.getMessage() for record in warnings]


def sit_out(
    caplog: pytest.LogCaptureFixture, made: OutageWorld, outage: Callable[[], None]
) -> None:
    """Make an outage while all work, and wait until each writer made progress after it."""
    caplog.set_level(logging.INFO, logger="pravega_spark")
    made.run(1.0)
    made.wait_for_progress(dict.fromkeys(made.counts(), 0), 240)
    outage()
    made.wait_for_progress(made.counts(), 240)
    made.run(0.5)
    made.end(240)


KILLS = [0.3, 3.0, 10.0] if IS_LONG else [1.0]
"""How long the server is away before it starts again, which takes it ten seconds or more."""


NETWORKS = [Network.CUT, Network.SLOW, *([Network.REFUSE, Network.STALL] if IS_LONG else [])]
"""A killed server refuses too, and a stopped one stalls: the short form leaves it to them."""


@pytest.mark.long
@pytest.mark.parametrize("seconds", KILLS)
def test_killed_server_is_sat_out(
    server: S3Server, outages: S3Outages, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    made = world(server, server.endpoint_url)
    sit_out(caplog, made, lambda: outages.kill(seconds))
    check_warnings(caplog, least=1)


@pytest.mark.long
@pytest.mark.parametrize("network", NETWORKS)
def test_network_that_fails_for_a_time_is_sat_out(
    server: S3Server, proxy: TcpProxy, caplog: pytest.LogCaptureFixture, network: Network
) -> None:
    made = world(server, proxy.url, read_timeout="4 s", connect_timeout="4 s")

    def fail() -> None:
        proxy.network = network
        time.sleep(10 if IS_LONG else 3)
        proxy.network = Network.GOOD

    sit_out(caplog, made, fail)
    check_warnings(caplog)


@pytest.mark.long
def test_stopped_server_is_sat_out(
    server: S3Server, outages: S3Outages, caplog: pytest.LogCaptureFixture
) -> None:
    """A stopped server accepts connections, so only time-outs show that it does not answer."""
    made = world(server, server.endpoint_url, retry_timeout="2 minutes", read_timeout="3 s")
    sit_out(caplog, made, lambda: outages.stop(80 if IS_LONG else 12))
    check_warnings(caplog, least=1)


def test_stopped_server_is_warned_of_while_a_write_waits_for_it(
    server: S3Server,
    outages: S3Outages,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, logger="pravega_spark")
    monkeypatch.setattr(s3_client, "SILENCE_SECONDS", 0.3)
    options = {**server.options, "read_timeout": "1 hour"}
    manager = StreamManager(f"s3://{server.bucket}/{next(_roots)}", storage_options=options)
    manager.create_scope("s")
    manager.create_stream(STREAM)
    with manager.create_writer(STREAM) as writer:
        writer.write_event(b"1").result(240)
        caplog.clear()
        with outages.stopped():
            late = writer.write_event(b"2")
            while not caplog.records:
                time.sleep(0.02)
            assert not late.done()
        late.result(240)
    check_warnings(caplog, least=1)
    assert [event.data for event in manager.read(STREAM)] == [b"1", b"2"]


def test_longer_outage_fails_clearly_and_a_writer_with_an_id_goes_on(
    server: S3Server, proxy: TcpProxy
) -> None:
    options = {**server.options, "endpoint_url": proxy.url, "retry_timeout": "500 ms"}
    manager = StreamManager(f"s3://{server.bucket}/long-{next(_roots)}", storage_options=options)
    manager.create_scope("s")
    manager.create_stream(STREAM)
    writer = manager.create_writer(STREAM, writer_id="w")
    writer.write_event(b"1", "k").result(240)
    proxy.network = Network.REFUSE
    late = writer.write_event(b"2", "k")
    with pytest.raises((StoreUnavailable, CommitUnknown), match="retry_timeout"):
        late.result(240)
    with pytest.raises((StoreUnavailable, CommitUnknown), match="retry_timeout"):
        writer.write_event(b"3", "k")
    with pytest.raises(StoreUnavailable, match="500 ms, as the storage option retry_timeout says"):
        list(manager.read(STREAM))
    proxy.network = Network.GOOD
    with manager.create_writer(STREAM, writer_id="w") as again:
        for number in range(again.last_event_number + 1, 4):
            again.write_event(b"%d" % number, "k").result(240)
    assert [event.data for event in manager.read(STREAM)] == [b"1", b"2", b"3"]


def test_root_is_opened_and_created_during_an_outage(server: S3Server, proxy: TcpProxy) -> None:
    options = {**server.options, "endpoint_url": proxy.url}
    root = f"s3://{server.bucket}/new-{next(_roots)}"
    proxy.network = Network.REFUSE
    threading.Timer(1.0, lambda: setattr(proxy, "network", Network.GOOD)).start()
    manager = StreamManager(root, storage_options=options)
    assert manager.create_scope("s")
    assert manager.create_stream(STREAM)
    with manager.create_writer(STREAM) as writer:
        writer.write_event(b"1").result(240)
    assert [event.data for event in manager.read(STREAM)] == [b"1"]


def test_writer_blocks_when_its_buffer_is_full(server: S3Server, proxy: TcpProxy) -> None:
    options = {**server.options, "endpoint_url": proxy.url}
    root = f"s3://{server.bucket}/full-{next(_roots)}"
    manager = StreamManager(root, storage_options=options)
    manager.create_scope("s")
    manager.create_stream(STREAM)
    size, buffer_bytes, count = 100_000, 1 << 20, 40
    events = [b"%03d" % number + bytes(size - 3) for number in range(count)]
    accepted: list[bytes] = []
    writer = EventStreamWriter(root_of(manager).stream(STREAM), "w", buffer_bytes=buffer_bytes)
    writer.write_event(b"first", "k").result(240)
    proxy.network = Network.REFUSE

    def write() -> None:
        for event in events:
            writer.write_event(event, "k")
            accepted.append(event)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    while not accepted:
        time.sleep(0.1)
    time.sleep(1.0)  # it accepts no more than the buffer takes, however long one waits
    assert 0 < len(accepted) <= buffer_bytes // size
    assert thread.is_alive(), "write_event waits"
    proxy.network = Network.GOOD
    thread.join(240)
    writer.close()
    assert [event.data for event in manager.read(STREAM)] == [b"first", *events]
