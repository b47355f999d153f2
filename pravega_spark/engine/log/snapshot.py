"""What a table is at one version, without its files: protocol, metadata and domains."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import immutables

from pravega_spark.engine.log.actions import KNOWN_FEATURES, STREAM_FEATURE, Commit
from pravega_spark.engine.text_cache import cached_by_text
from pravega_spark.errors import CorruptLog, ForeignTable
from pravega_spark.limits import DECODED_TEXT

LOG_DOMAIN = "pravega.log"
"""Domain of every table of ours: versions of ``horizon``, ``cleanup`` and ``marked``."""
OPEN_PREFIX = "pravega.open."
"""Domains of what is under way; a snapshot has them at hand, however many others there are."""


@cached_by_text(DECODED_TEXT)
def _decode(text: str) -> Any:
    return json.loads(text)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One version of a table, light: immutable, shared between threads."""

    version: int
    timestamp_ms: int
    token: str
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    domains: immutables.Map[str, str]
    open: immutables.Map[str, str]
    """The domains under ``OPEN_PREFIX``, by the rest of their names."""

    @classmethod
    def of(
        cls,
        version: int,
        timestamp_ms: int,
        token: str,
        protocol: Mapping[str, Any],
        metadata: Mapping[str, Any],
        domains: Mapping[str, str],
    ) -> Snapshot:
        """Return the snapshot that a stored state describes."""
        under_way = {
            name.removeprefix(OPEN_PREFIX): value
            for name, value in domains.items()
            if name.startswith(OPEN_PREFIX)
        }
        whole = immutables.Map(domains)
        return cls(
            version, timestamp_ms, token, protocol, metadata, whole, immutables.Map(under_way)
        )

    def apply(self, commit: Commit) -> Snapshot:
        """Return the snapshot after the next commit."""
        assert commit.version == self.version + 1, (commit.version, self.version)
        opened = {
            name.removeprefix(OPEN_PREFIX): value
            for name, value in commit.domains.items()
            if name.startswith(OPEN_PREFIX)
        }
        return Snapshot(
            commit.version,
            commit.timestamp_ms,
            commit.token,
            commit.protocol or self.protocol,
            commit.metadata or self.metadata,
            _changed(self.domains, commit.domains),
            _changed(self.open, opened),
        )

    def get(self, domain: str) -> Any | None:
        """Return the JSON value of a domain, or None. The value is shared: do not change it."""
        text = self.domains.get(domain)
        return None if text is None else _decode(text)

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of the domains that begin with the prefix."""
        return (name for name in self.domains if name.startswith(prefix))

    @property
    def horizon(self) -> int:
        """Nothing staged below this version may be committed any more."""
        return int((self.get(LOG_DOMAIN) or {}).get("horizon", 0))

    @property
    def cleanup(self) -> int:
        """The oldest retained version of the log."""
        return int((self.get(LOG_DOMAIN) or {}).get("cleanup", 0))

    @property
    def marked(self) -> int:
        """The version that set the present clean-up mark."""
        return int((self.get(LOG_DOMAIN) or {}).get("marked", 0))


def _changed(
    before: immutables.Map[str, str], changes: Mapping[str, str | None]
) -> immutables.Map[str, str]:
    if not changes:
        return before
    after = before.mutate()
    for name, value in changes.items():
        if value is not None:
            after[name] = value
        elif name in after:
            del after[name]
    return after.finish()


def first_snapshot(commit: Commit, where: str) -> Snapshot:
    """Return the snapshot that version 0 makes; raise CorruptLog if it makes no table."""
    if commit.version != 0 or commit.protocol is None or commit.metadata is None:
        raise CorruptLog(
            f"{where}: version 0 of the log holds no protocol or metadata.", path=where, version=0
        )
    empty = Snapshot.of(-1, 0, "", commit.protocol, commit.metadata, {})
    return guard(empty.apply(commit), where)


def guard(snapshot: Snapshot, where: str) -> Snapshot:
    """Return the snapshot if this version of the package may touch its table."""
    features = set(snapshot.protocol.get("writerFeatures") or ())
    if STREAM_FEATURE not in features:
        raise ForeignTable(
            f"{where} is a Delta table that pravega_spark did not make; it is left alone. "
            "Name another root, scope or stream.",
            url=where,
        )
    unknown = features - KNOWN_FEATURES
    versions = (snapshot.protocol["minReaderVersion"], snapshot.protocol["minWriterVersion"])
    if unknown or versions != (1, 7):
        raise ForeignTable(
            f"{where} needs table features {sorted(unknown)} at protocol {versions}, which this "
            "version of pravega_spark does not know; upgrade the package to use it.",
            url=where,
        )
    return snapshot
