"""Live updates: what viewers get, what the poll for them costs, and that it ends with them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.errors import StoreUnavailable
from pravega_spark.serve import attention, live_updates
from pravega_spark.serve.attention import Attention
from pravega_spark.serve.live_updates import LiveUpdates
from pravega_spark.serve.serve_options import MAX_VIEWERS
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.watch import RootWatch
from tests.harness.web_world import new_manager, web_client

POLL_SECONDS = 0.01


class CountedWatch(RootWatch):
    """A watch that records which streams each poll looks at."""

    def __init__(self, manager: StreamManager) -> None:
        super().__init__(ServedRoot(manager), POLL_SECONDS)
        self.rounds: list[list[str]] = []

    def rows(self, names: Any) -> Any:
        self.rounds.append(list(names))
        return super().rows(names)


@pytest.fixture
def watch() -> CountedWatch:
    manager = new_manager()
    manager.create_stream("nyc/f")
    return CountedWatch(manager)


def live_of(watch: RootWatch) -> LiveUpdates:
    return LiveUpdates(watch, Attention(watch))


async def next_of(messages: AsyncIterator[str], kind: str) -> Any:
    """Return the data of the next message of a kind."""
    while True:
        lines = (await asyncio.wait_for(anext(messages), 30)).splitlines()
        if lines[0] == f"event: {kind}":
            return json.loads(lines[1].removeprefix("data: "))


def test_a_viewer_gets_all_rows_first_and_then_those_that_change(watch: CountedWatch) -> None:
    manager = watch.root.manager

    async def look() -> None:
        live = live_of(watch)
        messages = live.messages(None)
        assert (await next_of(messages, "hello")) == {"poll_seconds": POLL_SECONDS}
        (row,) = (await next_of(messages, "streams"))["streams"]
        assert (row["stream"], row["events"]) == ("f", 0)
        with manager.create_writer("nyc/f") as writer:
            writer.write_event(b"x").result()
        while row["events"] == 0:
            (row,) = (await next_of(messages, "streams"))["streams"]
        assert row["events_per_second"] > 0
        await messages.aclose()  # type: ignore[attr-defined]
        await live.close()

    asyncio.run(look())


def test_all_viewers_share_one_poll_which_ends_with_the_last(watch: CountedWatch) -> None:
    async def look() -> None:
        live = live_of(watch)
        viewers = [live.messages(None) for _ in range(5)]
        for messages in viewers:
            await next_of(messages, "hello")
        await next_of(viewers[0], "streams")
        started = len(watch.rounds)
        await asyncio.sleep(20 * POLL_SECONDS)
        assert 0 < len(watch.rounds) - started <= 21  # one a poll, however many viewers
        for messages in viewers:
            await messages.aclose()  # type: ignore[attr-defined]
        assert live._task is not None
        await asyncio.wait_for(live._task, 10)
        ended = len(watch.rounds)
        await asyncio.sleep(5 * POLL_SECONDS)
        assert len(watch.rounds) == ended

    asyncio.run(look())


def test_a_poll_is_bounded_and_looks_at_the_open_stream_each_time(
    watch: CountedWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = watch.root.manager
    for number in range(9):
        manager.create_stream(f"nyc/s{number}")
    monkeypatch.setattr(attention, "LOOKS", 3)

    async def look() -> None:
        live = live_of(watch)
        messages = live.messages("nyc/s8")
        await next_of(messages, "hello")
        while len(watch.rounds) < 8:
            await asyncio.sleep(POLL_SECONDS)
        await messages.aclose()  # type: ignore[attr-defined]
        await live.close()

    asyncio.run(look())
    assert all(len(names) <= 4 and "nyc/s8" in names for names in watch.rounds)
    assert {name for names in watch.rounds for name in names} == set(watch.names().streams)


def test_an_idle_viewer_gets_heartbeats_only(
    watch: CountedWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_updates, "_HEARTBEAT_SECONDS", 0.1)
    now_ms = Runtime().now_ms()  # with the next minute, a row has one more point of its curve
    monkeypatch.setattr(Runtime, "now_ms", lambda self: now_ms)

    async def look() -> None:
        live = live_of(watch)
        messages = live.messages(None)
        await next_of(messages, "attention")  # the last one of a poll
        assert [await anext(messages) for _ in range(3)] == [": still here\n\n"] * 3
        await messages.aclose()  # type: ignore[attr-defined]
        await live.close()

    asyncio.run(look())


def test_a_storage_that_fails_is_told_without_credentials_and_the_poll_goes_on(
    watch: CountedWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: RootWatch) -> Any:
        monkeypatch.undo()
        raise StoreUnavailable("s3://key:secret@bucket does not answer.")

    monkeypatch.setattr(RootWatch, "names", fail)

    async def look() -> None:
        live = live_of(watch)
        messages = live.messages(None)
        trouble = await next_of(messages, "trouble")
        since_ms = trouble.pop("storage_since_ms")
        assert abs(watch.root.runtime.now_ms() - since_ms) < 60_000
        assert trouble == {"message": "s3://***@bucket does not answer."}
        await next_of(messages, "resync")  # else a page without news would not know that it ended
        assert (await next_of(messages, "streams"))["streams"]
        await messages.aclose()  # type: ignore[attr-defined]
        await live.close()

    asyncio.run(look())


def test_a_viewer_that_does_not_read_is_told_to_ask_again(watch: CountedWatch) -> None:
    async def look() -> None:
        live = live_of(watch)
        messages = live.messages(None)
        await next_of(messages, "hello")
        for number in range(20):
            live._publish(f"event: n\ndata: {number}\n\n")
        await next_of(messages, "resync")
        await messages.aclose()  # type: ignore[attr-defined]
        await live.close()

    asyncio.run(look())


def test_too_many_viewers_are_refused(watch: CountedWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "MAX_VIEWERS", 0)
    with web_client(watch.root.manager) as client:
        answer = client.get("/api/live")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
    assert MAX_VIEWERS == 64
