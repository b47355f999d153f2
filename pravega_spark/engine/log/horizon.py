"""Commit a table's staging horizon and its cleanup mark; neither ever moves back.

Below the horizon no staged file can be committed. The cleanup mark, at or below the horizon, is the
oldest retained version of the log.
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
    cleanup: int = 0,
    *,
    drop: Callable[[Snapshot], Iterable[str]] = lambda snapshot: (),
    set_on_drop: Mapping[str, str] = MappingProxyType({}),
) -> Snapshot:
    """Commit a horizon and a cleanup mark, unless they are as high already; return the snapshot.

    The cleanup mark does not move while a version is pinned. The same commit removes the domains
    that ``drop`` names, and sets ``set_on_drop`` if there are any.
    """

    def decide(snapshot: Snapshot | None) -> Proposal[None]:
        assert snapshot is not None
        new_horizon = max(snapshot.horizon, min(horizon, snapshot.version))
        new_cleanup = snapshot.cleanup
        if not is_pinned(snapshot):
            new_cleanup = max(new_cleanup, min(cleanup, new_horizon))
        dropped: dict[str, str | None] = dict.fromkeys(drop(snapshot))
        is_same = (new_horizon, new_cleanup) == (snapshot.horizon, snapshot.cleanup)
        if is_same and not dropped:
            return None, None
        moves = new_cleanup > snapshot.cleanup
        set_version = snapshot.version + 1 if moves else snapshot.cleanup_set_version
        value = encode_log_domain(new_horizon, new_cleanup, set_version)
        body = Body(
            "SWEEP",
            parameters={"horizon": new_horizon, "cleanup": new_cleanup},
            metrics={"numDomainsRemoved": len(dropped)},
            domains={LOG_DOMAIN: value, **dropped, **(set_on_drop if dropped else {})},
        )
        return body, None

    return log.commit(decide).snapshot


def encode_log_domain(horizon: int, cleanup: int, cleanup_set_version: int) -> str:
    """Return the log's own domain: horizon, cleanup mark, and the version that set the mark."""
    return to_json({"horizon": horizon, "cleanup": cleanup, "marked": cleanup_set_version})
