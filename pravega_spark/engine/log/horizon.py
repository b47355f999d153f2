"""Commit a table's staging horizon and its two marks; none of them ever moves back.

Below the horizon no staged file can be committed. The retention mark, at or below the horizon, is
the oldest retained version: it decides about files, and moves at each sweep. The commit-deletion
mark, at or below the retention mark, decides about commits. It stands for an hour before commits
below it are deleted, so it takes the retention mark's value only after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Log, Proposal
from pravega_spark.engine.log.snapshot import LOG_DOMAIN, Snapshot
from pravega_spark.engine.log.version_pins import is_pinned


def raise_horizon(
    log: Log,
    horizon: int,
    retention_mark: int = 0,
    *,
    aged_since: int | None = None,
    drop: Callable[[Snapshot], Iterable[str]] = lambda snapshot: (),
    set_on_drop: Mapping[str, str] = MappingProxyType({}),
) -> Snapshot:
    """Commit a horizon and a retention mark, unless they are as high already; return the snapshot.

    ``aged_since`` is the version that set the commit-deletion mark, if that mark has aged and its
    commits are deleted. Then the commit-deletion mark takes the retention mark's value, unless
    another sweep moved it in the meantime. No mark moves while a version is pinned. The same commit
    removes the domains that ``drop`` names, and sets ``set_on_drop`` if there are any.
    """

    def decide(snapshot: Snapshot | None) -> Proposal[None]:
        assert snapshot is not None
        before = snapshot.horizon, snapshot.retention_mark, snapshot.commit_deletion_mark
        new_horizon = max(snapshot.horizon, min(horizon, snapshot.version))
        _, retained, commits = before
        if not is_pinned(snapshot):
            retained = max(retained, min(retention_mark, new_horizon))
            if aged_since == snapshot.commit_deletion_set_version:
                commits = max(commits, retained)
        dropped: dict[str, str | None] = dict.fromkeys(drop(snapshot))
        if (new_horizon, retained, commits) == before and not dropped:
            return None, None
        moves = commits > snapshot.commit_deletion_mark
        set_version = snapshot.version + 1 if moves else snapshot.commit_deletion_set_version
        value = encode_log_domain(new_horizon, retained, commits, set_version)
        body = Body(
            "SWEEP",
            parameters={"horizon": new_horizon, "retained": retained, "cleanup": commits},
            metrics={"numDomainsRemoved": len(dropped)},
            domains={LOG_DOMAIN: value, **dropped, **(set_on_drop if dropped else {})},
        )
        return body, None

    return log.commit(decide).snapshot


def encode_log_domain(
    horizon: int, retention_mark: int, commit_deletion_mark: int, set_version: int
) -> str:
    """Return the log's own domain; ``set_version`` set the commit-deletion mark."""
    return to_json(
        {
            "horizon": horizon,
            "retained": retention_mark,
            "cleanup": commit_deletion_mark,
            "marked": set_version,
        }
    )
