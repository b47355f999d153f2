"""Uploads of large S3 objects in parts."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_plus
from xml.etree import ElementTree

import pyarrow as pa
from botocore.exceptions import ClientError

from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.engine.store.base import Entry
from pravega_spark.engine.store.object_sink import ObjectSink
from pravega_spark.engine.store.s3_client import S3Client, date_ms, next_of, query_of, refused
from pravega_spark.engine.store.s3_errors import is_missing, refusal
from pravega_spark.errors import StoreError, StoreReadOnly, StoreRefused

_PART_BYTES: Final = 8 << 20
"""S3 allows 10,000 parts, 80 GB. A smaller object is sent as one."""
_PARTS_UNDER_WAY: Final = 3
"""Parts that are sent while the next one is filled; with it, the memory of an upload."""


@contextlib.contextmanager
def upload(client: S3Client, name: str, url: str) -> Iterator[pa.NativeFile]:
    """Yield a file that becomes the object ``name`` at the end of the block.

    If the block or a request fails, the upload is aborted. Of a killed process, its parts stay
    until :func:`abort_uploads`.
    """

    def error_of(error: Exception) -> StoreError:
        return error if isinstance(error, StoreError) else refusal(error, url, "put")

    parts = _Parts(client, name)
    try:
        yield ObjectSink(parts.write, error_of).as_arrow()
        try:
            parts.finish()
        except Exception as error:
            raise error_of(error) from error
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to report
            parts.abort()
        raise


class _Parts:
    """The bytes of one object, of which full parts are sent in the background."""

    def __init__(self, client: S3Client, name: str) -> None:
        self._client = client
        self._name = name
        self._buffer = bytearray()
        self._upload_id: str | None = None
        self._tags: list[str] = []
        self._sent: deque[Future[str]] = deque()

    def write(self, data: Any) -> None:
        rest = memoryview(data).cast("B")
        while len(self._buffer) + len(rest) > _PART_BYTES:
            taken = _PART_BYTES - len(self._buffer)
            self._buffer += rest[:taken]
            rest = rest[taken:]
            self._send()
        self._buffer += rest

    def _send(self) -> None:
        """Send the buffer as the next part; wait if too many are under way."""
        if self._upload_id is None:
            reply = self._client.call("CreateMultipartUpload", self._name, "uploads=")
            started = reply.xml("InitiateMultipartUploadResult").findtext("UploadId")
            if not started:
                raise ConnectionError("the response has no UploadId")
            self._upload_id = started
        while len(self._sent) >= _PARTS_UNDER_WAY:
            self._tags.append(self._sent.popleft().result())
        number = len(self._tags) + len(self._sent) + 1
        part, self._buffer = self._buffer, bytearray()
        self._sent.append(SYSTEM.start(partial(self._put, self._upload_id, number, part)))

    def _put(self, upload_id: str, number: int, part: bytearray) -> str:
        query = query_of(partNumber=str(number), uploadId=upload_id)
        body = memoryview(part)
        tag = self._client.call("UploadPart", self._name, query, body=body).headers.get("etag")
        if not tag:
            raise ConnectionError("the response has no ETag")
        return tag

    def finish(self) -> None:
        """Make the object of what was written."""
        if self._upload_id is None:
            self._client.call("PutObject", self._name, body=memoryview(self._buffer))
            return
        self._send()
        self._tags += [part.result() for part in self._sent]
        self._sent.clear()
        root = ElementTree.Element("CompleteMultipartUpload")
        for number, tag in enumerate(self._tags, 1):
            part = ElementTree.SubElement(root, "Part")
            ElementTree.SubElement(part, "PartNumber").text = str(number)
            ElementTree.SubElement(part, "ETag").text = tag
        operation, query = "CompleteMultipartUpload", query_of(uploadId=self._upload_id)
        body = ElementTree.tostring(root)
        reply = self._client.call(operation, self._name, query, body=body)
        root = reply.xml("CompleteMultipartUploadResult", "Error")
        if root.tag == "Error":  # S3 begins its answer before it knows the outcome
            raise refused(operation, 500, reply.headers, reply.data)

    def abort(self) -> None:
        """Delete what was sent."""
        wait(self._sent)
        if self._upload_id is not None:
            query = query_of(uploadId=self._upload_id)
            self._client.call("AbortMultipartUpload", self._name, query)


def abort_uploads(
    client: S3Client, base: str, prefix: str, before_ms: Callable[[], int], *, deep: bool
) -> list[Entry]:
    """Abort the uploads below ``base + prefix`` that began before a time; return them.

    Entries have the size 0, since S3 reports none. Servers without this listing, and credentials
    without the right to it, leave the work to the bucket's lifecycle rules. Raises ClientError and
    ConnectionError.
    """
    found: list[Entry] = []
    limit_ms: int | None = None
    for name, upload_id, began_ms in _uploads(client, base + prefix):
        key = name[len(base) :]
        if limit_ms is None:
            limit_ms = before_ms()
        if began_ms >= limit_ms or (not deep and "/" in key[len(prefix) :]):
            continue
        try:
            client.call("AbortMultipartUpload", name, query_of(uploadId=upload_id))
        except ClientError as error:  # finished or aborted by another process
            if not is_missing(error):
                raise
        else:
            found.append(Entry(key, 0, began_ms))
    return found


def _uploads(client: S3Client, prefix: str) -> Iterator[tuple[str, str, int]]:
    """Yield name, id and time of each upload below the prefix."""
    after = {"prefix": prefix, "encoding-type": "url", "uploads": ""}
    while True:
        try:
            reply = client.call("ListMultipartUploads", query=query_of(**after))
        except ClientError as error:
            if isinstance(refusal(error, prefix, "list uploads"), (StoreReadOnly, StoreRefused)):
                return
            raise
        page = reply.xml("ListMultipartUploadsResult")
        for item in page.iterfind("Upload"):
            name = unquote_plus(item.findtext("Key", ""))
            yield name, item.findtext("UploadId", ""), date_ms(item.findtext("Initiated", ""))
        marker = next_of(page, "NextKeyMarker")
        if marker is None:
            return
        after["key-marker"] = unquote_plus(marker)
        after["upload-id-marker"] = page.findtext("NextUploadIdMarker", "")
