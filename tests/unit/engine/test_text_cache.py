"""The cache that is bounded by the length of its texts."""

from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.engine.layout import epoch_changes
from pravega_spark.engine.log import snapshot
from pravega_spark.engine.runtime import text_cache
from pravega_spark.engine.runtime.text_cache import cached_by_text
from pravega_spark.engine.stream import records
from pravega_spark.values.limits import DECODED_TEXT_CHARACTERS


def counted(limit: int) -> tuple[Any, list[str]]:
    computed: list[str] = []

    @cached_by_text(limit)
    def length(number: int, text: str) -> int | None:
        computed.append(text)
        return len(text) or None

    return length, computed


def test_value_is_computed_once_even_if_it_is_none() -> None:
    length, computed = counted(3_000)
    for _ in range(3):
        assert (length(0, "abc"), length(0, ""), length(1, "abc")) == (3, None, 3)
    assert computed == ["abc", "", "abc"]


def test_cache_is_bounded_by_the_length_of_the_texts() -> None:
    few, many = (counted(1_000)[0] for _ in range(2))
    for n in range(300):
        few(n, "x" * 10)
        many(n, "x" * 100)
        assert few.cache.size <= 1_000
        assert many.cache.size <= 1_000


def test_frequently_used_value_stays() -> None:
    length, computed = counted(2_000)
    for n in range(200):
        length(0, "often")
        length(n, "x" * 10)
    assert computed.count("often") == 1


def test_text_beyond_half_of_the_limit_is_not_cached_and_evicts_nothing() -> None:
    length, computed = counted(1_000)
    length(0, "abc")
    for _ in range(2):
        assert length(0, "x" * 401) == 401
    length(0, "abc")
    assert [len(text) for text in computed] == [3, 401, 401]


def test_short_texts_are_few_as_well() -> None:
    length, _ = counted(100_000)
    for n in range(2_000):
        length(n, "x")
    assert len(length.cache._young) + len(length.cache._old) < 400


@pytest.mark.medium
def test_decoded_epochs_are_bounded_by_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of epochs of thousands of segments would take a gigabyte and more."""
    cache = records.decode_epoch.cache  # type: ignore[attr-defined]
    monkeypatch.setattr(cache, "_half", 100_000)
    for number in range(60):
        text = records.encode_epoch(epoch_changes.first_epoch(200, 0, number, number))
        assert records.decode_epoch(number, text).number == number
    assert len(text) * 60 > 300_000
    assert sum(size for _, size in cache._young.values()) <= 100_000


def test_every_record_of_unbounded_length_is_cached_by_its_text() -> None:
    several: tuple[Any, ...] = (
        records.decode_epoch,
        records.decode_sample,
        records.decode_stream,
        records.decode_subscriber,
        snapshot._decode,
    )
    for function in several:
        assert function.cache._half == DECODED_TEXT_CHARACTERS // 2


def test_value_that_is_no_longer_used_is_dropped_and_used_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that lives for long decodes records without end, and needs the newest ones."""
    monkeypatch.setattr(text_cache, "_LOOKUPS", 100)
    length, computed = counted(1_000_000)
    for n in range(1_000):
        length(n // 10, "seldom")
        length(0, "often")
        assert len(length.cache._young) + len(length.cache._old) <= 22
    assert computed.count("often") == 1
