"""The state of a table at one version, without its files, and how it is declared to Delta."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol, TypeVar

import immutables

from pravega_spark.engine.log.actions import Commit, foreign_table
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.text_cache import cached_by_text
from pravega_spark.errors import CorruptLog, ForeignTable
from pravega_spark.values.limits import DECODED_TEXT_CHARACTERS

STREAM_FEATURE = "pravega-stream"
ROWS_FEATURE = "pravega-rows"
"""Feature of a state table with several files of rows, which older versions cannot read."""
COLUMNS_FEATURE = "pravega-columns"
"""Feature of a stream that is or was typed: older versions would write raw events to it."""
RESTORING_FEATURE = "pravega-restoring"
"""Feature of a table while a restore replaces commits of it: no reader and no writer has it."""
_FEATURES = frozenset({"domainMetadata", "inCommitTimestamp", STREAM_FEATURE})
KNOWN_FEATURES = _FEATURES | {ROWS_FEATURE, COLUMNS_FEATURE}
PROTOCOL: dict[str, Any] = {
    "minReaderVersion": 1,
    "minWriterVersion": 7,
    "writerFeatures": sorted(_FEATURES),
}
COLUMNS_PROTOCOL: dict[str, Any] = {
    **PROTOCOL,
    "writerFeatures": sorted({*_FEATURES, COLUMNS_FEATURE}),
}
"""The protocol of a typed stream."""


def closed_protocol(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol of a table that nobody opens while it is restored."""
    features = sorted({*protocol["writerFeatures"], RESTORING_FEATURE})
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [RESTORING_FEATURE],
        "writerFeatures": features,
    }


_TABLE_PROPERTIES = {
    "delta.enableInCommitTimestamps": "true",
    # Sweeps delete old commits and files by their own rules, so other engines must delete none.
    "delta.logRetentionDuration": "interval 36500 days",
    # Delta Spark does not travel back beyond this age, however old the retained files are.
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.checkpointInterval": "1000000000",
}
# Which columns have bounds in `stats`. Without this, delta-rs takes a bound that is not there for
# null, and a filter on the column then skips every file.
_NO_BOUNDS = {"delta.dataSkippingNumIndexedCols": "0"}
_BOUNDS = "delta.dataSkippingStatsColumns"


def with_bounds(metadata: Mapping[str, Any], bounded: Sequence[str]) -> dict[str, Any]:
    """Return the ``metaData`` action of a table whose statistics have bounds of these columns."""
    configuration = {**metadata["configuration"], _BOUNDS: ",".join(bounded)}
    return {**metadata, "configuration": configuration}


def new_table(
    schema: Mapping[str, Any],
    partitions: Iterable[str],
    table_id: str,
    name: str,
    created_ms: int,
    *,
    bounded: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the ``metaData`` action of a new table with columns {name: Delta type}.

    The statistics of its files have bounds of the columns ``bounded``, and of no other.
    """
    fields = [
        {"name": column, "type": kind, "nullable": True, "metadata": {}}
        for column, kind in schema.items()
    ]
    bounds = {_BOUNDS: ",".join(bounded)} if bounded else _NO_BOUNDS
    return {
        "id": table_id,
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": to_json({"type": "struct", "fields": fields}),
        "partitionColumns": list(partitions),
        "configuration": {**_TABLE_PROPERTIES, **bounds},
        "createdTime": created_ms,
    }


LOG_DOMAIN = "pravega.log"
"""Domain of every table: the horizon, the two marks, and the version that set the second one."""
MANY_PREFIXES = ("pravega.writer.", "pravega.note.", "pravega.transaction.")
"""Prefixes of the domains that may be very many: of writers, their notes, and outcomes."""
OPEN_PREFIX = "pravega.open."
"""Prefix of the domains of open transactions; a snapshot keeps these apart from all others."""

_WEIGHED_DOMAINS = 16
_DOMAIN_BYTES = 256
"""The memory of a domain and its decoded value beside their text, by measurement."""


_Text = TypeVar("_Text", str, str | None)


@cached_by_text(DECODED_TEXT_CHARACTERS)
def _decode(text: str) -> Any:
    return json.loads(text)


class Change(Protocol):
    """What one commit, or several in a row, changed of a table's state, and the last of them."""

    @property
    def version(self) -> int:
        """The last version."""
        ...

    @property
    def timestamp_ms(self) -> int:
        """The time of its commit."""
        ...

    @property
    def token(self) -> str:
        """The token of its commit."""
        ...

    @property
    def domains(self) -> Mapping[str, str | None]:
        """The last value of each changed domain; None if it was removed."""
        ...

    @property
    def protocol(self) -> Mapping[str, Any] | None:
        """The protocol; None if it did not change."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """The metadata; None if they did not change."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of a table, without its files: immutable, shared between threads."""

    version: int
    timestamp_ms: int
    token: str
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    domains: immutables.Map[str, str]
    open: immutables.Map[str, str]
    """The domains with ``OPEN_PREFIX``, by their names without it."""
    others: immutables.Map[str, str]
    """The domains without ``MANY_PREFIXES``, which are few."""
    where: str = field(default="", compare=False)
    """The table's full path or URL, for errors."""

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
        """Return the snapshot of a stored state."""
        opened = {
            name.removeprefix(OPEN_PREFIX): value
            for name, value in domains.items()
            if name.startswith(OPEN_PREFIX)
        }
        return cls(
            version=version,
            timestamp_ms=timestamp_ms,
            token=token,
            protocol=protocol,
            metadata=metadata,
            domains=immutables.Map(domains),
            open=immutables.Map(opened),
            others=immutables.Map(_others(domains)),
        )

    def apply(self, commit: Commit) -> Snapshot:
        """Return the snapshot after the next commit."""
        assert commit.version == self.version + 1, (commit.version, self.version)
        return self.after(commit)

    def after(self, change: Change) -> Snapshot:
        """Return the snapshot after a commit, or after several that follow this version."""
        opened = {
            name.removeprefix(OPEN_PREFIX): value
            for name, value in change.domains.items()
            if name.startswith(OPEN_PREFIX)
        }
        return Snapshot(
            version=change.version,
            timestamp_ms=change.timestamp_ms,
            token=change.token,
            protocol=change.protocol or self.protocol,
            metadata=change.metadata or self.metadata,
            domains=_changed(self.domains, change.domains),
            open=_changed(self.open, opened),
            others=_changed(self.others, _others(change.domains)),
            where=self.where,
        )

    def at(self, where: str) -> Snapshot:
        """Return the snapshot as that of the table at a path or URL."""
        return replace(self, where=where)

    def get(self, domain: str) -> Any | None:
        """Return the JSON value of a domain, or None. It is shared, so do not change it."""
        text = self.domains.get(domain)
        return None if text is None else _decode(text)

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of the domains that begin with the prefix of one kind.

        That costs a look at all domains only for one of ``MANY_PREFIXES``.
        """
        some = self.domains if prefix.startswith(MANY_PREFIXES) else self.others
        return (name for name in some if name.startswith(prefix))

    @property
    def held_bytes(self) -> int:
        """About how much memory the domains take, judged by some of them."""
        some = list(islice(self.domains.items(), _WEIGHED_DOMAINS))
        text = sum(len(name) + len(value) for name, value in some)
        return len(self.domains) * (_DOMAIN_BYTES + text // max(1, len(some)))

    @property
    def horizon(self) -> int:
        """The version below which no staged file can be committed."""
        return int((self.get(LOG_DOMAIN) or {}).get("horizon", 0))

    @property
    def retention_mark(self) -> int:
        """The oldest retained version: files that no version from it on holds may be deleted.

        A root of an older release has one mark for both uses, the commit-deletion mark.
        """
        marks = self.get(LOG_DOMAIN) or {}
        return int(marks.get("retained", marks.get("cleanup", 0)))

    @property
    def commit_deletion_mark(self) -> int:
        """The version below which commits may be deleted, once the mark has stood for an hour.

        At or below the retention mark. All commits from it on are stored.
        """
        return int((self.get(LOG_DOMAIN) or {}).get("cleanup", 0))

    @property
    def commit_deletion_set_version(self) -> int:
        """The version that set the present commit-deletion mark."""
        return int((self.get(LOG_DOMAIN) or {}).get("marked", 0))


def _others(domains: Mapping[str, _Text]) -> dict[str, _Text]:
    return {name: text for name, text in domains.items() if not name.startswith(MANY_PREFIXES)}


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
    """Return the snapshot of version 0; raise CorruptLog if it does not create a table."""
    if commit.version != 0 or commit.protocol is None or commit.metadata is None:
        raise CorruptLog(
            f"{where}: version 0 of the log holds no protocol or metadata. Restore it from a copy.",
            path=where,
            version=0,
        )
    empty = Snapshot.of(
        -1, 0, token="", protocol=commit.protocol, metadata=commit.metadata, domains={}
    ).at(where)
    return check_supported(empty.apply(commit))


def check_supported(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot; raise ForeignTable if this version of the package cannot use it.

    Raises CorruptLog for a table that is being restored.
    """
    where = snapshot.where
    features = set(snapshot.protocol.get("writerFeatures") or ())
    if STREAM_FEATURE not in features:
        raise foreign_table(where)
    if RESTORING_FEATURE in features:
        raise CorruptLog(
            f"{where}: a restore of it has begun and not ended. If it was killed, call it again.",
            path=where,
            version=snapshot.version,
        )
    unknown = features - KNOWN_FEATURES
    versions = (snapshot.protocol["minReaderVersion"], snapshot.protocol["minWriterVersion"])
    if unknown or versions != (1, 7):
        raise ForeignTable(
            f"{where} needs table features {sorted(unknown)} at protocol {versions}, which this "
            "version of pravega_spark does not know. Upgrade the package to use the table.",
            url=where,
        )
    return snapshot
