"""Whatever the bytes of a commit or a record are, reading them raises an error of the package."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.engine.log.actions import Body, _digest, parse_commit
from pravega_spark.engine.log.delta_checkpoint import decode_checkpoint
from pravega_spark.engine.log.state_file import decode_state
from pravega_spark.engine.stream import records
from pravega_spark.engine.stream.stream_log import StreamLog, chunk_ref
from pravega_spark.errors import CorruptLog, PravegaSparkError
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


@pytest.mark.parametrize("change", ["segment", "offset", "rows", "bytes"])
def test_damaged_position_or_size_of_a_file_is_corrupt(change: str) -> None:
    stream = make_stream()
    write(stream, [("k", b"1")])
    key = stream.log.reader.key(1)
    _, *rest = stream.store.get(key).decode().splitlines()
    add = json.loads(rest[-1])["add"]
    if change in ("rows", "bytes"):
        add["tags"][change] = "x"
    else:
        add["partitionValues"]["segment_id" if change == "segment" else "base_offset"] = "x"
    rest[-1] = json.dumps({"add": add})
    stream.store.put(key, commit(*rest))
    damaged: StreamLog = reopen(stream)
    rng = next(iter([add for c in damaged.log.reader.span(0, 1) for add in c.adds]))
    with pytest.raises(CorruptLog, match=add["path"]):
        chunk_ref(rng, "x")
