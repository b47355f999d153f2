"""A group's state as rows, in the form of this version and of older ones."""

from __future__ import annotations

import json

import pytest

from pravega_spark.errors import CorruptLog
from pravega_spark.reader_groups.group_codec import GroupCodec, decode_positions, encode_positions
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.group_state import GroupState, Phase


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
