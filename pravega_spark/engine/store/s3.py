"""A prefix of a bucket on S3, or on a compatible server, as a store."""

from __future__ import annotations

import contextlib
import email.utils
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import s3fs
from fsspec.asyn import sync

from pravega_spark.engine.boot_clock import elapsed_seconds
from pravega_spark.engine.store.base import Dated, Entry, Put
from pravega_spark.engine.store.object_keys import check_key, check_prefix, is_visible
from pravega_spark.engine.store.refused_create import outcome_after_refusal
from pravega_spark.engine.store.s3_errors import (
    Meaning,
    delete_refusal,
    is_missing,
    meaning_of,
    refusal,
)
from pravega_spark.engine.store.s3_file import open_object
from pravega_spark.engine.store.s3_upload import abort_uploads, upload
from pravega_spark.engine.store.store_cache import shared
from pravega_spark.errors import InvalidInput, StoreRefused

_CLIENT_CONFIG: dict[str, Any] = {
    "max_pool_connections": 32,
    # RetryingStore repeats what may be repeated; a conditional create is not.
    "retries": {"mode": "standard", "total_max_attempts": 1},
}
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

    def __init__(
        self,
        url: str,
        options: dict[str, Any],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ):
        """Take ``s3://bucket/folder`` and options for ``s3fs.S3FileSystem``. Sends no request."""
        bucket, _, folder = url.partition("://")[2].partition("/")
        if not bucket:
            raise InvalidInput(f"{url!r} names no bucket: write s3://bucket/folder.")
        if not _BUCKET.fullmatch(bucket):
            raise InvalidInput(f"{url!r}: {bucket!r} {_NO_BUCKET}. Check the URL.")
        self._bucket = bucket
        self._base = check_prefix(folder.strip("/"))
        self._options = options
        self._sleep = sleep
        self._connections: dict[int, s3fs.S3FileSystem] = {}
        self._dated: Dated | None = None

    @property
    def url(self) -> str:
        """The root as an ``s3://`` URL."""
        return f"s3://{self._bucket}/{self._base}".rstrip("/")

    @property
    def storage(self) -> str:
        """The server and the bucket."""
        return f"s3 {self._fs.s3.meta.endpoint_url} {self._bucket}"

    def __repr__(self) -> str:
        """Show the root; options may be secret."""
        return f"S3Store({self.url!r})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle as URL and explicit options; values from the environment are not pickled."""
        return shared, (S3Store, self.url, self._options)

    @property
    def _fs(self) -> s3fs.S3FileSystem:
        process = os.getpid()
        fs = self._connections.get(process)
        if fs is None:
            # Keep the entry of a parent process: its finalizer would wait for a loop that the
            # fork did not copy.
            fs = self._connections.setdefault(process, self._connect())
        return fs

    def _connect(self) -> s3fs.S3FileSystem:
        options = {"use_listings_cache": False, **self._options}
        options["config_kwargs"] = {**_CLIENT_CONFIG, **self._options.get("config_kwargs", {})}
        try:
            fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
            fs.retries = 1  # of calls; see _CLIENT_CONFIG
            fs.connect()  # makes the client without a request
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidInput(f"{self.url}: a storage option is invalid: {error}.") from error
        self._check_bucket(fs.s3.meta.endpoint_url)
        fs.s3.meta.events.register("after-call.s3", self._note_date)
        return fs

    def _check_bucket(self, endpoint: str) -> None:
        """Raise InvalidInput for a name that AWS allows for no bucket; other servers may."""
        is_aws = _AWS.fullmatch(urlsplit(endpoint).hostname or "") is not None
        if is_aws and not _AWS_BUCKET.fullmatch(self._bucket):
            raise InvalidInput(
                f"{self.url}: {self._bucket!r} {_NO_BUCKET}. Check the URL, or give the "
                "endpoint_url of the bucket's server."
            )

    def _note_date(self, parsed: Mapping[str, Any], **_: Any) -> None:
        """Record the date of a response."""
        headers = parsed.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        with contextlib.suppress(ValueError, TypeError):
            date = email.utils.parsedate_to_datetime(headers.get("date"))
            wall_ms = time.time_ns() // 1_000_000
            self._dated = Dated(int(date.timestamp()) * 1_000, wall_ms, elapsed_seconds())

    @property
    def dated(self) -> Dated | None:
        """The date of the newest response: S3 sends one with each."""
        return self._dated

    def time_ms(self) -> int:
        """Return the date of the response to a new request."""
        self._dated = None
        self.exists(_NO_OBJECT)
        found = self._dated
        return time.time_ns() // 1_000_000 if found is None else found.storage_ms

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was last written; None if absent."""
        fs, name = self._fs, self._base + check_key(key)
        try:
            found = fs.call_s3("head_object", Bucket=self._bucket, Key=name)["LastModified"]
        except Exception as error:
            if is_missing(error):
                return None
            raise self._read_error(error, key) from error
        return int(found.timestamp() * 1_000) + (0 if found.microsecond else 999)

    def get(self, key: str) -> bytes:
        """Return the whole object, in one request."""
        fs, path = self._fs, self._path(key)
        try:
            # With more than one request at a time, s3fs first asks for the size.
            data: bytes = fs.cat_file(path, max_concurrency=1)
        except Exception as error:
            raise self._read_error(error, key) from error
        return data

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects in order, None for each absent one; all requests run in parallel."""
        if not keys:
            return []
        paths = [self._path(key) for key in keys]
        found: list[bytes | None] = []
        answers = self._fs.cat_ranges(paths, None, None, on_error="return", max_concurrency=1)
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, BaseException):
                if not is_missing(answer):
                    raise self._read_error(answer, key) from answer
                found.append(None)
            else:
                found.append(answer)
        return found

    def exists(self, key: str) -> bool:
        """Return True if the object exists now."""
        fs, name = self._fs, self._base + check_key(key)
        try:
            fs.call_s3("head_object", Bucket=self._bucket, Key=name)
        except Exception as error:
            if is_missing(error):
                return False
            raise self._read_error(error, key) from error
        return True

    def stamp(self, key: str) -> object:
        """Return the key: any real check would be a request."""
        return key

    def hold_to(self, check: Callable[[], None]) -> None:
        """Do nothing: checking the root marker would be a request."""

    def put_if_absent(self, key: str, data: bytes, *, after: str | None = None) -> Put:
        """Create the object unless it exists; UNKNOWN without a clear response."""
        fs, name = self._fs, self._base + check_key(key)
        for attempt in range(_CONFLICT_ATTEMPTS):
            if attempt:
                self._sleep(_CONFLICT_PAUSE_SECONDS * 2 ** (attempt - 1))
            try:
                sync(fs.loop, _create, fs, self._bucket, name, data)
                return Put.CREATED
            except Exception as error:
                meaning = meaning_of(error)
                if meaning is None or isinstance(error, StoreRefused):
                    raise
                if meaning is Meaning.EXISTS:
                    return Put.EXISTS
                if meaning is Meaning.REFUSED and attempt == 0:
                    refused = refusal(error, f"{self.url}/{key}", "create")
                    return outcome_after_refusal(self, key, refused, error)
                if meaning is not Meaning.CONFLICT:
                    return Put.UNKNOWN
        return Put.UNKNOWN

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Create or overwrite the object; above 100 MiB in parts, visible after the last."""
        fs, path = self._fs, self._path(key)
        content = data if isinstance(data, bytes) else data.to_pybytes()
        try:
            fs.pipe_file(path, content)
        except Exception as error:
            raise refusal(error, f"{self.url}/{key}", "put") from error

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or overwrite the objects, one after the other."""
        for key, data in objects:
            self.put(key, data)

    @contextlib.contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        """Yield a file that is sent in parts, or as one object if it is small."""
        with upload(self._fs, self._path(key), f"{self.url}/{key}") as file:
            yield file

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects, up to 1,000 per request."""
        fs, names = self._fs, [self._base + check_key(key) for key in keys]
        for start in range(0, len(names), _DELETE_BATCH):
            batch = [{"Key": name} for name in names[start : start + _DELETE_BATCH]]
            try:
                answer = fs.call_s3(
                    "delete_objects", Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True}
                )
            except Exception as error:
                raise refusal(error, self.url, "delete") from error
            for failed in answer.get("Errors", ()):
                if failed.get("Code") != "NoSuchKey":
                    raise delete_refusal(failed, self.url)

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Abort uploads of killed processes, whose parts are stored but are no object."""
        return abort_uploads(
            self._fs,
            self._bucket,
            self._base,
            check_prefix(prefix),
            lambda: self.time_ms() - older_ms,
            deep=deep,
        )

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below ``prefix``."""
        start = len(self._base + check_prefix(prefix))
        names: set[str] = set()
        for page in self._pages(prefix, Delimiter="/"):
            names.update(item["Prefix"][start:-1] for item in page.get("CommonPrefixes", ()))
        return sorted(names - {""})

    def open(self, key: str) -> pa.NativeFile:
        """Open the object: a small one is read by one request, a large one by ranges."""
        fs, name = self._fs, self._base + check_key(key)
        try:
            return open_object(fs, self._bucket, name)
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
            skipped["StartAfter"] = f"{self._base}{folder}{_start_after(after[len(folder) :])}"
        found: list[Entry] = []
        for page in self._pages(prefix, **skipped):
            for item in page.get("Contents", ()):
                key = item["Key"][len(self._base) :]
                if not is_visible(key) or (after is not None and key <= after):
                    continue
                if before is None or key < before:
                    modified_ms = round(item["LastModified"].timestamp() * 1_000)
                    found.append(Entry(key, item["Size"], modified_ms))
            contents = page.get("Contents")
            if before and contents and contents[-1]["Key"][len(self._base) :] >= before:
                break
        found.sort(key=lambda entry: entry.key)
        return found

    def _pages(self, prefix: str, **arguments: Any) -> Iterable[dict[str, Any]]:
        fs = self._fs
        arguments["Prefix"] = self._base + check_prefix(prefix)
        while True:
            try:
                page = fs.call_s3("list_objects_v2", Bucket=self._bucket, **arguments)
            except Exception as error:
                raise refusal(error, f"{self.url}/{prefix}", "list") from error
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def _path(self, key: str) -> str:
        return f"{self._bucket}/{self._base}{check_key(key)}"

    def _read_error(self, error: BaseException, key: str) -> OSError:
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


async def _create(fs: s3fs.S3FileSystem, bucket: str, name: str, data: bytes) -> None:
    """Send one conditional PUT.

    Not ``fs.pipe_file(mode="create")``: with an old botocore, that drops the condition and
    overwrites; and it retries silently, so that a refusal could hide a success.
    """
    await fs.set_session()
    client = await fs.get_s3(bucket)
    known = client.meta.service_model.operation_model("PutObject").input_shape.members
    if "IfNoneMatch" not in known:
        raise StoreRefused("botocore is too old for conditional writes: pip install -U s3fs.")
    extra = {name: value for name, value in fs.s3_additional_kwargs.items() if name in known}
    await client.put_object(Bucket=bucket, Key=name, Body=data, IfNoneMatch="*", **extra)
