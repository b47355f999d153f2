from __future__ import annotations

from bench.harness.dataset import EVENT_BYTES, payloads, table


def test_events_have_100_bytes_and_are_the_same_for_the_same_seed() -> None:
    events = payloads(1_000)
    assert {len(event) for event in events.to_pylist()} == {EVENT_BYTES}
    assert events.equals(payloads(1_000))
    assert not events.equals(payloads(1_000, seed=2))
    assert table(1_000).column("event").null_count == 0
