"""Encryption at rest: appends to encrypted streams and reads of them, beside plain ones."""

from __future__ import annotations

import base64
import itertools
import statistics
from collections.abc import Iterator

import pyarrow as pa

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed, timed_each
from bench.harness.registry import benchmark
from pravega_spark import EncryptionPolicy, ScalingPolicy, StreamConfiguration, set_kms

_PEER = "a plain stream"


class _ToyKms:
    """Wraps keys as nobody should; it is asked once for many files, so its cost is left out."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        return base64.b64encode(key_bytes).decode()

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


@benchmark()
def encrypted_chunks(context: Context) -> Iterator[Figure]:
    """Lone appends, batches of Arrow rows, and reads of both."""
    set_kms(lambda _: _ToyKms())
    try:
        yield from _figures(context)
    finally:
        set_kms(None)


def _figures(context: Context) -> Iterator[Figure]:
    rows, rounds = context.size(200_000, 2_000), context.size(15, 2)
    batch = pa.table(
        {"event": [EVENT] * rows, "routing_key": [f"key-{n % 7}" for n in range(rows)]}
    )
    manager, numbers = context.manager, itertools.count()

    def create(policy: EncryptionPolicy | None) -> str:
        name = f"bench/encrypted-{next(numbers)}"
        manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(1), encryption=policy))
        return name

    policies = {"ours": EncryptionPolicy("bench"), "peer": None}
    lone = {side: create(policy) for side, policy in policies.items()}
    large = {side: create(policy) for side, policy in policies.items()}

    def append(side: str) -> float:
        with manager.create_writer(lone[side]) as writer:
            writer.write_event(EVENT).result()
            return 1e3 * statistics.median(
                timed_each(lambda: writer.write_event(EVENT).result(), 10)
            )

    def write(side: str) -> float:
        with manager.create_writer(large[side]) as writer:
            return rows / timed(lambda: writer.write_table(batch).result())

    def read(names: dict[str, str], side: str) -> float:
        count = manager.stream_info(names[side]).events

        def drain() -> None:
            reader = manager.create_reader(names[side])
            assert sum(batch.num_rows for _, batch in reader.batches()) == count

        return count / timed(drain)

    for name, unit, action in (
        ("lone append to an encrypted stream, p50", "ms", append),
        (f"batches of {rows:,} events of 100 bytes, written encrypted", "events/s", write),
        ("the same, read", "events/s", lambda side: read(large, side)),
        ("encrypted chunks of one event, read", "events/s", lambda side: read(lone, side)),
    ):
        sides = {side: lambda side=side, action=action: action(side) for side in policies}
        found = interleave(rounds, sides)
        yield Figure.of_rounds(name, found["ours"], unit, _PEER, found["peer"])
