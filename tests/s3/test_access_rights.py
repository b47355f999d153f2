"""The least rights of readers, writers, members of groups, maintainers and administrators, on S3.

The policies are those of docs/storage.md.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from pravega_spark import (
    KeyValueTableConfiguration,
    MaintenanceKind,
    RetentionPolicy,
    StreamConfiguration,
    StreamCut,
    StreamManager,
)
from pravega_spark.compaction import plan
from pravega_spark.config.policies import ScalingPolicy
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import StoreReadOnly
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.manager import root_of
from tests.harness.s3_server import ROLES, S3Server

pytestmark = pytest.mark.s3

PAGE = Path(__file__).parents[2] / "docs" / "storage.md"
BUCKET, FOLDER = "rights", "root"
STREAM = "nyc/flights"
WRITERS, EVENTS = 8, 5


def policies() -> dict[str, Any]:
    """Return the policies of the page by role; their order is the page's."""
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    texts = [block.replace("BUCKET", BUCKET).replace("FOLDER", FOLDER) for block in blocks]
    found = [policy for policy in map(json.loads, texts) if "Statement" in policy]
    roles = ("reader", "writer", "group", "maintainer", "admin")
    return dict(zip(roles, found, strict=True))


@pytest.fixture(scope="module")
def server(s3: S3Server) -> S3Server:
    """The server with a bucket whose policy gives each role the statements of the page."""
    statements = [
        {**statement, "Principal": {"AWS": [f"arn:aws:iam::000000000000:user/{role}"]}}
        for role, policy in policies().items()
        for statement in policy["Statement"]
    ]
    client = botocore.session.Session().create_client(
        "s3",
        "us-east-1",
        endpoint_url=s3.endpoint_url,
        aws_access_key_id=s3.key,
        aws_secret_access_key=s3.secret,
    )
    client.create_bucket(Bucket=BUCKET)
    policy = {"Version": "2012-10-17", "Statement": statements}
    client.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(policy))
    client.close()
    return s3


Open = Callable[[str], StreamManager]


@pytest.fixture(scope="module")
def as_role(server: S3Server) -> Open:
    """Opens the root with the rights of a role; an administrator has created the stream."""

    def open_root(role: str) -> StreamManager:
        return StreamManager(f"s3://{BUCKET}/{FOLDER}", storage_options=server.options_of(role))

    manager = open_root("admin")
    manager.create_scope("nyc")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
    return open_root


def write(manager: StreamManager, data: bytes, **options: Any) -> None:
    with manager.create_writer(STREAM, **options) as writer:
        writer.write_event(data, "UA").result()


def test_every_role_has_a_policy_on_the_page() -> None:
    assert set(policies()) == set(ROLES)


def test_reader_reads_and_follows(as_role: Open) -> None:
    write(as_role("admin"), b"before")
    reader = as_role("reader")
    assert b"before" in [event.data for event in reader.read(STREAM)]
    followed = reader.follow(STREAM, reader.tail(STREAM), timeout=60.0)
    write(as_role("admin"), b"after")
    assert next(followed).data == b"after"
    assert reader.list_streams("nyc") == [STREAM]
    assert reader.stream_info(STREAM).state == "ACTIVE"


@pytest.mark.parametrize(
    "change",
    [
        lambda manager: write(manager, b"no"),
        lambda manager: write(manager, b"no", writer_id="no"),
        lambda manager: manager.create_scope("sfo"),
        lambda manager: manager.create_stream("nyc/others"),
        lambda manager: manager.truncate_stream(STREAM, manager.tail(STREAM)),
        lambda manager: manager.create_reader_group("nyc/no", [STREAM]),
    ],
    ids=["append", "open", "scope", "stream", "truncate", "group"],
)
def test_reader_changes_nothing(as_role: Open, change: Callable[[StreamManager], object]) -> None:
    write(as_role("admin"), b"first")
    before = as_role("admin").stream_info(STREAM).version
    with pytest.raises(StoreReadOnly, match=rf"s3://{BUCKET}/{FOLDER}/(nyc|sfo)/.* 403"):
        change(as_role("reader"))
    assert as_role("admin").stream_info(STREAM).version == before


def test_writer_needs_no_right_to_delete(as_role: Open) -> None:
    manager = as_role("writer")
    start = manager.tail(STREAM)
    write(manager, b"one", writer_id="ingest")
    with (
        manager.create_transactional_writer(STREAM, writer_id="rebooking") as writer,
        writer.begin_transaction() as txn,
    ):
        txn.write_event(bytes(7 << 20), "UA")
        txn.write_event(bytes(7 << 20), "UA")
    manager.scale_stream(STREAM, seal=[0], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
    write(manager, b"two", writer_id="ingest")
    data = [event.data for event in manager.read(STREAM, start)]
    assert [each[:3] for each in data] == [b"one", bytes(3), bytes(3), b"two"]
    with pytest.raises(StoreReadOnly, match=rf"s3://{BUCKET}/{FOLDER}/nyc/.*delete failed"):
        manager.sweep_stream(STREAM, grace="1 minute", retain="0 s")


def test_writers_that_share_commits_need_no_right_to_delete(as_role: Open) -> None:
    manager = as_role("writer")
    assert manager.create_stream("nyc/shared")
    failures: list[BaseException] = []

    def run(number: int) -> None:
        from pravega_spark import EventStreamWriter
        from pravega_spark.engine.stream.stream_log import StreamLog

        try:  # each with a view of its own, as if it were a process
            with EventStreamWriter(StreamLog(root_of(manager).store, "nyc/shared")) as writer:
                for event in range(EVENTS):
                    writer.write_event(b"%d:%d" % (number, event), "UA").result()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = [event.data for event in manager.read("nyc/shared")]
    assert sorted(found) == sorted(b"%d:%d" % (w, e) for w in range(WRITERS) for e in range(EVENTS))


def test_member_of_a_group_writes_only_what_groups_need(as_role: Open) -> None:
    admin, manager = as_role("admin"), as_role("group")
    admin.create_stream("nyc/grouped")
    with admin.create_writer("nyc/grouped") as writer:
        writer.write_event(b"one", "UA").result()
    admin.create_reader_group("nyc/dashboards", ["nyc/grouped"])
    group = manager.reader_group("nyc/dashboards")
    with group.create_reader("reader-1") as reader:
        read = reader.read_next_event(timeout=60.0)
        assert read.event is not None
        assert read.event.data == b"one"
    with pytest.raises(StoreReadOnly, match=f"{FOLDER}/nyc/_scope/"):
        manager.create_stream("nyc/others")
    with pytest.raises(StoreReadOnly, match=f"{FOLDER}/nyc/_scope/"):
        manager.create_reader_group("nyc/others", ["nyc/grouped"])


def test_writer_may_end_a_stream_whose_files_only_an_administrator_deletes(
    as_role: Open, caplog: pytest.LogCaptureFixture
) -> None:
    writer, admin, name = as_role("writer"), as_role("admin"), "nyc/ended"
    assert writer.create_stream(name)
    with writer.create_writer(name) as events:
        events.write_event(b"one").result()
    assert writer.seal_stream(name)
    assert writer.delete_stream(name)
    assert "stay for a sweep by someone who may delete" in caplog.text
    assert not admin.stream_exists(name)
    assert [
        e for e in root_of(admin).store.list(f"{name}/events/data") if e.key.endswith(".parquet")
    ]
    assert not admin.delete_stream(name)
    assert root_of(admin).store.list(f"{name}/events/data") == []


def test_writer_creates_a_group_that_holds_data(
    as_role: Open, caplog: pytest.LogCaptureFixture
) -> None:
    writer = as_role("writer")
    assert writer.create_stream("nyc/held")
    writer.create_reader_group("nyc/holders", ["nyc/held"], retention="automatic")
    assert "its announcement stays" in caplog.text
    assert [info.name for info in as_role("reader").list_subscribers("nyc/held")]


def fill(manager: StreamManager, scope: str) -> None:
    """One of everything that rounds of maintenance have to do with."""
    assert manager.create_scope(scope)
    configuration = StreamConfiguration(retention=RetentionPolicy.by_size(1))
    for name in ("one", "two"):
        manager.create_stream(f"{scope}/{name}", configuration)
    with manager.create_writer(f"{scope}/one", "ingest", large_events=True) as writer:
        for number in range(30):
            writer.write_event(b"%02d" % number, "UA").result()
        writer.note_time(1_000).result()
        writer.write_event(bytes(9 << 20), "UA").result()
    with (
        manager.create_joint_writer([f"{scope}/one", f"{scope}/two"]) as joint,
        joint.begin_transaction() as transaction,
    ):
        for name in ("one", "two"):
            transaction.write_event(f"{scope}/{name}", b"joint", "UA")
    manager.create_stream(f"{scope}/bytes", configuration)
    with manager.create_byte_writer(f"{scope}/bytes") as bytes_writer:
        bytes_writer.write(bytes(1 << 20))
    manager.create_key_value_table(f"{scope}/fares", KeyValueTableConfiguration("string"))
    with manager.key_value_table(f"{scope}/fares") as table:
        for number in range(5):
            table.put("UA", b"%d" % number).result()
    manager.create_reader_group(f"{scope}/readers", [f"{scope}/two"], retention="automatic")


def test_writer_writes_all_kinds_without_the_right_to_delete(as_role: Open) -> None:
    writer, reader = as_role("writer"), as_role("reader")
    fill(writer, "all")
    assert [event.data for event in reader.read("all/two")] == [b"joint"]
    assert len(list(reader.read("all/one"))) == 32
    with reader.key_value_table("all/fares") as table:
        entry = table.get("UA")
    assert entry is not None
    assert entry.value == b"4"
    with reader.create_byte_reader("all/bytes") as bytes_reader:
        assert bytes_reader.read(1 << 20) == bytes(1 << 20)


def test_maintainer_does_all_rounds_and_cannot_change_settings(
    as_role: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(as_role("writer"), "kept")
    as_role("writer").create_stream("kept/many")
    as_role("admin").update_settings(grace="2 hours")
    manager = as_role("maintainer")
    done = manager.maintain()
    assert done.failures == {}
    assert set(done.kinds) == set(MaintenanceKind)
    assert all(info.finished_ms is not None for info in manager.maintenance()), "recorded"
    manager.sweep_scope("kept", grace="1 minute", retain="0 s")
    assert len(list(manager.read("kept/one"))) < 32, "truncated by its policy"
    manager.sweep_stream("kept/one", grace="1 minute", retain="0 s")
    log = StreamLog(root_of(manager).store, "kept/_kv_tables/fares")
    assert fold(log, folded_table(log, KeyValueTableConfiguration("string"))).is_published
    monkeypatch.setattr(plan, "COMPACT_SETTLE_MS", 0)
    with manager.create_writer("kept/many") as writer:
        for number in range(30):
            writer.write_event(b"%02d" % number).result()
    assert manager.compact_stream("kept/many", target="16 KB").files_removed
    with pytest.raises(StoreReadOnly, match=f"{FOLDER}/_settings/"):
        manager.update_settings(grace="3 hours")
    with pytest.raises(StoreReadOnly, match=f"{FOLDER}/kept/_scope/"):
        manager.create_stream("kept/others")


def test_administrator_maintains_and_deletes(as_role: Open) -> None:
    manager = as_role("admin")
    assert manager.create_stream("nyc/short")
    with manager.create_writer("nyc/short") as writer:
        writer.write_event(b"one").result()
    manager.create_reader_group("nyc/short-readers", ["nyc/short"])
    manager.truncate_stream("nyc/short", manager.tail("nyc/short"))
    manager.compact_stream("nyc/short")
    manager.sweep_stream("nyc/short", grace="1 minute", retain="0 s")
    assert manager.delete_reader_group("nyc/short-readers")
    assert manager.seal_stream("nyc/short")
    assert manager.delete_stream("nyc/short")
    assert list(manager.read(STREAM, StreamCut.EARLIEST)) is not None
