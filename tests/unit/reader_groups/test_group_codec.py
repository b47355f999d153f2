"""A group's state as rows, in the form of this version and of older ones."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from pravega_spark.errors import CorruptLog
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.state import (
    GroupState,
    Ownership,
    Phase,
    ReaderEntry,
    SegmentKey,
)
from pravega_spark.reader_groups.table import GroupCodec, decode_positions, encode_positions


def test_former_streams_are_decoded_with_lives_and_in_the_older_form_of_names() -> None:
    configuration = ReaderGroupConfiguration(["s/t"])
    state = GroupState(
        "s/g", 3, Phase.CHANGING, configuration, {"s/t": 2}, former_streams={"s/u": 1}
    )
    rows = GroupCodec().encode(state)
    assert GroupCodec().decode(rows) == state

    value = json.loads(rows["group"]["value"])
    older = {**rows["group"], "value": json.dumps({**value, "former": ["s/u"]})}
    assert GroupCodec().decode({**rows, "group": older}).former_streams == {"s/u": None}
    assert frozenset(value["former"]) == {"s/u"}, "an older version reads the names"


def test_older_versions_refuse_a_group_that_acknowledges_by_a_rule_that_they_do_not_know() -> None:
    formats = {}
    for acknowledge in ("next", "checkpoint", "transaction"):
        configuration = ReaderGroupConfiguration(["s/t"], acknowledge=acknowledge)
        state = GroupState("s/g", 0, Phase.ACTIVE, configuration, {"s/t": 1})
        rows = GroupCodec().encode(state)
        assert GroupCodec().decode(rows) == state
        formats[acknowledge] = json.loads(rows["group"]["value"])["format"]
    assert formats == {"next": 1, "checkpoint": 2, "transaction": 3}

    unknown = {**rows["group"], "value": rows["group"]["value"].replace('"format":3', '"format":4')}
    with pytest.raises(CorruptLog, match=r"format 4.*upgrade the package"):
        GroupCodec().decode({**rows, "group": unknown})


def test_offset_that_an_older_version_wrote_as_a_float_is_decoded_as_an_int() -> None:
    record = json.loads('{"s/t":{"0#0":6e1,"1#0":1.5,"2#0":"end","3#1":7}}')
    found = decode_positions(record)
    assert encode_positions(found) == {"s/t": {"0#0": 60, "1#0": 1, "2#0": "end", "3#1": 7}}
    assert all(type(offset) is int for offset in found.values())


def test_waiting_segments_keep_their_rows_when_those_before_them_are_taken() -> None:
    codec, keys = GroupCodec(), [SegmentKey("s/t", n) for n in range(100)]
    configuration = ReaderGroupConfiguration(["s/t"])
    state = GroupState("s/g", 0, Phase.ACTIVE, configuration, {"s/t": 1}, next_number=200)
    state = replace(state, readers={"a": ReaderEntry(1, None)}, unassigned=dict.fromkeys(keys, 5))
    before = codec.encode(state)
    taken = {key: Ownership("a", 10 + n, 5) for n, key in enumerate(keys[:10])}
    after = replace(state, assigned=taken, unassigned=dict.fromkeys(keys[10:], 5))
    rows = codec.encode(after)
    assert sum(rows[key] is not row for key, row in before.items()) == 10 + 2
    assert list(GroupCodec().decode(rows).unassigned) == keys[10:]


def test_rows_that_are_used_again_say_the_same_as_new_ones() -> None:
    dice, keys = Random(7), [SegmentKey("s/t", n) for n in range(12)]
    configuration = ReaderGroupConfiguration(["s/t"])
    empty = GroupState("s/g", 0, Phase.ACTIVE, configuration, {"s/t": 1}, next_number=10_000)
    codecs = [GroupCodec(), GroupCodec()]
    for step in range(300):
        dice.shuffle(keys)
        count = dice.randrange(len(keys))
        owned = {
            key: Ownership("a", 10 + keys.index(key), dice.randrange(3)) for key in keys[:count]
        }
        waiting = {key: dice.randrange(3) for key in keys[count:]}
        readers = {"a": ReaderEntry(1, None)}
        state = replace(empty, readers=readers, assigned=owned, unassigned=waiting)
        writer, reader = dice.sample(codecs, 2)
        rows = writer.encode(state)
        for codec in (reader, GroupCodec()):
            found = codec.decode(rows)
            assert found == state, step
            assert list(found.unassigned) == list(waiting)
