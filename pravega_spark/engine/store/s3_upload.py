"""Uploads of large S3 objects in parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import s3fs

from pravega_spark.engine.store.base import Entry
from pravega_spark.engine.store.object_sink import ObjectSink
from pravega_spark.engine.store.s3_errors import refusal
from pravega_spark.errors import StoreError, StoreReadOnly, StoreRefused

_PART_BYTES: Final = 16 << 20
"""Memory of an upload; S3 allows 10,000 parts. A smaller object is sent as one."""


@contextlib.contextmanager
def upload(fs: s3fs.S3FileSystem, path: str, url: str) -> Iterator[pa.NativeFile]:
    """Yield a file that becomes the object ``path`` at the end of the block.

    If the block or a request fails, the upload is aborted. Of a killed process, its parts stay
    until :func:`abort_uploads`.
    """

    def error_of(error: Exception) -> StoreError:
        return error if isinstance(error, StoreError) else refusal(error, url, "put")

    file = fs.open(path, "wb", block_size=_PART_BYTES)
    try:
        yield ObjectSink(file.write, error_of).as_arrow()
        try:
            file.close()
        except Exception as error:
            raise error_of(error) from error
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to report
            file.discard()
        file.closed = True  # or its finalizer would upload the rest
        raise


def abort_uploads(
    fs: s3fs.S3FileSystem,
    bucket: str,
    base: str,
    prefix: str,
    before_ms: Callable[[], int],
    *,
    deep: bool,
) -> list[Entry]:
    """Abort the uploads below ``base + prefix`` that began before a time; return them.

    Entries have the size 0, since S3 reports none. Servers without this listing, and credentials
    without the right to it, leave the work to the bucket's lifecycle rules.
    """
    found: list[Entry] = []
    limit_ms: int | None = None
    for item in _uploads(fs, bucket, base + prefix):
        key = item["Key"][len(base) :]
        began_ms = round(item["Initiated"].timestamp() * 1_000)
        if limit_ms is None:
            limit_ms = before_ms()
        if began_ms >= limit_ms or (not deep and "/" in key[len(prefix) :]):
            continue
        target = {"Bucket": bucket, "Key": item["Key"], "UploadId": item["UploadId"]}
        with contextlib.suppress(FileNotFoundError):  # finished or aborted by another process
            fs.call_s3("abort_multipart_upload", **target)
            found.append(Entry(key, 0, began_ms))
    return found


def _uploads(fs: s3fs.S3FileSystem, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    after: dict[str, Any] = {}
    while True:
        try:
            page = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **after)
        except Exception as error:
            refused = refusal(error, f"s3://{bucket}/{prefix}", "list uploads")
            if isinstance(refused, (StoreReadOnly, StoreRefused)):
                return
            raise refused from error
        yield from page.get("Uploads", ())
        if not page.get("IsTruncated"):
            return
        after = {
            "KeyMarker": page["NextKeyMarker"],
            "UploadIdMarker": page["NextUploadIdMarker"],
        }
