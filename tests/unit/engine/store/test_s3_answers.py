"""Answers of S3 that are cut short, or that somebody else gave: none of them counts as one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pravega_spark.engine.store import PutOutcome
from pravega_spark.engine.store.s3 import S3Store
from pravega_spark.errors import StoreUnavailable

DATE = "Mon, 23 Nov 2026 08:20:46 GMT"
LISTED = (
    b"<ListBucketResult xmlns='urn:s3'><Contents><Key>root/a</Key><Size>4</Size>"
    b"<LastModified>2026-11-23T08:20:46Z</LastModified></Contents></ListBucketResult>"
)


def answer(body: bytes, status: str = "200 OK", **more: str) -> bytes:
    """Return a whole answer as it is on the wire."""
    headers = {"Content-Length": str(len(body)), "Date": DATE, "Last-Modified": DATE}
    headers |= {"Connection": "close", "ETag": '"tag"'}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    lines = [
        f"HTTP/1.1 {status}",
        *(f"{name}: {value}" for name, value in headers.items() if value),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Wire:
    """A server that sends given bytes for each request, and then ends the connection."""

    url: str
    answers: list[bytes] = field(default_factory=list)

    def store(self) -> S3Store:
        return S3Store("s3://bucket/root", {"endpoint_url": self.url, "key": "k", "secret": "s"})

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                length = 0
                while (line := file.readline()).strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                file.read(length)
                if self.answers:
                    connection.sendall(self.answers.pop(0))
                connection.shutdown(socket.SHUT_WR)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = Wire(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=found.serve, args=(listener,), daemon=True)
        thread.start()
        yield found
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10.0)


CALLS: list[tuple[str, tuple[Any, ...], bytes, Any]] = [
    ("get", ("a",), answer(b"data"), b"data"),
    ("exists", ("a",), answer(b"").replace(b"Length: 0", b"Length: 4"), True),
    ("modified_ms", ("a",), answer(b""), 1_795_422_046_999),
    ("list", ("",), answer(LISTED), None),
    ("delete", (["a"],), answer(b"<DeleteResult/>"), None),
    ("put", ("a", b"data"), answer(b""), None),
]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("call", "arguments", "whole", "result"), CALLS, ids=[each[0] for each in CALLS]
)
def test_answer_that_ends_at_any_byte_of_its_headers_is_no_answer(
    wire: Wire, call: str, arguments: tuple[Any, ...], whole: bytes, result: Any
) -> None:
    store = wire.store()
    for end in range(whole.index(b"\r\n\r\n") + 3):
        wire.answers = [whole[:end]]
        with pytest.raises(StoreUnavailable, match="got no response"):
            getattr(store, call)(*arguments)
    wire.answers = [whole]
    found = getattr(store, call)(*arguments)
    assert [entry.key for entry in found] == ["a"] if call == "list" else found == result


def test_large_object_whose_answer_ends_within_its_headers_is_not_read(wire: Wire) -> None:
    store, size = wire.store(), 9 << 20
    tail = bytes(8 << 20)
    whole = answer(tail, "206 Partial Content", Content_Range=f"bytes 1048576-{size - 1}/{size}")
    for end in (whole.index(b"Content-Range"), whole.index(b"\r\n\r\n") + 2):
        wire.answers = [whole[:end]]
        with pytest.raises(StoreUnavailable):
            store.open("a")
    wire.answers = [whole, answer(b"short", "206 Partial Content"), answer(b"x" * 100)]
    file = store.open("a")
    with pytest.raises(StoreUnavailable, match="5 bytes, not 100"):
        file.read(100)
    assert file.read(100) == b"x" * 100


@pytest.mark.parametrize("status", ["200 OK", "412 Precondition Failed", "404 Not Found"])
def test_create_whose_answer_ends_within_its_headers_is_unknown(wire: Wire, status: str) -> None:
    store, whole = wire.store(), answer(b"", status)
    for end in range(0, whole.index(b"\r\n\r\n") + 3):
        wire.answers = [whole[:end]]
        assert store.put_if_absent("a", b"data") is PutOutcome.UNKNOWN


def test_absence_is_believed_only_of_a_whole_answer(wire: Wire) -> None:
    store, whole = wire.store(), answer(b"<Error><Code>NoSuchKey</Code></Error>", "404 Not Found")
    wire.answers = [whole.partition(b"\r\n\r\n")[0], whole]
    with pytest.raises(StoreUnavailable):
        store.get("a")
    with pytest.raises(FileNotFoundError):
        store.get("a")


@pytest.mark.parametrize(
    "sent",
    [
        answer(b"data", Content_Length=""),
        answer(b"data", Content_Length="none"),
        answer(b"data").replace(b"Date:", b"Date"),
        answer(b"4\r\nda", Content_Length="", Transfer_Encoding="chunked"),
    ],
    ids=["no length", "wrong length", "malformed header", "cut chunk"],
)
def test_body_whose_end_is_not_known_is_no_answer(wire: Wire, sent: bytes) -> None:
    wire.answers = [sent]
    with pytest.raises(StoreUnavailable, match="got no response"):
        wire.store().get("a")


def test_chunked_body_is_read(wire: Wire) -> None:
    body = b"4\r\ndata\r\n0\r\n\r\n"
    wire.answers = [answer(body, Content_Length="", Transfer_Encoding="chunked")]
    assert wire.store().get("a") == b"data"


def test_object_without_its_time_is_not_absent(wire: Wire) -> None:
    for modified in ("", "soon"):
        wire.answers = [answer(b"", Last_Modified=modified)]
        with pytest.raises(StoreUnavailable, match="no Last-Modified"):
            wire.store().modified_ms("a")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("call", "arguments"), [("list", ("",)), ("folders", ("",)), ("delete", (["a"],))]
)
@pytest.mark.parametrize("body", [b"<html><body>Log in</body></html>", b"<Error/>", b""])
def test_page_of_a_gateway_is_no_listing(
    wire: Wire, call: str, arguments: tuple[Any, ...], body: bytes
) -> None:
    wire.answers = [answer(body)]
    with pytest.raises(StoreUnavailable, match="got no response"):
        getattr(wire.store(), call)(*arguments)


def test_page_of_a_gateway_ends_no_upload(wire: Wire) -> None:
    started = b"<InitiateMultipartUploadResult><UploadId>i</UploadId>"
    started += b"</InitiateMultipartUploadResult>"
    tag = answer(b"", ETag="t")
    wire.answers = [answer(started), tag, tag, answer(b"<html/>"), answer(b"", "204 No Content")]
    with pytest.raises(StoreUnavailable, match="<html>"), wire.store().writer("k") as file:
        file.write(bytes((8 << 20) + 1))


def test_truncated_page_that_names_no_next_one_is_no_answer(wire: Wire) -> None:
    wire.answers = [answer(LISTED.replace(b"<Con", b"<IsTruncated>true</IsTruncated><Con", 1))]
    with pytest.raises(StoreUnavailable, match="has no NextContinuationToken"):
        wire.store().list("")
