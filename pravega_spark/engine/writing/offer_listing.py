"""The offers of other processes: staged chunks that a listing shows, as complete batches.

A listing may be old or lack objects. An offer that it misses is left for the next commit, and one
that cannot be committed any more is refused by the checks of the commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from pravega_spark.engine.chunks.delta_stats import NO_BOUNDS
from pravega_spark.engine.staging_folder import offer_version, version_folder
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append_draft import StagedBatch
from pravega_spark.engine.writing.offer_name import OfferedPart, offer_prefix, parse_offer
from pravega_spark.limits import OFFER_FOLDER_VERSIONS, OFFER_VERSIONS, OLD_OFFER_VERSIONS


class Offer(NamedTuple):
    """A complete batch that some process offers."""

    token: str
    batch: StagedBatch


class OfferListing:
    """The recent offers of one stream, as one process has seen them; used by one thread a time."""

    def __init__(self, stream: StreamLog) -> None:
        """Begin without offers."""
        self._stream = stream
        self._parts: dict[str, OfferedPart | None] = {}
        """The parts by key, as long as a listing shows them; None for those that are done."""

    def read(self, view: StreamView, oldest: int | None = None) -> list[Offer]:
        """Return the complete offers of the last versions, those of one writer in its order.

        ``oldest`` is the version of an offer that nobody took in time, if the caller has one: as a
        rule others were not taken either, so all that are not much older are listed.

        On a local disk the offers that were not seen before are made durable first: their owners
        may be about to do that.
        """
        stream, known = self._stream, self._parts
        keys = self._keys(view, oldest)
        new = [key for key in keys if key not in known]
        below = len(stream.path) + 1
        if new and stream.store.is_local:
            for folder in {key[: key.rindex("/")] for key in new}:
                stream.store.make_durable(folder)
        self._parts = {
            key: known[key] if key in known else _parsed(key[below:], view) for key in keys
        }
        return complete_offers(part for part in self._parts.values() if part is not None)

    def forget(self, tokens: set[str]) -> None:
        """Drop offers that are in the log, or can never be."""
        for key, part in self._parts.items():
            if part is not None and part.token in tokens:
                self._parts[key] = None

    def _keys(self, view: StreamView, oldest: int | None) -> list[str]:
        """List the offers that were made at the newest versions, with one call if it is remote."""
        stream, horizon = self._stream, view.snapshot.horizon
        first = max(0, view.version - OFFER_VERSIONS)
        if oldest is not None:
            first = min(first, max(oldest, view.version - OLD_OFFER_VERSIONS))
        data = f"{stream.path}/data"
        after = f"{version_folder(offer_version(first, horizon))}/{offer_prefix(first)}"
        if not stream.store.is_local:
            entries = stream.store.list(data, after=f"{data}/{after}")
            return [entry.key for entry in entries]
        versions = {*range(first, view.version + 1, OFFER_FOLDER_VERSIONS), view.version}
        keys: list[str] = []
        for version in sorted({offer_version(seen, horizon) for seen in versions}):
            folder = f"{data}/{version_folder(version)}"
            listed = stream.store.list(folder, after=f"{folder}/{offer_prefix(first)}")
            keys += [entry.key for entry in listed]
        return keys


def complete_offers(parts: Iterable[OfferedPart]) -> list[Offer]:
    """Return the batches of which all parts exist and agree, those of one writer in its order."""
    offers: dict[str, list[OfferedPart]] = {}
    for part in parts:
        offers.setdefault(part.token, []).append(part)
    found = [Offer(token, batch) for token, of in offers.items() if (batch := _batch(of))]
    return sorted(found, key=_writers_order)


def _batch(parts: list[OfferedPart]) -> StagedBatch | None:
    parts.sort(key=lambda part: part.part)
    first = parts[0]
    if [part.part for part in parts] != [*range(first.parts)]:
        return None
    shared = {(part.parts, part.life, part.identity, part.staging_version) for part in parts}
    rows = sum(part.chunk.rows for part in parts)
    if len(shared) != 1 or rows != first.identity.last - first.identity.previous:
        return None
    chunks = tuple(part.chunk for part in parts)
    return StagedBatch(first.life, first.staging_version, chunks, first.identity, is_offered=True)


def _writers_order(offer: Offer) -> tuple[str, int, int]:
    identity = offer.batch.identity
    return identity.writer_id, identity.session, identity.previous


def _parsed(path: str, view: StreamView) -> OfferedPart | None:
    """Return an offer by its path; its name has no bounds of columns."""
    part, encryption = parse_offer(path), view.record.configuration.encryption
    if part is None or view.event_format.is_raw or encryption is not None:
        return part
    return replace(part, chunk=replace(part.chunk, columns=NO_BOUNDS))
