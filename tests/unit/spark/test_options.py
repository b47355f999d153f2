from __future__ import annotations

import json
import logging
import pickle
from dataclasses import fields
from pathlib import Path

import pytest

from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.retrying_store import RetryingStore
from pravega_spark.engine.store.root_url import RootUrl
from pravega_spark.engine.store.s3 import S3Store
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidOption
from pravega_spark.spark import option_values, options
from pravega_spark.spark.key_value.settings import table_read_settings
from pravega_spark.spark.settings import (
    ReadBound,
    ReadSettings,
    WriteSettings,
    check_batch,
    read_settings,
    write_settings,
)
from pravega_spark.values.limits import CHUNK_EVENTS
from pravega_spark.values.segments import StreamCut, make_segment_id
from pravega_spark.values.times import Timestamp

ROOT = {"root": "/data/streams"}


def read(**given: str) -> ReadSettings:
    return read_settings({**ROOT, "path": "nyc/flights", **given})


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("startingofset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("start_streamcut", "startingStreamCut"),
        ("failOnDataloss2", "failOnDataLoss"),
    ],
)
def test_unknown_option_names_the_nearest_known_one(key: str, nearest: str) -> None:
    with pytest.raises(InvalidOption, match=f"unknown option '{key}'.*did you mean {nearest}"):
        read(**{key: "1"})


def test_unknown_option_without_a_near_one_lists_all_options() -> None:
    with pytest.raises(InvalidOption, match=r"the options are .*endingOffsets.*subscribe"):
        read(zzzz="1")


@pytest.mark.parametrize("key", ["retention", "transactionTimeout", "maxFilesPerTrigger"])
def test_option_of_a_later_version_is_refused(key: str) -> None:
    with pytest.raises(InvalidOption, match=f"{key} is not available in this version"):
        read(**{key: "x"})


def test_catalog_table_is_refused_and_the_error_names_a_view() -> None:
    given = {**ROOT, "stream": "nyc/flights", "provider": "pravega"}
    with pytest.raises(
        InvalidOption, match=r"CREATE TABLE .* not supported.*CREATE TEMPORARY VIEW name USING prav"
    ):
        read_settings(given)


def test_option_of_the_other_side_is_refused() -> None:
    with pytest.raises(InvalidOption, match="numSegments is for writing only"):
        read(numSegments="3")
    with pytest.raises(InvalidOption, match="minPartitions is for reading only"):
        write_settings({**ROOT, "path": "a/b", "minPartitions": "3"})


def test_sparks_own_keys_pass_and_the_old_connectors_are_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = write_settings(
            {
                **ROOT,
                "path": "a/b",
                "queryname": "q",
                "checkpointlocation": "/c",
                "controller": "tcp://localhost:9090",
                "exactly_once": "true",
            }
        )
    assert found.checkpoint == "/c"
    assert "controller is ignored: there is no server" in caplog.text
    assert "exactly_once is ignored" in caplog.text


def test_keys_match_in_any_case_and_by_alias() -> None:
    found = read_settings(
        {
            "LOCATION": "/r",
            "STREAM": "a/b",
            "maxrowspertrigger": "5",
            "approx_bytes_per_trigger": "1k",
            "start_stream_cut": "earliest",
        }
    )
    assert (found.root, found.streams, found.max_events, found.max_bytes) == (
        "/r",
        ("a/b",),
        5,
        1024,
    )
    assert found.starting == ReadBound("startingStreamCut", "earliest")


def test_two_names_of_one_option_must_agree() -> None:
    assert read(maxOffsetsPerTrigger="5", maxRowsPerTrigger="5").max_events == 5
    with pytest.raises(InvalidOption, match="maxOffsetsPerTrigger is set twice"):
        read(maxOffsetsPerTrigger="5", maxRowsPerTrigger="6")


def test_empty_text_counts_as_not_set() -> None:
    assert read(maxOffsetsPerTrigger="", columns=" ") == read()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no stream is named"),
        ({"stream": "flights"}, "named 'scope/stream'.*root"),
        ({"stream": "a/b", "path": "a/b"}, "by path and by stream"),
        ({"subscribe": "a/b", "subscribePattern": ".*"}, "by subscribe and by subscribePattern"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"stream": "a/b", "maxTriggerDelay": "1m"}, "needs minOffsetsPerTrigger"),
        ({"stream": "a/b", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger.*above 0.*'0'"),
        (
            {"stream": "a/b", "maxBytesPerTrigger": "much"},
            "maxBytesPerTrigger.*'much' is not a valid size",
        ),
        ({"stream": "a/b", "failOnDataLoss": "ja"}, "failOnDataLoss must be true or false"),
        ({"stream": "a/b", "columns": "a,a"}, "columns is a list"),
        ({"stream": "a/b", "metadata": "Lags"}, "one of Streams, .*Transactions, .*; got 'Lags'"),
        ({"stream": "a/b", "startingTimestamp": "soon"}, "'soon' is not a time"),
        ({"stream": "a/b", "startingOffsets": "{"}, "startingOffsets is 'earliest'"),
        ({"stream": "a/b", "startingOffsets": '{"a/b": {"0#0": "x"}}'}, "'x' is not an offset"),
        ({"stream": "a/b", "startingStreamCut": "a/b@x"}, "is not a valid stream cut"),
        ({"stream": "a/b", "startingStreamCut": "a/b@1:0#0=1;a/b@1:0#0=2"}, "one cut for each"),
    ],
)
def test_bad_values_are_refused_with_the_name_and_the_next_step(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        read_settings({**ROOT, **given})


def test_root_is_required_and_memory_is_refused() -> None:
    with pytest.raises(InvalidOption, match="option root is missing"):
        read_settings({"path": "a/b"})
    with pytest.raises(InvalidOption, match="in the memory of one process"):
        read_settings({"root": "memory://x", "path": "a/b"})


def test_scope_and_bare_stream_names_make_a_full_name() -> None:
    assert read_settings({**ROOT, "scope": "nyc", "stream": "f"}).streams == ("nyc/f",)
    assert read_settings({**ROOT, "scope": "nyc", "subscribe": "b, a"}).streams == (
        "nyc/a",
        "nyc/b",
    )


@pytest.mark.parametrize("streaming", ["readStream", "stream_frame"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"readerGroup": "s/g"}, "readerGroup=s/g is for {}; .*set the option startingStreamCut"),
        ({"includeWatermark": "true"}, r"watermark is for {}, .*manager\.event_time\(stream\)"),
        ({"columns": "offset,Watermark"}, "watermark is for {}"),
    ],
)
def test_batch_read_refuses_what_only_a_streaming_read_has(
    options: dict[str, str], message: str, streaming: str
) -> None:
    settings = read_settings({"root": "/r", "stream": "s/a", **options})
    with pytest.raises(InvalidOption, match=message.format(streaming)):
        check_batch(settings, streaming)
    check_batch(read_settings({"root": "/r", "stream": "s/a"}))


def test_metadata_needs_no_stream_and_takes_a_scope_as_path() -> None:
    found = read_settings({**ROOT, "metadata": "streams"})
    assert (found.metadata, found.streams, found.scope) == ("Streams", (), None)
    assert read_settings({**ROOT, "metadata": "Streams", "path": "nyc"}).scope == "nyc"
    assert read_settings({**ROOT, "metadata": "Segments", "path": "a/b"}).streams == ("a/b",)


def test_timestamp_overrides_cut_and_cut_overrides_offsets() -> None:
    given = {"startingOffsets": "earliest", "startingStreamCut": "latest"}
    assert read(**given).starting == ReadBound("startingStreamCut", "latest")
    found = read(**given, startingTimestamp="0").starting
    assert found == ReadBound("startingTimestamp", Timestamp(0))


def test_json_offsets_name_segments_by_text_or_by_the_id_of_the_column() -> None:
    text = json.dumps({"a/b": {"0#0": 5, "1#2": -1, str(make_segment_id(2, 2)): -2}})
    assert option_values.segment_offsets("startingOffsets", text) == {
        "a/b": {0: 5, make_segment_id(1, 2): -1, make_segment_id(2, 2): -2}
    }


def test_a_text_that_is_a_name_is_that_of_a_saved_cut() -> None:
    parse = option_values.stream_cuts
    assert parse("startingStreamCut", " end-of-march ") == option_values.CutName("end-of-march")
    assert parse("startingStreamCut", "Latest") == "latest"
    with pytest.raises(InvalidOption, match="not a valid stream cut"):
        parse("startingStreamCut", "end of march")


def test_several_cuts_are_separated_by_semicolons() -> None:
    one, two = StreamCut("a/b", 1, {0: 5}), StreamCut("a/c", 2, {0: -1, 1: 3})
    assert option_values.stream_cuts("startingStreamCut", f"{one}; {two}") == {
        "a/b": one,
        "a/c": two,
    }


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1767225600123", 1767225600123000),
        ("2026-01-01", 1767225600000000),
        ("2026-01-01T00:00:00.123456Z", 1767225600123456),
        ("2026-01-01 02:00:00+02:00", 1767225600000000),
    ],
)
def test_every_form_of_a_timestamp_is_parsed(text: str, us: int) -> None:
    assert option_values.timestamp("startingTimestamp", text).resolve_us() == us


def test_relative_timestamp_is_resolved_before_now() -> None:
    now = Timestamp(ago_ms=0).resolve_us()
    assert abs(now - option_values.timestamp("t", "-1h").resolve_us() - 3_600_000_000) < 60_000_000


def test_write_options_and_their_defaults() -> None:
    found = write_settings({**ROOT, "path": "a/b"})
    assert (found.create_if_missing, found.segments, found.compression) == (True, 1, "zstd")
    found = write_settings(
        {
            **ROOT,
            "path": "a/b",
            "routingKey": "k",
            "eventTime": "t",
            "eventTimeDelay": "1m",
            "txnAppId": "app",
            "txnVersion": "0",
            "allow_create_stream": "false",
            "default_num_segments": "4",
            "maxRecordsPerFile": "10",
        }
    )
    assert (found.routing_key, found.event_time, found.application) == ("k", "t", ("app", 0))
    assert found.event_time_delay_ms == 60_000
    assert (found.create_if_missing, found.segments, found.max_rows) == (False, 4, 10)


def test_txn_options_need_each_other() -> None:
    with pytest.raises(InvalidOption, match="txnAppId and txnVersion need each other"):
        write_settings({**ROOT, "path": "a/b", "txnAppId": "x"})


@pytest.mark.parametrize("use", [options.READ, options.WRITE, options.TABLE_READ, options.UPSERT])
def test_every_option_has_a_unique_name_and_a_meaning(use: options.Use) -> None:
    table = options.options_of(use)
    keys = [key.lower() for option in table for key in (option.name, *option.aliases)]
    assert len(keys) == len(set(keys))
    assert all(option.meaning.endswith(".") for option in table)


@pytest.mark.parametrize(
    ("use", "settings", "with_others"),
    [
        (
            options.READ,
            ReadSettings,
            {
                *("root", "retryTimeout", "connectTimeout", "readTimeout"),
                *("scope", "stream", "subscribe", "readerGroup"),
                *("startingOffsets", "startingStreamCut", "startingTimestamp"),
                *("endingOffsets", "endingStreamCut", "endingTimestamp"),
                *("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
            },
        ),
        (
            options.WRITE,
            WriteSettings,
            {
                *("root", "retryTimeout", "connectTimeout", "readTimeout"),
                *("scope", "stream", "txnAppId", "txnVersion", "columns"),
            },
        ),
    ],
)
def test_every_option_sets_a_field_or_one_together_with_others(
    use: options.Use, settings: type, with_others: set[str]
) -> None:
    own = {field.metadata.get("option") for field in fields(settings)} - {None}
    assert own | with_others == {option.name for option in options.options_of(use)}
    assert not own & with_others


def test_defaults_are_those_that_the_table_says() -> None:
    found = read()
    assert (found.max_event_bytes, found.max_trigger_delay_ms) == (64 << 20, 900_000)
    assert (found.group_interval_ms, found.fail_on_data_loss) == (5_000, True)
    assert (found.columns, found.max_events, found.min_partitions) == ((), None, 0)
    wrote = write_settings({**ROOT, "path": "a/b", "maxRecordsPerFile": "2000000"})
    assert (wrote.max_rows, wrote.restored_lives) == (CHUNK_EVENTS, frozenset())


def test_entries_and_changes_of_a_table_have_options_of_their_own() -> None:
    given = {"root": "s3://timed/x", "path": "a/b"}
    entries = table_read_settings({**given, "prefix": "k", "columns": "key", "readTimeout": "2s"})
    assert (entries.keys, entries.columns, entries.changes) == ({"prefix": "k"}, ("key",), None)
    assert isinstance(entries.root, RootUrl)
    assert entries.root.timeouts == {"read_timeout": 2.0}
    with pytest.raises(InvalidOption, match="maintain is for the changes of table a/b"):
        table_read_settings({**given, "maintain": "auto"})
    changes = {**given, "readChangeFeed": "true", "columns": "key", "maxBytesPerTrigger": "1m"}
    found = table_read_settings(changes)
    assert found.changes is not None
    assert (found.columns, found.changes.columns, found.changes.max_bytes) == (
        ("key",),
        (),
        1 << 20,
    )
    with pytest.raises(InvalidOption, match="low is for the entries of table a/b"):
        table_read_settings({**changes, "low": "k"})


def test_relative_root_is_resolved_in_the_drivers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_settings({"root": "streams", "path": "a/b"}).root == str(tmp_path / "streams")
    assert read_settings({"root": "s3://b/x", "path": "a/b"}).root == "s3://b/x"
    monkeypatch.setenv("HOME", "/home/nyc")
    assert read_settings({"root": "~/streams", "path": "a/b"}).root == "/home/nyc/streams"


def test_time_outs_of_a_query_go_with_its_root_into_tasks() -> None:
    given = {
        "root": "s3://timed/x",
        "retryTimeout": "5m",
        "readTimeout": "2 s",
        "connectTimeout": "750",
    }
    read = read_settings({**given, "path": "a/b"})
    written = write_settings({**given, "path": "a/b"})
    of_table = table_read_settings({**given, "path": "a/b", "readChangeFeed": "true"})
    assert read.root == written.root == of_table.root == "s3://timed/x"
    for root in (read.root, pickle.loads(pickle.dumps(written)).root, of_table.root):
        store = open_store(root)
        assert isinstance(store, RetryingStore)
        assert store.retry_seconds == 300.0
        assert isinstance(store.inner, S3Store)
        assert store.inner._settings.timeouts == (0.75, 2.0)
    others = open_store("s3://timed/x"), open_store(read.root)
    assert others[0] is not others[1] is open_store(written.root)
    streams = [open_stream(store, "a/b") for store in others]
    assert [open_stream(store, "a/b") for store in others] == streams
    assert open_store(read.root, retry_timeout=1).retry_seconds == 1.0


def test_time_outs_mean_nothing_for_a_disk_and_must_be_known_to_the_driver() -> None:
    given = {"retryTimeout": "5m", "readTimeout": "2 s", "path": "a/b"}
    for root in ("/data/streams", "file:///data/streams"):
        assert type(read_settings({**given, "root": root}).root) is str
    google = read_settings({"root": "gs://timed/x", "path": "a/b", "retryTimeout": "0"}).root
    assert isinstance(google, RootUrl)
    assert google.timeouts == {"retry_timeout": 0.0}
    with pytest.raises(InvalidOption, match=r"option readTimeout is for S3 only.*gs://timed/x"):
        read_settings({**given, "root": "gs://timed/x"})
    with pytest.raises(InvalidOption, match="option readTimeout must be more than 0"):
        read_settings({**given, "root": "s3://timed/x", "readTimeout": "0"})
    with pytest.raises(InvalidOption, match="option retryTimeout 'soon' is not a valid duration"):
        read_settings({**given, "root": "s3://timed/x", "retryTimeout": "soon"})
