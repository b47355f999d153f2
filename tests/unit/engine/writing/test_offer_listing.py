from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from pravega_spark import StreamConfiguration, StreamSchema
from pravega_spark.engine.chunk_paths import offer_version, version_folder
from pravega_spark.engine.chunks.chunk import NO_BOUNDS
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.stream.lifecycle import create
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import StagedBatch
from pravega_spark.engine.writing.group_commit import OfferListing, complete_offers
from pravega_spark.engine.writing.identity import SessionBatch
from pravega_spark.engine.writing.stage import OfferedPart, parse_offer
from pravega_spark.values.limits import OFFER_FOLDER_VERSIONS, OFFER_VERSIONS
from tests.harness.offering import offer
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.spy_store import Spy

KEYED: list[tuple[str | None, bytes]] = [(f"k{n}", b"x") for n in range(9)]


def parts_of(batch: StagedBatch) -> list[OfferedPart]:
    parts = [parse_offer(chunk.path) for chunk in batch.chunks]
    assert None not in parts
    return [part for part in parts if part is not None]


def listed(stream: StreamLog) -> list[StagedBatch]:
    return [found.batch for found in OfferListing(stream).read(stream.view())]


def test_listing_returns_the_batch_that_its_owner_staged() -> None:
    stream = make_stream(segments=3)
    batch = offer(stream, KEYED)
    assert len(batch.chunks) == 3
    assert listed(reopen(stream)) == [batch]


def test_an_offer_of_typed_events_claims_no_bounds_since_its_name_has_none() -> None:
    stream = make_stream(segments=3)
    (chunk, *_) = offer(stream, KEYED[:1]).chunks
    assert chunk.columns is None
    schema = StreamSchema.of(pa.schema([("n", pa.int8())]))
    typed = StreamLog(stream.store, "s/typed", stream.runtime)
    create(typed, 1, StreamConfiguration(schema=schema))
    stream.store.put(f"{typed.path}/{chunk.path}", stream.store.get(f"{stream.path}/{chunk.path}"))
    ((found,),) = [batch.chunks for batch in listed(typed)]
    assert found == replace(chunk, columns=NO_BOUNDS)
    assert "minValues" not in found.stats()


def test_offer_that_lacks_a_part_is_left() -> None:
    stream = make_stream(segments=3)
    batch = offer(stream, KEYED)
    for chunk in batch.chunks:
        path = f"{stream.path}/{chunk.path}"
        data = stream.store.get(path)
        stream.store.delete([path])
        assert listed(stream) == []
        stream.store.put(path, data)
    assert listed(stream) == [batch]


def test_parts_that_disagree_are_no_offer() -> None:
    stream = make_stream(segments=2)
    first, second = parts_of(offer(stream, KEYED))
    assert len(complete_offers([second, first])) == 1
    for wrong in (
        replace(second, life=2),
        replace(second, parts=3),
        replace(second, part=0),
        replace(second, token="1" * 24),
        replace(second, identity=replace(second.identity, session=9)),
        replace(second, chunk=replace(second.chunk, rows=second.chunk.rows + 1)),
    ):
        assert complete_offers([first, wrong]) == []


def test_offers_of_a_writer_are_returned_in_its_order() -> None:
    stream = make_stream()
    numbers = [3, 1, 2, 0]
    for n in numbers:
        offer(stream, [("k", b"x")], SessionBatch("w", 1, n, n + 1))
    assert [batch.identity.previous for batch in listed(stream)] == sorted(numbers)


def test_listing_finds_offers_of_recent_versions_only_in_whatever_folder() -> None:
    stream = make_stream()
    for version in range(2 * OFFER_FOLDER_VERSIONS + 2):
        batch = offer(stream, [("k", b"%d" % version)])
        seen = [found.identity for found in listed(stream)]
        assert batch.identity in seen
        assert len(seen) == min(version, OFFER_VERSIONS) + 1
        write(stream, [("k", b"x")])


def test_offers_are_found_in_the_folder_of_the_horizon() -> None:
    stream = make_stream()
    for _ in range(4):
        write(stream, [("k", b"x")])
    raise_horizon(stream.log, 3)
    batch = offer(stream, [("k", b"y")])
    assert batch.staging_version == offer_version(5, 3) == 3
    assert batch.chunks[0].path.startswith(f"data/{version_folder(3)}/")
    assert listed(reopen(stream)) == [batch]


def test_offers_are_made_durable_once_before_they_are_returned() -> None:
    store = Spy()
    stream = make_stream(store)
    batch = offer(stream, [("k", b"y")])
    listing = OfferListing(stream)
    store.calls.clear()
    listing.read(stream.view())
    folder = f"{stream.path}/{batch.chunks[0].path.rpartition('/')[0]}"
    assert ("make_durable", folder) in store.calls
    store.calls.clear()
    assert len(listing.read(stream.view())) == 1
    assert store.count("make_durable", "/data/") == 0


def test_forgotten_offers_are_not_returned_again() -> None:
    stream = make_stream()
    offer(stream, [("k", b"y")])
    listing = OfferListing(stream)
    (found,) = listing.read(stream.view())
    listing.forget({found.token})
    assert listing.read(stream.view()) == []
    assert len(listing._parts) == 1
