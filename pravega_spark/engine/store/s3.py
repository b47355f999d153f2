"""A prefix of a bucket on S3, or on a compatible server, as a store."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_plus, urlsplit
from xml.etree import ElementTree

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.base import (
    Entry,
    PutOutcome,
    ResponseDate,
    check_key,
    check_prefix,
    is_visible,
)
from pravega_spark.engine.store.file_objects import ObjectSink, PositionedFile
from pravega_spark.engine.store.parallel_calls import in_parallel
from pravega_spark.engine.store.s3_client import (
    S3Client,
    date_ms,
    header_date_ms,
    next_of,
    query_of,
    refused,
)
from pravega_spark.engine.store.s3_errors import (
    KeysMissing,
    Meaning,
    delete_refusal,
    is_empty_range,
    is_missing,
    meaning_of,
    refusal,
)
from pravega_spark.engine.store.s3_settings import read_settings
from pravega_spark.engine.store.store_cache import shared
from pravega_spark.errors import InvalidInput, StoreError, StoreReadOnly, StoreRefused
from pravega_spark.values.names import is_number

_WHOLE_BYTES = 8 << 20
"""Objects up to this size are read completely; of larger ones, this much of the end is kept."""


def open_object(client: S3Client, name: str, url: str) -> pa.NativeFile:
    """Open the object with one request for its end, which is all of a small object.

    A Parquet footer is at the end, so a large object needs further requests only for columns.
    Raises ClientError and ConnectionError.
    """
    try:
        reply = client.call("GetObject", name, headers={"Range": f"bytes=-{_WHOLE_BYTES}"})
    except Exception as error:
        if is_empty_range(error):
            return pa.BufferReader(b"")
        raise
    # "bytes 100-199/200"; a server that ignores ranges sends everything without this header.
    total = reply.headers.get("content-range", "").rpartition("/")[2]
    size = int(total) if is_number(total) else len(reply.data)
    if size == len(reply.data):
        return pa.BufferReader(reply.data)
    if len(reply.data) != min(size, _WHOLE_BYTES):
        raise ConnectionError(f"the response has {len(reply.data)} bytes of {size}")
    return pa.PythonFile(_RangeFile(client, name, url, size, reply.data), mode="r")


def read_part(client: S3Client, name: str, start: int, end: int) -> bytes:
    """Return bytes [start, end) of the object, fewer where it ends before; one request.

    Raises ClientError and ConnectionError.
    """
    if start >= end:
        end = start + 1  # a request shows whether the object exists
        return read_part(client, name, start, end)[:0]
    try:
        reply = client.call("GetObject", name, headers={"Range": f"bytes={start}-{end - 1}"})
    except Exception as error:
        if is_empty_range(error):
            return b""
        raise
    if "content-range" in reply.headers:
        return reply.data
    return reply.data[start:end]  # a server that ignores ranges sends everything


class _RangeFile(PositionedFile):
    """The bytes of a large object, fetched range by range; its end is in memory."""

    def __init__(self, client: S3Client, name: str, url: str, size: int, tail: bytes):
        super().__init__()
        self._client = client
        self._name = name
        self._url = url
        self._size = size
        self._tail = tail

    def _end(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        start = self._position
        end = self._size if size is None or size < 0 else min(self._size, start + size)
        if start >= end:
            return b""
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            data = self._tail[start - tail_start : end - tail_start]
        else:
            data = self._range(start, end)
        self._position = start + len(data)
        return data

    def _range(self, start: int, end: int) -> bytes:
        headers = {"Range": f"bytes={start}-{end - 1}"}
        try:
            data = self._client.call("GetObject", self._name, headers=headers).data
            if len(data) != end - start:
                raise ConnectionError(f"the response has {len(data)} bytes, not {end - start}")
            return data
        except Exception as error:
            if is_missing(error):
                raise FileNotFoundError(f"{self._url} does not exist.") from error
            raise refusal(error, self._url, "read") from error


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

    def error_of(error: Exception) -> StoreError | InvalidInput:
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


_CONFLICT_ATTEMPTS = 8
_CONFLICT_PAUSE_SECONDS = 0.05
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}|arn:.+")
"""What botocore accepts; servers have stricter rules."""
_AWS_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]|arn:.+")
_AWS = re.compile(r"(.+\.)?amazonaws\.com(\.cn)?")
"""The servers of AWS."""
_NO_BUCKET = "is not a valid bucket name: use 3 to 63 lower-case letters, digits, dots and hyphens"
_NO_OBJECT = "_no_object"
"""A key that is requested only for the date of the response."""
_WHOLE_PUT_BYTES = 64 << 20
"""A larger object is sent in parts, several at a time."""
_DELETE_BATCH = 1_000
"""Most keys that one DeleteObjects request may name."""


class S3Store:
    """A store on S3: ``If-None-Match: *`` makes creates exclusive.

    The connection is opened by the first call, and again in a forked child. Listings and
    ``exists`` always ask the server.
    """

    is_local = False
    has_clock = True
    retry_seconds = 0.0
    cache_bytes = 0

    def __init__(
        self,
        url: str,
        options: dict[str, Any],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """Take ``s3://bucket/folder`` and options of ``s3fs.S3FileSystem``. Sends no request."""
        bucket, _, folder = url.partition("://")[2].partition("/")
        if not bucket:
            raise InvalidInput(f"{url!r} names no bucket: write s3://bucket/folder.")
        if not _BUCKET.fullmatch(bucket):
            raise InvalidInput(f"{url!r}: {bucket!r} {_NO_BUCKET}. Check the URL.")
        self._bucket = bucket
        self._base = check_prefix(folder.strip("/"))
        self._options = options
        self._settings = read_settings(url, bucket, options)
        self._sleep = sleep
        self.on_silence: Callable[[float], object] | None = None
        """Called with the seconds for which the server has answered no call, while a call waits."""
        self._connections: dict[int, S3Client] = {}

    @property
    def url(self) -> str:
        """The root as an ``s3://`` URL."""
        return f"s3://{self._bucket}/{self._base}".rstrip("/")

    @property
    def storage(self) -> str:
        """The server and the bucket."""
        return f"s3 {self._client.endpoint_url} {self._bucket}"

    def __repr__(self) -> str:
        """Show the root; options may be secret."""
        return f"S3Store({self.url!r})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle as URL and explicit options; values from the environment are not pickled."""
        return shared, (S3Store, self.url, self._options)

    @property
    def _client(self) -> S3Client:
        process = os.getpid()
        client = self._connections.get(process)
        if client is None:
            # A forked child must not use its parent's connections, nor close them.
            client = self._connections.setdefault(process, self._connect())
        return client

    def _connect(self) -> S3Client:
        try:
            client = S3Client(self._settings, self.on_silence)
        except InvalidInput as error:
            raise InvalidInput(f"{self.url}: {error}") from error
        except ProfileNotFound as error:
            raise refusal(error, self.url, "open") from error
        except (AttributeError, TypeError, ValueError, BotoCoreError) as error:
            raise InvalidInput(
                f"{self.url}: a storage option is invalid: {str(error).rstrip('.')}. Check "
                "storage_options, and the AWS_* variables and files (an endpoint is a URL such as "
                "http://host:9000)."
            ) from error
        self._check_bucket(client.endpoint_url)
        return client

    def _check_bucket(self, endpoint: str) -> None:
        """Raise InvalidInput for a name that AWS allows for no bucket; other servers may."""
        is_aws = _AWS.fullmatch(urlsplit(endpoint).hostname or "") is not None
        if is_aws and not _AWS_BUCKET.fullmatch(self._bucket):
            raise InvalidInput(
                f"{self.url}: {self._bucket!r} {_NO_BUCKET}. Check the URL, or give the "
                "endpoint_url of the bucket's server."
            )

    @property
    def response_date(self) -> ResponseDate | None:
        """The date of the newest response: S3 sends one with each."""
        client = self._connections.get(os.getpid())
        return None if client is None else client.response_date

    def time_ms(self) -> int:
        """Return the date of the response to a new request."""
        client = self._client
        client.response_date = None
        self.exists(_NO_OBJECT)
        found = client.response_date
        return time.time_ns() // 1_000_000 if found is None else found.storage_ms

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was last written; None if absent."""
        headers = self._head(key)
        if headers is None:
            return None
        modified_ms = header_date_ms(headers.get("last-modified", ""))
        if modified_ms is None:
            error = ConnectionError("the response has no Last-Modified")
            raise refusal(error, f"{self.url}/{key}", "read")
        return modified_ms + 999

    def get(self, key: str) -> bytes:
        """Return the whole object, in one request."""
        client, name = self._client, self._base + check_key(key)
        try:
            return client.call("GetObject", name).data
        except Exception as error:
            raise self._read_error(error, key) from error

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return a part of the object, in one request."""
        client, name = self._client, self._base + check_key(key)
        try:
            return read_part(client, name, start, end)
        except Exception as error:
            raise self._read_error(error, key) from error

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects in order, None for each absent one; requests run in parallel."""
        return in_parallel(self._get_or_none, keys)

    def _get_or_none(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def exists(self, key: str) -> bool:
        """Return True if the object exists now."""
        return self._head(key) is not None

    def _head(self, key: str) -> Mapping[str, str] | None:
        client, name = self._client, self._base + check_key(key)
        try:
            return client.call("HeadObject", name).headers
        except Exception as error:
            if is_missing(error):
                return None
            raise self._read_error(error, key) from error

    def change_token(self, key: str) -> object:
        """Return the key: any real check would be a request."""
        return key

    def set_root_check(self, check: Callable[[], None]) -> None:
        """Do nothing: checking the root marker would be a request."""

    def expect(self, prefix: str, *, is_there: bool) -> None:
        """Do nothing: there are no folders."""

    def put_if_absent(
        self, key: str, data: bytes, *, after: str | None = None, staged: Sequence[str] = ()
    ) -> PutOutcome:
        """Create the object unless it exists; UNKNOWN without a clear response."""
        client, name = self._client, self._base + check_key(key)
        for attempt in range(_CONFLICT_ATTEMPTS):
            if attempt:
                self._sleep(_CONFLICT_PAUSE_SECONDS * 2 ** (attempt - 1))
            try:
                client.call("PutObject", name, headers={"If-None-Match": "*"}, body=data)
                return PutOutcome.CREATED
            except Exception as error:
                meaning = meaning_of(error)
                if meaning is None:
                    raise
                if meaning is Meaning.EXISTS:
                    return PutOutcome.EXISTS
                if meaning is Meaning.REFUSED:
                    raise refusal(error, f"{self.url}/{key}", "create") from error
                if meaning is not Meaning.CONFLICT:
                    return PutOutcome.UNKNOWN
        return PutOutcome.UNKNOWN

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Create or overwrite the object; above 64 MiB in parts, visible after the last."""
        client, name = self._client, self._base + check_key(key)
        body = memoryview(data)
        if len(body) > _WHOLE_PUT_BYTES:
            with self.writer(key) as file:
                file.write(data)
            return
        try:
            client.call("PutObject", name, body=body)
        except Exception as error:
            raise refusal(error, f"{self.url}/{key}", "put") from error

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or overwrite the objects, in parallel."""
        in_parallel(lambda item: self.put(*item), objects)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create the objects, durably at once."""
        self.put_many(objects)

    @contextlib.contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        """Yield a file that is sent in parts, or as one object if it is small."""
        with upload(self._client, self._base + check_key(key), f"{self.url}/{key}") as file:
            yield file

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects, up to 1,000 per request, requests in parallel."""
        names = [self._base + check_key(key) for key in keys]
        pages = range(0, len(names), _DELETE_BATCH)
        in_parallel(self._delete, [names[start : start + _DELETE_BATCH] for start in pages])

    def _delete(self, names: Sequence[str]) -> None:
        root = ElementTree.Element("Delete")
        ElementTree.SubElement(root, "Quiet").text = "true"
        for name in names:
            ElementTree.SubElement(ElementTree.SubElement(root, "Object"), "Key").text = name
        body = ElementTree.tostring(root)
        try:
            answer = self._client.call("DeleteObjects", query="delete=", body=body)
            result = answer.xml("DeleteResult")
        except Exception as error:
            raise refusal(error, self.url, "delete") from error
        for item in result.iterfind("Error"):
            failed = {part.tag: part.text or "" for part in item}
            if failed.get("Code") != "NoSuchKey":
                raise delete_refusal(failed, f"s3://{self._bucket}")

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Abort uploads of killed processes, whose parts are stored but are no object."""
        folder = check_prefix(prefix)
        try:
            return abort_uploads(
                self._client, self._base, folder, lambda: self.time_ms() - older_ms, deep=deep
            )
        except (BotoCoreError, ClientError, ConnectionError, KeysMissing) as error:
            raise refusal(error, f"{self.url}/{prefix}", "discard of uploads") from error

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below ``prefix``."""
        start = len(self._base + check_prefix(prefix))
        names: set[str] = set()
        for page in self._pages(prefix, delimiter="/"):
            found = page.iterfind("CommonPrefixes/Prefix")
            names.update(unquote_plus(item.text or "")[start:-1] for item in found)
        return sorted(names - {""})

    def open(self, key: str) -> pa.NativeFile:
        """Open the object: a small one is read by one request, a large one by ranges."""
        client, name = self._client, self._base + check_key(key)
        try:
            return open_object(client, name, f"{self.url}/{key}")
        except Exception as error:
            raise self._read_error(error, key) from error

    def make_durable(self, prefix: str) -> None:
        """Do nothing: an object that can be read is durable."""

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        """Return the objects below ``prefix``; the server skips those up to ``after``.

        No page is requested after one that ends at ``before`` or later.
        """
        folder = check_prefix(prefix)
        skipped = {}
        if after is not None and after.startswith(folder):
            skipped["start-after"] = f"{self._base}{folder}{_start_after(after[len(folder) :])}"
        found: list[Entry] = []
        for page in self._pages(prefix, **skipped):
            last = ""
            for item in page.iterfind("Contents"):
                key = last = unquote_plus(item.findtext("Key", ""))[len(self._base) :]
                if not is_visible(key) or (after is not None and key <= after):
                    continue
                if before is None or key < before:
                    size = int(item.findtext("Size", ""))
                    found.append(Entry(key, size, date_ms(item.findtext("LastModified", ""))))
            if before and last >= before:
                break
        found.sort(key=lambda entry: entry.key)
        return found

    def _pages(self, prefix: str, **arguments: str) -> Iterator[ElementTree.Element]:
        arguments |= {"list-type": "2", "encoding-type": "url"}
        arguments["prefix"] = self._base + check_prefix(prefix)
        while True:
            try:
                reply = self._client.call("ListObjectsV2", query=query_of(**arguments))
                page = reply.xml("ListBucketResult")
                token = next_of(page, "NextContinuationToken")
            except Exception as error:
                raise refusal(error, f"{self.url}/{prefix}", "list") from error
            yield page
            if token is None:
                return
            arguments["continuation-token"] = token

    def _read_error(self, error: BaseException, key: str) -> OSError | InvalidInput:
        if is_missing(error):
            return FileNotFoundError(f"{self.url}/{key} does not exist.")
        return refusal(error, f"{self.url}/{key}", "read")


def _start_after(after: str) -> str:
    """Return a StartAfter that skips no key after ``after``, on any server.

    Both are relative to the listed folder. S3 sorts complete keys; compatible servers on a file
    system sort a folder by its bare name, "a/1" before "a-b". No folder whose bare name sorts up
    to the result holds keys after ``after``. For a log, the result is one digit shorter, so the
    server sends a few entries more than needed.
    """
    kept = next((i for i, character in enumerate(after) if character < "/"), len(after))
    return after[: max(0, kept - 1)]
