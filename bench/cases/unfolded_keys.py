"""Opening a key-value table for a scan of one prefix: nothing folded, folded, and the fold."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from pravega_spark.engine.root import Root
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import stream_log
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.key_value.lifecycle import TableLifecycle
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.values.names import table_log

_FEW, _MANY = 100_000, 1_000_000
_TABLE, _LOG = "bench/unfolded", table_log("bench", "unfolded")


@benchmark()
def unfolded_keys(context: Context) -> Iterator[Figure]:
    """Tables of which nothing is folded, then all, then all but a tenth of the keys."""
    few, many = (_measure(context.size(count, count // 20)) for count in (_FEW, _MANY))
    for what, most in (("nothing is folded", None), ("all is folded", 2.0)):
        figure = Figure.of_rounds(
            f"open and scan a prefix of {_MANY:,} keys, {what}, CPU",
            [many[what][0]],
            "ms",
            f"{_FEW:,} keys",
            [few[what][0]],
            note=f"storage calls {many[what][1]:,.0f} and {few[what][1]:,.0f}",
            limited_by="reading what is not folded" if most is None else "opening two logs",
        )
        yield figure.within(ratio_at_most=most or 15.0)
    for what, opened in (("all", "nothing is folded"), ("a tenth", "a tenth is not folded")):
        yield Figure.of_rounds(
            f"fold {what} of {_MANY:,} keys, CPU",
            [many[what][0]],
            "ms",
            "opening it before",
            [many[opened][0]],
            note=f"of {_FEW:,}: {few[what][0]:.0f} ms, and {few[opened][0]:.0f} to open it",
            limited_by="sorting and writing the rows that changes touch",
        ).within(ratio_at_most=5.0)


def _measure(keys: int) -> dict[str, tuple[float, int]]:
    """Return processor time in ms and storage calls of each step."""
    store = CountingStore(MemoryStore(f"unfolded-{keys}"))
    root = Root(store)
    root.scope("bench").create()
    TableLifecycle(root, _TABLE).create(KeyValueTableConfiguration())
    log = open_stream(store, _LOG)

    def put(numbers: Iterable[int]) -> None:
        with KeyValueTable(log, _TABLE, log.view()) as table:
            for number in numbers:
                table.put(b"k%08d" % number, b"v%08d" % number)

    def fold_all() -> None:
        fold(log, folded_table(log, table_configuration(log.view())))

    def scan() -> None:
        nonlocal log
        log = open_stream(store, _LOG)
        table = KeyValueTable(log, _TABLE, log.view())
        assert len(list(table.entries(prefix=b"k0000001"))) == 10

    def spent(step: Callable[[], None], *, cold: bool = False) -> tuple[float, int]:
        nonlocal log
        if cold:
            del log
            stream_log._open.reset()
        gc.collect()
        calls, begun = store.total, time.process_time()
        step()
        return 1e3 * (time.process_time() - begun), store.total - calls

    found = dict[str, tuple[float, int]]()
    put(range(keys))
    found["nothing is folded"] = spent(scan, cold=True)
    found["all"] = spent(fold_all)
    found["all is folded"] = spent(scan, cold=True)
    put(np.random.default_rng(1).choice(keys, keys // 10, replace=False).tolist())
    found["a tenth is not folded"] = spent(scan, cold=True)
    found["a tenth"] = spent(fold_all)
    return found
