"""What a server asks of its storage for an open page, on a root of 500 streams and 300 groups."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.harness.context import Context
from bench.harness.counted_server import CountedServer, Spent, counted_server
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager

_POLL_SECONDS = 3.0
_PAINT = "(performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime"
_PAGES = {
    "the first page": "/",
    "the list of groups": "/groups",
    "a stream": "/streams/bench/s0",
    "a group": "/groups/bench/g0",
}


@benchmark()
def served_root(context: Context) -> Iterator[Figure]:
    """Calls of each poll by page, with and without new commits, and the first paint."""
    from tests.harness.browser import browser_tab

    streams, groups = context.size(500, 20), context.size(300, 12)
    root = str(context.folder / "served")
    manager = _fill(root, streams, groups)
    size = f"{streams} streams and {groups} groups"
    with counted_server(root, "--poll", str(_POLL_SECONDS)) as server, browser_tab() as tab:
        before = server.spent()
        time.sleep(context.size(75, 1))  # applications maintain such a root from 60 s on
        idle = server.spent().since(before)
        yield Figure(
            f"a server of {size} that nobody looks at: storage calls",
            idle.calls,
            "calls",
            target="0 calls",
            met=idle.calls == 0,
            limited_by=str(idle.kinds),
        )
        for name, path in _PAGES.items():
            before = server.spent()
            tab.open(f"{server.url}{path}")
            paints = [tab.wait_for(_PAINT)]
            time.sleep(_POLL_SECONDS)
            first = server.spent().since(before)
            polls = _polls(server, context.size(7, 2), lambda: None)
            yield _calls(f"{name} of {size}, each poll", polls, f"the first look {_text(first)}")
            if path == "/":
                busy = _polls(server, context.size(7, 2), lambda: _write(manager, streams))
                yield _calls(f"{name}, with a commit to each stream before each poll", busy, "")
            for _ in range(context.size(4, 1)):
                tab.open(f"{server.url}{path}")
                paints.append(tab.wait_for(_PAINT))
            yield _paint(name, paints)
        tab.open("about:blank")
        time.sleep(2 * _POLL_SECONDS)
        before = server.spent()
        time.sleep(2 * _POLL_SECONDS)
        left = server.spent().since(before)
        yield Figure(
            "after the last page is closed: storage calls",
            left.calls,
            "calls",
            note=f"the process holds {left.memory_mib:.0f} MiB",
            target="0 calls",
            met=left.calls == 0,
            limited_by=str(left.kinds),
        )


def _fill(root: str, streams: int, groups: int) -> StreamManager:
    """Make streams of a segment with an event, and groups of a stream each, of which some read."""
    manager = StreamManager(root)
    manager.create_scope("bench")
    one = StreamConfiguration(ScalingPolicy.fixed(1))

    def add_stream(number: int) -> None:
        manager.create_stream(f"bench/s{number}", one)
        with manager.create_writer(f"bench/s{number}") as writer:
            writer.write_event(b"x" * 100).result()

    def add_group(number: int) -> None:
        group = manager.create_reader_group(f"bench/g{number}", [f"bench/s{number}"])
        if number % 10 == 0:
            group.create_reader("r").read_next_event(timeout=1.0)

    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(add_stream, range(streams)):
            pass
        for _ in threads.map(add_group, range(groups)):
            pass
    return manager


def _write(manager: StreamManager, streams: int) -> None:
    def write(number: int) -> None:
        with manager.create_writer(f"bench/s{number}") as writer:
            writer.write_event(b"x" * 100).result()

    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(write, range(streams)):
            pass


def _polls(server: CountedServer, polls: int, between: Callable[[], None]) -> list[Spent]:
    """Return what each of some times of a poll costs, after what happens between them."""
    found = []
    for _ in range(polls):
        between()
        before = server.spent()
        time.sleep(_POLL_SECONDS)
        found.append(server.spent().since(before))
    return found


def _calls(name: str, polls: list[Spent], note: str) -> Figure:
    most = max(polls, key=lambda each: each.calls)
    mean = sum(each.calls for each in polls) / len(polls)
    size_kib = max(each.read_bytes for each in polls) / 1_024
    texts = [f"on average {mean:.0f}", f"at most {size_kib:.0f} KiB", _text(most), note]
    return Figure(
        f"{name}: most storage calls",
        most.calls,
        "calls",
        note="; ".join(text for text in texts if text),
        limited_by="the looks at streams and groups, and the page's own requests",
    ).within(at_most=800.0)


def _paint(name: str, milliseconds: list[float]) -> Figure:
    return Figure(
        f"{name}: first contentful paint, p50",
        statistics.median(milliseconds),
        "ms",
        note=f"at first {milliseconds[0]:.0f}, at most {max(milliseconds):.0f}",
        limited_by="the browser, and the page's files",
    ).within(at_most=1_000.0)


def _text(spent: Spent) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(spent.kinds.items()))
    return f"{spent.calls} calls ({kinds})"
