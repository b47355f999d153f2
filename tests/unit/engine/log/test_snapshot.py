"""The state of a table at one version, and tables that cannot be used."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.log.actions import Body, Commit
from pravega_spark.engine.log.snapshot import (
    PROTOCOL,
    Snapshot,
    check_supported,
    first_snapshot,
    new_table,
)
from pravega_spark.errors import CorruptLog, ForeignTable
from pravega_spark.manager import root_of
from tests.harness.small_tables import add_ids


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


KINDS = ("pravega.writer.", "pravega.note.", "pravega.transaction.", "pravega.segment.", "other.")


def test_names_of_a_kind_are_those_of_all_domains_whatever_was_set_and_removed() -> None:
    dice, snapshot = random.Random(7), first_snapshot(first(), "t")
    for _ in range(60):
        changes = {
            f"{dice.choice(KINDS)}{dice.randrange(12)}": dice.choice(["1", None]) for _ in range(5)
        }
        snapshot = after(snapshot, **changes)
    stored = Snapshot.of(
        *(snapshot.version, snapshot.timestamp_ms, snapshot.token),
        *(snapshot.protocol, snapshot.metadata, dict(snapshot.domains)),
    )
    assert stored.at("t") == snapshot
    for kind in KINDS:
        expected = {name for name in snapshot.domains if name.startswith(kind)}
        assert expected
        assert set(snapshot.names(kind)) == expected


class NotWalked(Mapping[str, str]):
    """Domains that can be looked up by their names, and not walked through to the end."""

    def __init__(self, domains: Mapping[str, str]) -> None:
        self.domains = domains

    def __getitem__(self, name: str) -> str:
        return self.domains[name]

    def __iter__(self) -> Iterator[str]:
        yield from islice(self.domains, len(self) // 2)
        raise AssertionError("all domains are looked at")

    def __len__(self) -> int:
        return len(self.domains)


@pytest.mark.medium
@pytest.mark.parametrize(
    "look",
    [
        lambda manager: manager.stream_info("s/t"),
        lambda manager: manager.retention("s/t").explain(),
        lambda manager: manager.list_subscribers("s/t"),
        lambda manager: manager.event_time("s/t").watermark(),
        lambda manager: manager.segments("s/t"),
        lambda manager: list(manager.read("s/t")),
    ],
)
def test_what_reads_a_stream_looks_at_no_id_of_a_writer(
    look: Callable[[StreamManager], object], tmp_path: Path
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t", writer_id="w") as writer:
        writer.write_event(b"x", routing_key="k").result()
    log = root_of(manager).stream("s/t").log
    known = add_ids(log, 200)
    log._follower.snapshot = replace(known, domains=NotWalked(known.domains))  # type: ignore[arg-type]
    look(manager)
    with pytest.raises(AssertionError, match="all domains"):
        list(log._follower.snapshot.names("pravega.writer."))
    log._follower.snapshot = known
