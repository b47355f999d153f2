"""A transaction over two streams, beside two transactions one after the other."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed_each
from bench.harness.registry import benchmark
from bench.harness.small_transaction import KEYS, SEGMENTS, write_events


@benchmark()
def joint_transaction(context: Context) -> Iterator[Figure]:
    """Begin, write 100 events to each of two streams, and commit."""
    names = [context.create(f"joint-{number}", SEGMENTS) for number in range(2)]
    manager = context.manager
    with (
        manager.create_joint_writer(names) as joint,
        manager.create_transactional_writer(names[0]) as first,
        manager.create_transactional_writer(names[1]) as second,
    ):

        def together() -> None:
            with joint.begin_transaction() as transaction:
                for name in names:
                    for key in KEYS:
                        transaction.write_event(name, EVENT, key)

        def one_by_one() -> None:
            for writer in (first, second):
                with writer.begin_transaction() as transaction:
                    write_events(transaction)

        calls = context.size(10, 3)

        def timed(transact: object) -> float:
            assert callable(transact)
            return statistics.median(1e3 * seconds for seconds in timed_each(transact, calls))

        sides = {"joint": lambda: timed(together), "two": lambda: timed(one_by_one)}
        found = interleave(context.size(30, 2), sides)
    yield Figure.of_rounds(
        "transaction over two streams: begin + 100 events in each + commit, visible, p50",
        found["joint"],
        "ms",
        "two transactions",
        found["two"],
        limited_by="ten waits in sequence, two of them for the decision log; two transactions of "
        "their own take eighteen",
    ).within(ratio_at_most=1.5)
