"""Whatever the bytes of a commit or a record are, reading them raises an error of the package."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.engine.log.actions import Body, _digest, parse_commit
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.delta_checkpoint import decode_checkpoint
from pravega_spark.engine.log.stored_state import decode_state, state_key
from pravega_spark.engine.stream import records
from pravega_spark.engine.stream.stream_log import StreamLog, chunk_ref
from pravega_spark.errors import CorruptLog, PravegaSparkError
from pravega_spark.values.segments import SegmentRange
from tests.harness.small_streams import make_stream, reopen, write

DEEP = "[" * 200_000
TEXTS = [DEEP, DEEP + "]" * 200_000, "", "7", "[]", "{}", "[1]", '["a","b","c"]', "null", '"x"',
         '{"format":1}', "9" * 5_000, "\ud800"]  # fmt: skip


def commit(*lines: str) -> bytes:
    """A commit with a matching digest, whatever its lines are."""
    first = Body("APPEND").encode("token", 1).split(b"\n")[0]
    head = first.rpartition(b',"digest":"')[0]
    rest = "".join(f"{line}\n" for line in lines).encode(errors="surrogatepass")
    return b'%b,"digest":"%b"}}\n%b' % (head, _digest(head, rest), rest)


LINES = [
    *(text for text in TEXTS if "format" not in text),  # an action of an unknown kind is ignored
    f'{{"add":{DEEP}',
    '{"add":{"path":7,"partitionValues":{},"size":1,"modificationTime":1,"dataChange":true}}',
    '{"add":{"path":"p","partitionValues":[],"size":1,"modificationTime":1,"dataChange":true}}',
    '{"add":{"path":"p","partitionValues":{},"size":"1","modificationTime":1,"dataChange":true}}',
    '{"remove":{"path":null}}',
    '{"domainMetadata":{"domain":1,"configuration":"","removed":false}}',
    '{"domainMetadata":{"domain":"d","configuration":7,"removed":false}}',
    '{"protocol":7}',
    '{"metaData":[]}',
]


@pytest.mark.parametrize("number", range(len(LINES)))
def test_commit_with_a_damaged_line_is_corrupt(number: int) -> None:
    line = LINES[number]
    with pytest.raises(CorruptLog, match="torn or damaged"):
        parse_commit(1, commit(line), "here")


@pytest.mark.parametrize("text", TEXTS)
def test_any_first_line_of_a_commit_is_an_error_of_the_package(text: str) -> None:
    for version in (0, 1):
        with pytest.raises(PravegaSparkError):
            parse_commit(version, f"{text}\n".encode(errors="surrogatepass"), "here")


DECODERS: dict[str, Callable[[str], Any]] = {
    "stream": records.decode_stream,
    "segment": lambda text: records.decode_segment(0, text),
    "epoch": lambda text: records.decode_epoch(0, text),
    "writer": lambda text: records.decode_writer("w", text),
    "open": lambda text: records.decode_open("t", text),
    "outcome": lambda text: records.decode_outcome("t", text),
    "subscriber": lambda text: records.decode_subscriber("g", text),
    "sample": lambda text: records.decode_sample(1, text),
}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("text", TEXTS)
def test_damaged_record_is_corrupt(name: str, text: str) -> None:
    with pytest.raises(CorruptLog, match=name):
        DECODERS[name](text)


@pytest.mark.parametrize("text", TEXTS)
def test_damaged_state_file_or_checkpoint_is_not_used(text: str) -> None:
    data = text.encode(errors="surrogatepass")
    assert decode_state(1, data + b"\n" + data) is None
    assert decode_checkpoint(1, data, data) is None


def replace_commit(stream: StreamLog, change: Callable[[dict[str, Any]], None]) -> str:
    """Write the newest commit again, changed and with its digest; return its file's path."""
    key = stream.log.reader.key(stream.view().version)
    _, *rest = stream.store.get(key).decode().splitlines()
    actions = [json.loads(line) for line in rest]
    for action in actions:
        change(action)
    stream.store.put(key, commit(*map(json.dumps, actions)))
    return next((action["add"]["path"] for action in actions if "add" in action), "")


def damage_file(action: dict[str, Any], change: str) -> None:
    if "add" in action and change in ("rows", "bytes"):
        action["add"]["tags"][change] = "x"
    elif "add" in action:
        column = "segment_id" if change == "segment" else "base_offset"
        action["add"]["partitionValues"][column] = "x"


@pytest.mark.parametrize("change", ["segment", "offset", "rows", "bytes"])
def test_damaged_position_or_size_of_a_file_is_corrupt(change: str) -> None:
    stream = make_stream()
    write(stream, [("k", b"1")])
    path = replace_commit(stream, lambda action: damage_file(action, change))
    damaged: StreamLog = reopen(stream)
    rng = next(iter([add for c in damaged.log.reader.span(0, 1) for add in c.adds]))
    with pytest.raises(CorruptLog, match=path):
        chunk_ref(rng, "x")


@pytest.mark.parametrize("change", ["segment", "offset", "rows"])
@pytest.mark.parametrize("is_open", [False, True])
def test_damage_of_a_file_in_the_log_names_the_table_and_the_stream(
    change: str, is_open: bool
) -> None:
    """Also if the index of files was loaded before the damaged commit came."""
    stream = make_stream()
    reader = reopen(stream)
    if is_open:
        with reader.log.files() as files:
            list(files.all())
    write(stream, [("k", b"1"), ("k", b"2")])
    path = replace_commit(stream, lambda action: damage_file(action, change))
    with pytest.raises(CorruptLog, match=path) as caught:
        reader.chunks(SegmentRange(stream.name, 1, 0, 0, 2))
    assert (caught.value.stream, caught.value.path) == (stream.name, stream.log.reader.where)
    assert str(caught.value).startswith(stream.log.reader.where)


@pytest.mark.parametrize("domain", ["pravega.stream", "pravega.segment.0"])
def test_damaged_record_names_the_table_and_the_stream(domain: str) -> None:
    stream = make_stream()
    write(stream, [("k", b"1")])
    stream.log.commit(lambda _: (Body("TEST", domains={domain: "[7]"}), None))
    damaged = reopen(stream)
    with pytest.raises(CorruptLog, match="damaged record") as caught:
        damaged.view().segment(0)
    assert (caught.value.stream, caught.value.path) == (stream.name, stream.log.reader.where)
    assert str(caught.value).startswith(f"{stream.log.reader.where}: ")


@pytest.mark.parametrize("source", ["state", "checkpoint"])
def test_snapshot_of_a_state_file_or_checkpoint_knows_its_table(source: str) -> None:
    stream = make_stream()
    write(stream, [("k", b"1")])
    reader, version = stream.log.reader, stream.view().version
    maintain(reader, version, checkpoint=True)
    if source == "checkpoint":
        stream.store.delete([state_key(reader.path, version)])
    assert reader.open() is not None
    snapshot = reopen(stream).view().snapshot
    assert snapshot.where == reader.where
