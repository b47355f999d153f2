"""Release 0.1.0 beside this code in one reader group that holds data."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark import RetentionPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.store import open_store
from pravega_spark.reader_groups.silent_readers import SILENT, Silence, encode_silences
from tests.harness.releases import run_release

GROUP = "s/g"
READ = """
import sys
import pravega_spark
root, reader, count = sys.argv[1:]
group = pravega_spark.StreamManager(root).reader_group("s/g")
with group.create_reader(reader) as reader:
    print([reader.read_next_event(5).event.data.decode() for _ in range(int(count))])
"""


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    made = StreamManager(tmp_path)
    made.create_scope("s")
    kept = StreamConfiguration(retention=RetentionPolicy.by_consumption())
    made.create_stream("s/t", kept)
    with made.create_writer("s/t") as writer:
        writer.write_events([b"0", b"1", b"2", b"3"], routing_key="k")
    made.create_reader_group(GROUP, ["s/t"], retention="automatic")
    return made


def test_what_the_releases_last_reader_left_is_released(
    manager: StreamManager, tmp_path: Path
) -> None:
    assert run_release("0.1.0", READ, tmp_path, "old", 2) == "['0', '1']\n"
    assert manager.reader_group(GROUP).last_checkpoint() is None
    manager.retention("s/t").run(sweep=False)
    assert manager.head("s/t").positions == {0: 2}
    with manager.reader_group(GROUP).create_reader("new") as reader:
        assert reader.read_next_event(5).event is not None
    manager.retention("s/t").run(sweep=False)
    assert run_release("0.1.0", READ, tmp_path, "old", 1) == "['3']\n"


CHECK = """
import sys
import pravega_spark
from pravega_spark.engine.store import open_store
from pravega_spark.integrity.root_integrity import check_root
root = sys.argv[1]
manager = pravega_spark.StreamManager(root)
found = list(check_root(open_store(root), deep=True))
print([part.damage for part in found if part.damage])
group = manager.reader_group("s/g")
print(group.expire_readers(), group.online_readers())
manager.delete_reader_group("s/g")
"""


def test_release_takes_the_record_of_silent_readers_for_nobodys(
    manager: StreamManager, tmp_path: Path
) -> None:
    manager.reader_group(GROUP).create_reader("new")
    leases = "s/_reader_groups/g/_leases"
    open_store(tmp_path).put(f"{leases}/{SILENT}", encode_silences({"new": Silence(1, 2, 3)}))
    assert run_release("0.1.0", CHECK, tmp_path) == "[]\n[] ['new']\n"
    assert list((tmp_path / leases).glob("*")) == [], "its deletion deletes the record"
