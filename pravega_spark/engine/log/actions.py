"""The actions of a Delta commit, encoded and decoded.

A commit file holds its small actions first and its file actions last. A reader that needs only the
state stops at the first file action. The first line is ``commitInfo``. Its last field is a digest
of all other bytes of the file, by which a torn or changed commit is detected.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import xxhash

from pravega_spark.engine.attached_objects import stored_bytes_of
from pravega_spark.engine.runtime.json_codec import (
    DECODE_ERRORS,
    decode_error_text,
    decoded_lines,
    quoted,
    to_json,
    typed,
)
from pravega_spark.engine.runtime.principal import principal
from pravega_spark.errors import CorruptLog, ForeignTable
from pravega_spark.values.limits import CLOCK_SKEW_MS
from pravega_spark.values.package import __version__

ENGINE = f"pravega_spark/{__version__}"
RESTORE = "RESTORE"
"""Operation of the commits with which a restore replaces the commits that it drops."""
REQUEST = "REQUEST"
"""Operation of a commit without state, after which others leave the next version to its author."""


@dataclass(frozen=True, slots=True)
class Add:
    """A live data file; its path is relative to the table."""

    path: str
    partition: Mapping[str, str]
    size: int
    modified_ms: int
    stats: str | None = None
    tags: Mapping[str, str] | None = None
    data_change: bool = True

    @property
    def stored_bytes(self) -> int:
        """The size of the file and of the object that is attached to it."""
        return stored_bytes_of(self.path, self.size)

    def to_action(self) -> dict[str, Any]:
        """Return the Delta ``add`` action."""
        for name, value in self.partition.items():
            assert value != "", f"partition value {name} is empty, which Delta reads as null"
        add: dict[str, Any] = {
            "path": self.path,
            "partitionValues": dict(self.partition),
            "size": self.size,
            "modificationTime": self.modified_ms,
            "dataChange": self.data_change,
        }
        if self.stats is not None:
            add["stats"] = self.stats
        if self.tags:
            add["tags"] = dict(self.tags)
        return {"add": add}

    @classmethod
    def from_action(cls, add: Mapping[str, Any]) -> Add:
        """Decode a Delta ``add`` action."""
        return cls(
            path=typed(add["path"], str),
            partition=typed(add["partitionValues"], dict),
            size=typed(add["size"], int),
            modified_ms=add["modificationTime"],
            stats=add.get("stats"),
            tags=add.get("tags"),
            data_change=add["dataChange"],
        )


@dataclass(frozen=True, slots=True)
class Remove:
    """A data file that is no longer live from this version on."""

    path: str
    deleted_ms: int
    partition: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    data_change: bool = True

    def to_action(self) -> dict[str, Any]:
        """Return the Delta ``remove`` action, with the fields that change readers need."""
        remove = {
            "path": self.path,
            "deletionTimestamp": self.deleted_ms,
            "dataChange": self.data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(self.partition),
            "size": self.size,
        }
        return {"remove": remove}

    @classmethod
    def of(cls, add: Add, deleted_ms: int, *, data_change: bool = True) -> Remove:
        """Return the removal of an added file."""
        return cls(add.path, deleted_ms, add.partition, add.size, data_change)


_Action_co = TypeVar("_Action_co", covariant=True)


class ActionLines(Sequence[_Action_co]):
    """Many file actions that are kept as what their lines need.

    A commit of very many files costs a line for each, and an object only if a caller asks for it.
    """

    @abstractmethod
    def lines(self) -> Iterable[str]:
        """Return for each action the JSON text of its ``to_action``, in order."""

    @property
    @abstractmethod
    def paths(self) -> Sequence[str]:
        """The path of each action's file, in order."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """The size of all files, with the objects attached to them."""


def _lines(actions: Sequence[Add] | Sequence[Remove]) -> Iterable[str]:
    if isinstance(actions, ActionLines):
        return actions.lines()
    return [to_json(action.to_action()) for action in actions]


def _paths(actions: Sequence[Add] | Sequence[Remove]) -> Sequence[str]:
    if isinstance(actions, ActionLines):
        return actions.paths
    return tuple(action.path for action in actions)


@dataclass(slots=True)
class Body:
    """The contents of a commit; version, token and time are set when it is sent."""

    operation: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    domains: Mapping[str, str | None] = field(default_factory=dict)
    adds: Sequence[Add] = ()
    removes: Sequence[Remove] = ()
    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None

    @property
    def added_paths(self) -> Sequence[str]:
        """The paths of the added files."""
        return _paths(self.adds)

    @property
    def removed_bytes(self) -> int:
        """The size of the removed files, with the objects attached to them."""
        removes = self.removes
        if isinstance(removes, ActionLines):
            return removes.size_bytes
        return sum(stored_bytes_of(remove.path, remove.size) for remove in removes)

    def encode(self, token: str, timestamp_ms: int, clock_ms: int | None = None) -> bytes:
        """Return the bytes of the commit file.

        ``timestamp_ms`` must be later than that of every earlier commit, as Delta requires. If
        that is far ahead of ``clock_ms``, the committer's own time, the commit records both.
        """
        info: dict[str, Any] = {
            "inCommitTimestamp": timestamp_ms,
            "timestamp": timestamp_ms,
            "operation": self.operation,
            # Delta's history shows both as maps of text to text.
            "operationParameters": {k: to_json(v) for k, v in self.parameters.items()},
            "operationMetrics": {k: str(v) for k, v in self.metrics.items()},
            "isBlindAppend": False,
            "engineInfo": ENGINE,
            "txnId": token,
            **_own_clock(timestamp_ms, clock_ms),
            **_user_name(),
        }
        lines: list[str] = []
        if self.protocol is not None:
            lines.append(to_json({"protocol": dict(self.protocol)}))
        if self.metadata is not None:
            lines.append(to_json({"metaData": dict(self.metadata)}))
        for name, value in self.domains.items():
            removed = "true" if value is None else "false"
            lines.append(
                f'{{"domainMetadata":{{"domain":{quoted(name)},"configuration":'
                f'{quoted(value or "")},"removed":{removed}}}}}'
            )
        lines += _lines(self.adds)
        lines += _lines(self.removes)
        lines.append("")
        rest = "\n".join(lines).encode()
        head = to_json({"commitInfo": info}).removesuffix("}}").encode()
        return b'%b,"digest":"%b"}}\n%b' % (head, _digest(head, rest), rest)

    def committed(
        self, version: int, token: str, timestamp_ms: int, clock_ms: int | None = None
    ) -> Commit:
        """Return the commit as it would be read back."""
        return Commit(
            version=version,
            token=token,
            timestamp_ms=timestamp_ms,
            operation=self.operation,
            info=_own_clock(timestamp_ms, clock_ms),
            domains=self.domains,
            protocol=self.protocol,
            metadata=self.metadata,
            adds=self.adds if isinstance(self.adds, ActionLines) else tuple(self.adds),
            removes=_paths(self.removes),
            removed_bytes=self.removed_bytes,
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit as read from the log; ``adds`` and ``removes`` are empty in the light form."""

    version: int
    token: str
    timestamp_ms: int
    operation: str
    info: Mapping[str, Any]
    domains: Mapping[str, str | None]
    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    adds: Sequence[Add] = ()
    removes: Sequence[str] = ()
    removed_bytes: int = 0
    """The size of the removed files, with the objects attached to them."""

    @property
    def clock_ms(self) -> int:
        """The committer's own time; it may be earlier than that of an earlier commit."""
        return int(self.info.get("clock", self.timestamp_ms))

    @property
    def restored_to(self) -> int | None:
        """The version that a restore returned to, if this commit is part of a restore."""
        if self.operation != RESTORE:
            return None
        return int(self.info["operationParameters"]["to"])


def request_body(seconds: float) -> Body:
    """Return the body of a request; ``seconds`` is how long others are asked to wait, 0: as usual.

    Earlier versions do not read the parameter, and wait as usual.
    """
    return Body(REQUEST, {"seconds": round(seconds, 3)} if seconds else {})


def request_seconds(commit: Commit) -> float:
    """Return how long a request asks others to wait; 0 if it does not say."""
    parameters = commit.info.get("operationParameters", {})
    return float(json.loads(parameters.get("seconds", "0")))


def _own_clock(timestamp_ms: int, clock_ms: int | None) -> dict[str, int]:
    far = clock_ms is not None and timestamp_ms - clock_ms > CLOCK_SKEW_MS
    return {"clock": clock_ms} if far and clock_ms is not None else {}


def _user_name() -> dict[str, str]:
    name = principal()
    return {} if name is None else {"userName": name}


def _digest(head: bytes, rest: bytes) -> bytes:
    hasher = xxhash.xxh3_64(head)
    hasher.update(rest)
    return hasher.hexdigest().encode()


def parse_commit(version: int, data: bytes, where: str, *, light: bool = False) -> Commit:
    """Decode a commit file of this package; the light form omits the file actions.

    Raises CorruptLog if the commit is torn, damaged or of another writer, and ForeignTable if
    another writer's commit is version 0.
    """
    first, _, rest = data.partition(b"\n")
    try:
        info = _info(version, first, where)
        head, separator, digest = first.rpartition(b',"digest":"')
        if not separator or digest != _digest(head, rest) + b'"}}':
            raise ValueError("its digest does not match")
        return _parse(version, info, rest, light)
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{where}: version {version} of the log is torn or damaged "
            f"({decode_error_text(error)}). Restore it from a copy.",
            path=where,
            version=version,
        ) from error


def _info(version: int, line: bytes, where: str) -> Mapping[str, Any]:
    """Return the commitInfo; refuse a well-formed commit of another writer."""
    action = json.loads(line.decode())
    info = action.get("commitInfo")
    engine = str((info or {}).get("engineInfo"))
    if engine.startswith("pravega_spark/"):
        return dict(info)
    if version == 0:
        raise foreign_table(where)
    raise CorruptLog(
        f"{where}: version {version} was written by {engine!r}, not by pravega_spark. Other "
        "writers must not change its tables. Restore the log from a copy.",
        path=where,
        version=version,
    )


def foreign_table(where: str) -> ForeignTable:
    """Return the error for a Delta table of another writer."""
    return ForeignTable(
        f"{where} is a Delta table that pravega_spark did not make, so nothing was changed. "
        "Name another root, scope or stream.",
        url=where,
    )


def _parse(version: int, info: Mapping[str, Any], rest: bytes, light: bool) -> Commit:
    domains: dict[str, str | None] = {}
    protocol = metadata = None
    adds: list[Add] = []
    removes: list[str] = []
    removed_bytes = 0
    lines = rest.splitlines()
    if light:
        files = (at for at, line in enumerate(lines) if line.startswith((b'{"add"', b'{"remove"')))
        lines = lines[: next(files, None)]
    for action in decoded_lines(lines):
        ((kind, value),) = action.items()
        if kind == "add":
            adds.append(Add.from_action(value))
        elif kind == "remove":
            path = typed(value["path"], str)
            removes.append(path)
            removed_bytes += stored_bytes_of(path, typed(value.get("size", 0), int))
        elif kind == "domainMetadata":
            text = None if value["removed"] else typed(value["configuration"], str)
            domains[typed(value["domain"], str)] = text
        elif kind == "protocol":
            protocol = typed(value, dict)
        elif kind == "metaData":
            metadata = typed(value, dict)
    return Commit(
        version=version,
        token=typed(info["txnId"], str),
        timestamp_ms=typed(info["inCommitTimestamp"], int),
        operation=info["operation"],
        info=info,
        domains=domains,
        protocol=protocol,
        metadata=metadata,
        adds=tuple(adds),
        removes=tuple(removes),
        removed_bytes=removed_bytes,
    )
