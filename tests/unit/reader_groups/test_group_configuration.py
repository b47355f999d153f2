from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.errors import InvalidConfiguration, InvalidName, InvalidStreamCut
from pravega_spark.reader_groups.configuration import (
    GroupRetention,
    ReaderGroupConfiguration,
    StreamCutRange,
)
from pravega_spark.reader_groups.leases import Heartbeat, decode_heartbeat, parse_reader_lease_ms
from pravega_spark.reader_groups.state import SegmentKey
from pravega_spark.values.names import split_group
from pravega_spark.values.segments import StreamCut

CUT = StreamCut("s/a", 1, {0: 5})


def test_defaults_are_those_of_pravega() -> None:
    made = ReaderGroupConfiguration(["s/b", "s/a"])
    assert list(made.streams) == ["s/a", "s/b"]
    assert set(made.streams.values()) == {StreamCutRange(StreamCut.EARLIEST, None)}
    assert (made.refresh_ms, made.checkpoint_ms, made.max_outstanding) == (3_000, 30_000, 3)
    assert made.retention is GroupRetention.NONE


@pytest.mark.parametrize("given", [CUT, str(CUT), (CUT, None), StreamCutRange(CUT)])
def test_streams_have_cuts_or_not(given: Any) -> None:
    assert ReaderGroupConfiguration({"s/a": given}).streams == {"s/a": StreamCutRange(CUT, None)}


def test_json_decodes_to_an_equal_configuration() -> None:
    made = ReaderGroupConfiguration(
        {"s/a": (CUT, StreamCut.LATEST), "s/b": None},
        retention="manual",
        refresh="250 ms",
        checkpoint_interval=None,
        max_outstanding_checkpoints=7,
        acknowledge="checkpoint",
    )
    again = ReaderGroupConfiguration.from_json(made.to_json())
    assert again == made
    assert hash(again) == hash(made)


def test_configuration_of_an_older_version_acknowledges_at_the_next_event() -> None:
    made = ReaderGroupConfiguration(["s/a"])
    assert "acknowledge" not in made.to_json()
    assert ReaderGroupConfiguration.from_json(made.to_json()).acknowledge.value == "next"
    other = ReaderGroupConfiguration(["s/a"], acknowledge="checkpoint")
    assert other != made
    assert other.acknowledges_at_checkpoints


@pytest.mark.parametrize(
    ("streams", "options", "match"),
    [
        ([], {}, "1 to 1000 streams, got 0"),
        ("s/a", {}, "a list of streams"),
        ({"s/b": CUT}, {}, "the start of s/b is a cut of s/a"),
        ({"s/b": (None, CUT)}, {}, "the end of s/b is a cut of s/a"),
        ({"s/a": (None, "earliest")}, {}, "reads nothing"),
        (["s/a"], {"retention": "some"}, "'none', 'manual', 'automatic', got 'some'"),
        (["s/a"], {"acknowledge": "later"}, "'checkpoint', 'transaction', got 'later'"),
        (["s/a"], {"checkpoint_interval": 0.01}, "at least 100 ms"),
        (["s/a"], {"max_outstanding_checkpoints": 0}, "at least 1"),
        (["s/a"], {"max_outstanding_checkpoints": True}, "at least 1"),
        (["s/a"], {"max_outstanding_checkpoints": 10_001}, "at most 10000, got 10001"),
        (["s/a"], {"refresh": "25 hours"}, "at most 86400 s, got '25 hours'"),
    ],
)
def test_invalid_configurations_are_refused(streams: Any, options: Any, match: str) -> None:
    with pytest.raises(InvalidConfiguration, match=match):
        ReaderGroupConfiguration(streams, **options)


def test_limits_are_included_and_older_configurations_beyond_them_can_be_read() -> None:
    most = ReaderGroupConfiguration(["s/a"], refresh="1 day", max_outstanding_checkpoints=10_000)
    record = {**most.to_json(), "refresh": 90_000_000, "outstanding": 20_000}
    assert ReaderGroupConfiguration.from_json(record) == most


def test_names_and_cuts_are_checked() -> None:
    with pytest.raises(InvalidName):
        ReaderGroupConfiguration(["a"])
    with pytest.raises(InvalidStreamCut):
        ReaderGroupConfiguration({"s/a": "here"})
    assert split_group("s/g") == ("s", "g")
    with pytest.raises(InvalidName):
        split_group(7)


def test_lease_has_limits() -> None:
    assert parse_reader_lease_ms("30 s") == 30_000
    for lease in ("1 s", "2 days"):
        with pytest.raises(InvalidConfiguration, match="5 s to 86400 s"):
            parse_reader_lease_ms(lease)


def test_heartbeat_is_decoded_and_a_torn_one_is_none() -> None:
    heartbeat = Heartbeat(7, {SegmentKey("s/a", 1 << 32 | 3): (9, 120)})
    data = heartbeat.encode()
    assert decode_heartbeat(data) == heartbeat
    for torn in (data[:-4], b"", b"{}\n", b"[]", b'{"number": 1, "held": [1]}'):
        assert decode_heartbeat(torn) is None
