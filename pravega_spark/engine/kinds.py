"""The kinds of logs: what is true of one kind alone, and why the rest of the engine names none.

A rule of a kind must hold in every process, also in one that never loaded what the kind is for:
whoever compacts the log of a key-value table loads none of its modules, and an expired entry must
not come back. So the rules are data, they are complete here, and nothing registers any. The rest of
the engine asks a kind, and no other file of it says which one.

The kinds are those of docs/FORMAT.md. A log of a kind that this table lacks is refused by a feature
of its protocol (``snapshot.KNOWN_FEATURES``), and never taken for one of another kind. Tables that
no scope lists (settings, maintenance, decisions, history) have no rule that another module asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pravega_spark.values.names import (
    GROUPS_FOLDER,
    TABLES_FOLDER,
    is_group,
    split_log,
    table_of_log,
)

STREAM, TABLE, GROUP = "stream", "kv_table", "group"
"""The names of the kinds, in the rows of a scope."""
TABLE_DOMAIN: Final = "pravega.kv_table"
"""Domain of a key-value table's change log: the configuration of the table."""
FOLD_SUBSCRIBER: Final = "pravega.fold"
"""The plain subscriber of a table's change log that keeps it until it is folded."""
MARK_DOMAIN: Final = "pravega.revision_mark"
"""Domain of the mark that the users of a revisioned stream share: a place in it."""
STATE_DOMAIN: Final = "pravega.shared_state"
"""Domain of the place of a state synchronizer's newest state."""


@dataclass(frozen=True, slots=True)
class LogKind:
    """What is true of the logs of one kind, and of their rows in a scope."""

    name: str
    title: str
    """What messages call what a scope lists."""
    folder: str = ""
    """Its folder in a scope, with a slash; the names of streams are beside such folders."""
    is_stream: bool = True
    """Whether its log is that of a stream: segments, with events in chunks."""
    domain: str | None = None
    """The domain that its log has from the beginning of a life on, and no other stream's has."""
    row_fields: tuple[str, str] | None = None
    """The fields of its row's configuration with that of the log, and with the domain's value.
    Without them the row has the configuration itself."""
    never_goes_back: bool = False
    """Whether no chunk is dated before the commit that it follows: what it holds ends by that."""
    unmerged_with: str = ""
    """The field of the domain's value with which, unless it is null, chunks are never merged: a
    merged chunk has one later date, by which all that it holds would end."""
    keeper: str | None = None
    """The subscriber that never expires, and that publishes a cut as it names it: a truncation
    keeps the records of the segments in it."""
    operations: frozenset[str] = frozenset()
    """Operations of its log alone that are logged at INFO."""
    called: str = "stream"
    """What messages call one log, before its name."""
    stopped: str = (
        "the writer of stream {name} stopped: {cause}. Fix the cause, then open a new writer; "
        "this one accepts no more events."
    )
    """What later calls of a writer say that has failed."""
    put_back: str = (
        "Put {folder} back as it was; or put it back from a copy, and call restore_stream"
    )
    """How to get a log back whose folder is lost."""

    def merges(self, domains: Mapping[str, str]) -> bool:
        """Return whether chunks of a log with these domains may be merged."""
        text = domains.get(self.domain or "") if self.unmerged_with else None
        return text is None or json.loads(text).get(self.unmerged_with) is None


_ALL: Final = (
    LogKind(STREAM, "stream"),
    LogKind(
        TABLE,
        "key-value table",
        f"{TABLES_FOLDER}/",
        domain=TABLE_DOMAIN,
        row_fields=("log", "table"),
        never_goes_back=True,
        unmerged_with="ttl",
        keeper=FOLD_SUBSCRIBER,
        called="table",
        stopped="puts to table {name} failed: {cause}. Fix the cause, then put again.",
        put_back=(
            "Put {folder} back from a copy; if that is older than the last change of the table, "
            "also call restore(), which restores all of the root"
        ),
    ),
    LogKind(
        GROUP,
        "group",
        f"{GROUPS_FOLDER}/",
        is_stream=False,
        operations=frozenset(
            {
                "CREATE READER GROUP",
                "TAKE BACK READER GROUP",
                "RESET READER GROUP",
                "UPDATE READER GROUP",
                "DELETE READER GROUP",
                "JOIN",
                "LEAVE",
                "READER OFFLINE",
                "TAKE OVER",
                "CANCEL CHECKPOINTS",
            }
        ),
    ),
)
KINDS: Final[Mapping[str, LogKind]] = {kind.name: kind for kind in _ALL}
"""All kinds that a scope lists, by name."""
KEEPERS: Final = frozenset(kind.keeper for kind in _ALL if kind.keeper is not None)
_BY_FOLDER: Final = {kind.folder: kind for kind in _ALL}
_BY_DOMAIN: Final = tuple((kind.domain, kind) for kind in _ALL if kind.domain is not None)


def kind_with(domains: Mapping[str, object]) -> LogKind:
    """Return the kind of a stream's log by the domains of a version of it."""
    for domain, kind in _BY_DOMAIN:
        if domain in domains:
            return kind
    return KINDS[STREAM]


def kind_at(path: str) -> LogKind:
    """Return the kind of a log by its path in the scope."""
    return _BY_FOLDER[path[: path.rfind("/") + 1]]


def log_title(name: str) -> str:
    """Return what messages call a log by its internal name: ``stream a/b``, ``table a/b``."""
    return f"{_kind_of(name).called} {table_of_log(name) or name}"


def stopped_text(name: str, cause: str) -> str:
    """Return what later calls of a writer say that has failed, by the internal name of its log."""
    return _kind_of(name).stopped.format(name=table_of_log(name) or name, cause=cause)


def put_back_advice(name: str, folder: str) -> str:
    """Return how to put the folder of a log back, by its internal name."""
    return _kind_of(name).put_back.format(folder=folder)


def _kind_of(name: str) -> LogKind:
    return kind_at(split_log(name)[1])


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """A place in a stream before which retention stops, although no subscriber holds it."""

    domain: str
    """The domain of the place; the commit that appends the event there sets it."""
    or_later: str
    """The domain of a place that counts instead if it is further in the same segment."""


KEPT_PLACE: Final = KeptPlace(STATE_DOMAIN, or_later=MARK_DOMAIN)
"""A state synchronizer reads from its newest state on. Release 0.1.0 does not note that, and moves
the mark there."""


@dataclass(frozen=True, slots=True)
class SubscriberKind:
    """What is true of the subscribers of one kind."""

    rises: bool
    """Whether each of its changes has a newer generation, so that only such a one removes it."""
    starts_at_head: bool
    """Whether one begins at the head if that has passed its start; others are refused."""
    go_back: str
    """How one that wants to be further back gets there."""
    go_on: str
    """How one that publishes with an older generation goes on."""


_PLAIN: Final = SubscriberKind(
    rises=False,
    starts_at_head=False,
    go_back="Unsubscribe and subscribe",
    go_on="Subscribe again",
)
_OF_GROUP: Final = SubscriberKind(
    rises=True,
    starts_at_head=True,
    go_back="Reset the group",
    go_on="Open the group again",
)


def subscriber_kind(name: str) -> SubscriberKind:
    """Return the kind of a subscriber: a reader group's, ``scope/group``, or a plain one."""
    return _OF_GROUP if is_group(name) else _PLAIN
