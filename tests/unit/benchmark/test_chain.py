"""A chain shows every event that is missing, doubled, moved or changed."""

from __future__ import annotations

import pytest

from pravega_spark.benchmark.chain import ReadChain, WrittenChain


def events(count: int, run: str = "run", key: str = "k", size: int = 100) -> list[bytes]:
    chain = WrittenChain(key, run, size)
    return [chain.next() for _ in range(count)]


def broken_at(found: list[bytes]) -> int | None:
    """The position of the first event that does not follow the one before."""
    chain = ReadChain("k", "run")
    for position, event in enumerate(found):
        if chain.take(event) is not None:
            assert chain.events == position
            return position
    return None


@pytest.mark.parametrize("size", [0, 48, 49, 100, 1 << 20])
def test_what_was_written_is_read(size: int) -> None:
    written = events(5, size=size)
    assert {len(event) for event in written} == {max(48, size)}
    assert broken_at(written) is None
    assert len(set(written)) == 5


@pytest.mark.parametrize(
    ("change", "position"),
    [
        (lambda found: found[1:], 0),
        (lambda found: [*found[:2], *found[3:]], 2),
        (lambda found: [*found[:2], found[1], *found[2:]], 2),
        (lambda found: [*found[:2], found[3], found[2], *found[4:]], 2),
        (lambda found: [*found[:2], found[2][:-1] + b"!", *found[3:]], 3),
        (lambda found: [*found[:2], found[2][:-1], *found[3:]], 3),
        (lambda found: [*found[:2], b"short", *found[3:]], 2),
        (lambda found: [*found, *events(1, run="another run")], 6),
        (lambda found: events(6, key="another key"), 0),
    ],
)
def test_a_change_shows_at_the_next_event(change, position: int) -> None:  # type: ignore[no-untyped-def]
    assert broken_at(change(events(6))) == position
