"""The files that a range of commits added and removed, as a sweep needs them: paths alone.

A sweep reads each commit once and keeps what it found: the paths that were added, by folder, and
those that were removed, by version. What it read since the last segment is part of its record;
older ranges are segments, ``_pravega/changes/<first>-<last>.json``, written once each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from pravega_spark.engine.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.staging_folder import staged_version

FORMAT = 1


@dataclass(slots=True)
class FileChanges:
    """The files that the commits of (since, version] added and removed."""

    since: int
    version: int
    added: dict[str, list[str]] = field(default_factory=dict)
    """Names of added files, by folder."""
    removed: dict[int, tuple[int, list[str]]] = field(default_factory=dict)
    """Bytes and paths of removed files, by the version that removed them."""
    paths: int = 0
    """The number of paths in both."""

    def apply(self, commit: Commit) -> None:
        """Add the file actions of the next commit."""
        assert commit.version == self.version + 1, (commit.version, self.version)
        self.version = commit.version
        for add in commit.adds:
            folder, _, name = add.path.rpartition("/")
            self.added.setdefault(folder, []).append(name)
        if commit.removes:
            self.removed[commit.version] = commit.removed_bytes, list(commit.removes)
        self.paths += len(commit.adds) + len(commit.removes)

    @property
    def staged_from(self) -> int:
        """The oldest version at which one of the added files was staged."""
        staged = (staged_version(f"{folder}/") for folder in self.added)
        return min((v for v in staged if v is not None), default=self.version)

    def added_paths(self) -> Iterator[str]:
        """Yield the paths of the added files."""
        for folder, names in self.added.items():
            for name in names:
                yield f"{folder}/{name}" if folder else name

    def removed_in(self, after: int, last: int) -> tuple[int, list[str]]:
        """Return the bytes and paths of the files that the versions of (after, last] removed."""
        found = [entry for version, entry in self.removed.items() if after < version <= last]
        return sum(size for size, _ in found), [path for _, paths in found for path in paths]

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a segment or a record."""
        removed = {str(version): [size, paths] for version, (size, paths) in self.removed.items()}
        return {
            "since": self.since,
            "version": self.version,
            "added": self.added,
            "removed": removed,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> FileChanges:
        """Read the fields; raises one of DECODE_ERRORS if they are not those of ``to_json``."""
        removed = {int(v): (int(cell[0]), list(cell[1])) for v, cell in record["removed"].items()}
        added = {folder: list(names) for folder, names in record["added"].items()}
        paths = sum(map(len, added.values())) + sum(len(found) for _, found in removed.values())
        return cls(int(record["since"]), int(record["version"]), added, removed, paths)


@dataclass(frozen=True, slots=True)
class ChangesSegment:
    """What a record holds of a segment: its range, what it removed, and its digest."""

    since: int
    version: int
    staged_from: int
    files: int
    size_bytes: int
    first_removal: int
    """The oldest version in the range that removed files; 0 if none did."""
    last_removal: int
    digest: str

    @classmethod
    def of(cls, changes: FileChanges, data: bytes) -> ChangesSegment:
        """Return the segment of the changes; ``data`` are the bytes of its object."""
        size_bytes, paths = changes.removed_in(changes.since, changes.version)
        first, last = min(changes.removed, default=0), max(changes.removed, default=0)
        digest = xxhash.xxh3_128_hexdigest(data)
        span = changes.since, changes.version, changes.staged_from
        return cls(*span, len(paths), size_bytes, first, last, digest)


def segment_folder(path: str) -> str:
    """Return the folder of the segments of the table at ``path``."""
    return f"{path}/_pravega/changes"


def segment_key(path: str, since: int, version: int) -> str:
    """Return the key of the segment of the commits in (since, version]."""
    return f"{segment_folder(path)}/{since + 1:020d}-{version:020d}.json"


def encode_segment(changes: FileChanges) -> bytes:
    """Return the bytes of a segment's object."""
    return to_json({"format": FORMAT, **changes.to_json()}).encode() + b"\n"


def decode_segment(data: bytes, segment: ChangesSegment) -> FileChanges | None:
    """Read the object of a segment; None if it is not the one that the record names."""
    if xxhash.xxh3_128_hexdigest(data) != segment.digest:
        return None
    try:
        return FileChanges.from_json(json.loads(data))
    except DECODE_ERRORS:
        return None
