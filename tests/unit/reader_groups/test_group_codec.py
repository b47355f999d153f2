"""A group's state as rows: what an older version has written is read as well."""

from __future__ import annotations

import json

from pravega_spark.reader_groups.group_codec import GroupCodec, decode_positions, encode_positions
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.group_state import GroupState, Phase


def test_former_streams_are_read_back_with_their_lives_and_by_their_names_alone() -> None:
    configuration = ReaderGroupConfiguration(["s/t"])
    state = GroupState(
        "s/g", 3, Phase.CHANGING, configuration, {"s/t": 2}, former_streams={"s/u": 1}
    )
    rows = GroupCodec().encode(state)
    assert GroupCodec().decode(rows) == state

    value = json.loads(rows["group"]["value"])
    older = {**rows["group"], "value": json.dumps({**value, "former": ["s/u"]})}
    assert GroupCodec().decode({**rows, "group": older}).former_streams == {"s/u": None}
    assert frozenset(value["former"]) == {"s/u"}, "what an older version takes it for"


def test_an_offset_that_an_older_version_wrote_as_a_float_is_read_as_a_whole_number() -> None:
    record = json.loads('{"s/t":{"0#0":6e1,"1#0":1.5,"2#0":"end","3#1":7}}')
    found = decode_positions(record)
    assert encode_positions(found) == {"s/t": {"0#0": 60, "1#0": 1, "2#0": "end", "3#1": 7}}
    assert all(type(offset) is int for offset in found.values())
