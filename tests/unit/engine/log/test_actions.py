"""The bytes of a commit file: round trips, damage, and order of actions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.log.actions import Add, Body, Remove, parse_commit
from pravega_spark.engine.log.snapshot import PROTOCOL, new_table
from pravega_spark.errors import CorruptLog, ForeignTable
from tests.harness.small_tables import event_add

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9)
ADDS = st.lists(
    st.builds(
        Add,
        NAMES,
        st.dictionaries(NAMES, NAMES, max_size=2),
        st.integers(0, 2**40),
        st.integers(0, 2**45),
        st.none() | TEXT,
        st.none() | st.dictionaries(NAMES, TEXT, min_size=1, max_size=3),
        st.booleans(),
    ),
    max_size=3,
)
BODIES = st.builds(
    Body,
    st.sampled_from(["APPEND", "SEAL STREAM"]),
    parameters=st.dictionaries(NAMES, TEXT | st.integers(), max_size=2),
    metrics=st.dictionaries(NAMES, st.integers(), max_size=2),
    domains=st.dictionaries(NAMES, st.none() | TEXT, max_size=4),
    adds=ADDS,
    removes=st.lists(st.builds(Remove, NAMES, st.integers(0, 2**45)), max_size=3),
    protocol=st.none() | st.just(PROTOCOL),
    metadata=st.none() | st.just(new_table({"a": "long"}, ["a"], "id", "s/t", 1)),
)


@pytest.mark.medium
@given(BODIES, st.integers(0, 2**50))
def test_commit_reads_back_as_it_was_encoded(body: Body, time_ms: int) -> None:
    data = body.encode("token", time_ms)
    full, light = parse_commit(7, data, "t"), parse_commit(7, data, "t", light=True)
    made = body.committed(7, "token", time_ms)

    for name in ("version", "token", "timestamp_ms", "operation", "protocol", "metadata"):
        assert getattr(full, name) == getattr(light, name) == getattr(made, name)
    assert full.domains == light.domains == dict(made.domains)
    assert (full.adds, full.removes) == (made.adds, made.removes)
    assert (light.adds, light.removes) == ((), ())


@given(BODIES, st.data())
def test_any_changed_or_missing_byte_is_detected(body: Body, data: st.DataObject) -> None:
    good = body.encode("token", 1)
    at = data.draw(st.integers(0, len(good) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    changed = good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :]

    for bad in (changed, good[:at]):
        with pytest.raises(CorruptLog, match=r"t: version 7 .*Restore"):
            parse_commit(7, bad, "t", light=data.draw(st.booleans()))


def test_small_actions_come_first_and_file_actions_last() -> None:
    body = Body(
        "X",
        domains={"d": "1"},
        adds=[event_add("f", 0, 0, 1)],
        removes=[Remove("g", 1)],
        protocol=PROTOCOL,
        metadata=new_table({}, [], "id", "n", 1),
    )
    kinds = [next(iter(json.loads(line))) for line in body.encode("t", 1).splitlines()]
    assert kinds == ["commitInfo", "protocol", "metaData", "domainMetadata", "add", "remove"]


def test_empty_partition_value_is_never_written() -> None:
    with pytest.raises(AssertionError, match="which Delta reads as null"):
        Body("X", adds=[Add("f", {"segment_id": ""}, 1, 1)]).encode("t", 1)


FOREIGN = [
    '{"commitInfo":{"engineInfo":"Apache-Spark/4"}}',
    '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}',
]


@pytest.mark.parametrize("line", FOREIGN)
def test_first_commit_of_another_writer_is_a_foreign_table(line: str) -> None:
    with pytest.raises(ForeignTable, match="did not make"):
        parse_commit(0, line.encode(), "t")
    with pytest.raises(CorruptLog, match="version 3 was written by"):
        parse_commit(3, line.encode(), "t")
