"""The state of a table at one version, and tables that cannot be used."""

from __future__ import annotations

import pytest

from pravega_spark.engine.log.actions import Body, Commit
from pravega_spark.engine.log.snapshot import Snapshot, check_supported, first_snapshot
from pravega_spark.engine.log.table_definition import PROTOCOL, new_table
from pravega_spark.errors import CorruptLog, ForeignTable


def first(protocol: dict[str, object] | None = PROTOCOL, version: int = 0) -> Commit:
    metadata = new_table({"a": "long"}, [], "id", "s/t", 1)
    body = Body("CREATE", domains={"a": "1"}, protocol=protocol, metadata=metadata)
    return body.committed(version, "t0", 5)


def after(snapshot: Snapshot, **domains: str | None) -> Snapshot:
    version = snapshot.version + 1
    return snapshot.apply(Body("X", domains=domains).committed(version, f"t{version}", 6))


def test_domains_are_set_replaced_and_removed_and_older_snapshots_do_not_change() -> None:
    zero = first_snapshot(first(), "t")
    one = after(zero, a="2", b="3")
    two = after(one, a=None, unknown=None)

    assert dict(zero.domains) == {"a": "1"}
    assert dict(one.domains) == {"a": "2", "b": "3"}
    assert dict(two.domains) == {"b": "3"}
    assert (two.version, two.token, two.timestamp_ms, two.get("b")) == (2, "t2", 6, 3)
    assert list(one.names("a")) == ["a"]
    assert two.get("a") is None


def test_commits_apply_in_order_only() -> None:
    zero = first_snapshot(first(), "t")
    with pytest.raises(AssertionError):
        zero.apply(Body("X").committed(2, "t2", 6))


def test_horizon_and_marks_are_0_until_they_are_set() -> None:
    zero = first_snapshot(first(), "t")
    assert (zero.horizon, zero.retention_mark, zero.commit_deletion_mark) == (0, 0, 0)
    log = '{"horizon":5,"retained":4,"cleanup":3,"marked":7}'
    one = zero.apply(Body("X", domains={"pravega.log": log}).committed(1, "t1", 6))
    assert (one.horizon, one.retention_mark, one.commit_deletion_mark) == (5, 4, 3)
    assert one.commit_deletion_set_version == 7


def test_single_mark_of_an_older_root_is_read_as_both() -> None:
    log = '{"horizon":5,"cleanup":3,"marked":7}'
    change = Body("X", domains={"pravega.log": log}).committed(1, "t1", 6)
    one = first_snapshot(first(), "t").apply(change)
    assert (one.retention_mark, one.commit_deletion_mark) == (3, 3)


def test_version_0_without_protocol_is_corrupt() -> None:
    with pytest.raises(CorruptLog, match="version 0 of the log holds no protocol"):
        first_snapshot(first(None), "t")


def test_table_without_our_feature_is_a_foreign_table() -> None:
    with pytest.raises(ForeignTable, match="did not make"):
        first_snapshot(first({"minReaderVersion": 1, "minWriterVersion": 2}), "t")


def test_table_of_a_newer_version_names_the_unknown_feature() -> None:
    snapshot = first_snapshot(first(), "t")
    newer = {**PROTOCOL, "writerFeatures": ["pravega-stream", "deletionVectors"]}
    changed = snapshot.apply(Body("X", protocol=newer).committed(1, "t1", 6))
    with pytest.raises(ForeignTable, match=r"\['deletionVectors'\].*Upgrade the package"):
        check_supported(changed)
