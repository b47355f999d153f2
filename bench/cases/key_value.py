"""Key-value tables: puts beside plain appends, gets beside a dict, changes by compare-and-set."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed, timed_each
from bench.harness.registry import benchmark
from pravega_spark import KeyValueTable, KeyValueTableConfiguration

_VALUE = bytes(100)


def _table(context: Context, name: str) -> KeyValueTable:
    stream = context.create(f"beside-{name}", 4)
    table = f"{stream.partition('/')[0]}/{name}"
    context.manager.create_key_value_table(table, KeyValueTableConfiguration(partitions=4))
    return context.manager.key_value_table(table)


def _keys(count: int) -> list[bytes]:
    return [b"key-%08d" % number for number in range(count)]


def _microseconds(used: list[float], count: int) -> str:
    """Return the median of seconds of processor time, for each of ``count`` calls."""
    return f"{1e6 * statistics.median(used) / count:.2f} us"


@benchmark()
def lone_put(context: Context) -> Iterator[Figure]:
    """One put that is waited for, beside one append, in 4 segments each."""
    calls, rounds = context.size(40, 10), context.size(25, 3)
    table = _table(context, "lone-puts")
    numbers = iter(range(1_000_000))
    found = table.insert(b"replaced", _VALUE)

    def replace() -> None:
        nonlocal found
        found = table.replace(b"replaced", _VALUE, found)

    with table, context.manager.create_writer(context.create("lone-appends", 4)) as writer:

        def append() -> object:
            return writer.write_event(EVENT, "key").result()

        def put() -> object:
            return table.put(b"key-%d" % next(numbers), EVENT).result()

        actions = {"append": append, "put": put, "replace": replace}
        for action in actions.values():
            timed_each(action, calls)
        sides = {
            name: lambda action=action: 1e3 * statistics.median(timed_each(action, calls))
            for name, action in actions.items()
        }
        seen = interleave(rounds, sides)
    peer = "a plain append of one event"
    yield Figure.of_rounds(
        "put of one key, local, p50", seen["put"], "ms", peer, seen["append"]
    ).within(ratio_at_most=1.2)
    yield Figure.of_rounds(
        "replace of one key by its version, local, p50", seen["replace"], "ms", peer, seen["append"]
    )


@benchmark()
def pipelined_puts(context: Context) -> Iterator[Figure]:
    """Puts of different keys of 100 bytes; the clock stops when the last future is done."""
    count = context.size(400_000, 5_000)
    table = _table(context, "pipelined-puts")
    keys = _keys(count)
    texts = [key.hex() for key in keys]
    with table, context.manager.create_writer(context.create("pipelined-appends", 4)) as writer:

        def appends() -> float:
            def write() -> None:
                futures = [writer.write_event(_VALUE, text) for text in texts]
                futures[-1].result()
                writer.flush()

            return count / timed(write)

        used = {"caller": list[float](), "process": list[float]()}

        def puts() -> float:
            def write() -> None:
                caller, process = time.thread_time(), time.process_time()
                futures = [table.put(key, _VALUE) for key in keys]
                used["caller"].append(time.thread_time() - caller)
                futures[-1].result()
                table.flush()
                used["process"].append(time.process_time() - process)

            return count / timed(write)

        seen = interleave(context.size(5, 2), {"puts": puts, "appends": appends})
    yield Figure.of_rounds(
        "puts pipelined, a future for each",
        seen["puts"],
        "puts/s",
        "plain appends with the same keys",
        seen["appends"],
        note=f"best round {max(seen['puts']):,.0f}/s; processor time of a put "
        f"{_microseconds(used['caller'], count)} of the caller, "
        f"{_microseconds(used['process'], count)} of the process",
        limited_by="the caller's loop: checks, the payload and the routing key of each put",
    ).within(at_least=200_000)


@benchmark()
def hot_gets(context: Context) -> Iterator[Figure]:
    """Gets of keys that changed since the last fold, in one thread; each makes a TableEntry."""
    count = context.size(200_000, 2_000)
    table = _table(context, "hot-gets")
    keys = _keys(count)
    with table:
        for key in keys:
            table.put(key, _VALUE)
        table.flush()
        plain = dict.fromkeys(keys, _VALUE)
        table.get(keys[0], fresh=True)

        used = {"kept": list[float](), "dropped": list[float]()}

        def keep() -> None:
            begun = time.thread_time()
            found = [table.get(key) for key in keys]
            used["kept"].append(time.thread_time() - begun)
            assert len(found) == count

        def drop() -> None:
            begun = time.thread_time()
            for key in keys:
                table.get(key)
            used["dropped"].append(time.thread_time() - begun)

        sides = {
            "kept": lambda: count / timed(keep),
            "dropped": lambda: count / timed(drop),
            "floor": lambda: count / timed(lambda: [plain.get(key) for key in keys]),
        }
        seen = interleave(context.size(5, 2), sides)
    limit = "Python: a call, a look at the clock and at the log, a tuple of five fields"
    for name, side in (("all entries kept", "kept"), ("each entry dropped", "dropped")):
        yield Figure.of_rounds(
            f"gets of hot keys, one process, {name}",
            seen[side],
            "gets/s",
            "a dict's get",
            seen["floor"],
            note=f"best round {max(seen[side]):,.0f}/s; processor time of a get "
            f"{_microseconds(used[side], count)}; at most 1 s old",
            limited_by=limit,
        ).within(at_least=300_000)
