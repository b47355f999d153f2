"""Any other fsspec file system as a store; the probe must accept it before use.

A refused create may have been applied: HTTP libraries send a PUT again without telling. If a
connection drops before the answer, the library repeats the request. If the first request was
applied and the second is refused (the token expired in between, a quota is full), the refusal alone
would report an existing object as not created.

What a failure of an fsspec driver means: by its HTTP status, its class, its errno, or its text.
Drivers raise their SDK's classes, which are known here by name: none of the SDKs is imported. What
botocore raises, below s3fs, means what it means to the package's own client.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import errno
import hashlib
import http.client
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow as pa

from pravega_spark.engine.store.base import (
    Entry,
    PutOutcome,
    Store,
    check_key,
    check_prefix,
    is_visible,
)
from pravega_spark.engine.store.file_objects import ObjectSink
from pravega_spark.engine.store.filesystems import (
    OTHER_STORAGE,
    filesystem_at,
    layers,
    own_filesystem,
)
from pravega_spark.engine.store.parallel_calls import in_parallel
from pravega_spark.engine.store.root_url import filesystem_of
from pravega_spark.engine.store.store_cache import shared
from pravega_spark.errors import (
    StoreError,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from pravega_spark.values.names import is_number
from pravega_spark.values.times import iso_time


def outcome_after_refusal(
    store: Store, key: str, refused: StoreError, cause: BaseException | None
) -> PutOutcome:
    """Raise the refusal only if the object does not exist.

    Return EXISTS if it does (the caller reads it to find out whose it is), and UNKNOWN if that
    cannot be checked.
    """
    try:
        if store.exists(key):
            return PutOutcome.EXISTS
    except StoreError:
        return PutOutcome.UNKNOWN
    raise refused from cause


_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_NO_ANSWER = (
    ConnectionError,
    EOFError,
    TimeoutError,
    asyncio.TimeoutError,
    http.client.HTTPException,
)
_NO_ANSWER_NAMES = frozenset(
    {"ClientConnectionError", "ClientPayloadError",  # aiohttp, which gcsfs uses
     "ConnectTimeout", "ConnectionError", "ReadTimeout",  # requests
     "ServiceRequestError", "ServiceResponseError",  # Azure's SDK
     "TransportError",  # google-auth
     "gaierror"}
)  # fmt: skip
_NETWORK = frozenset({errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ETIMEDOUT})
_DENIED = frozenset({401, 403})
_GONE = frozenset({404, 410})
_BAD_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"


def is_denied(error: BaseException) -> bool:
    """Return True if the credentials, or their rights, were refused."""
    if isinstance(error, PermissionError) or _status(error) in _DENIED:
        return True
    return isinstance(error, OSError) and str(error).startswith("Forbidden: ")  # gcsfs says no more


def is_passing(error: BaseException) -> bool:
    """Return True if there was no answer, or one that asks to call again; also of a cause."""
    for link in _links(error):
        status = _status(link)
        if status is not None:
            return status in _STATUS
        if _has_no_answer(link):
            return True
    return False


def _links(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, ..."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _from_botocore(error: BaseException) -> BaseException | None:
    """Return the error of botocore that a driver has translated, if it has."""
    botocore = sys.modules.get("botocore.exceptions")
    if botocore is None:
        return None
    kinds = botocore.BotoCoreError, botocore.ClientError
    return next((link for link in _links(error) if isinstance(link, kinds)), None)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error carries under one of its usual names."""
    answer = getattr(error, "response", None)
    own = (getattr(error, name, None) for name in ("status_code", "status", "code"))
    for value in chain(own, [getattr(answer, "status_code", None)]):  # aiohttp warns of its code
        if is_number(str(value)) and 100 <= int(str(value)) < 600:
            return int(str(value))
    return None


def _has_no_answer(error: BaseException) -> bool:
    if _BAD_CERTIFICATE in str(error):
        return False
    if isinstance(error, _NO_ANSWER):
        return True
    if any(kind.__name__ in _NO_ANSWER_NAMES for kind in type(error).__mro__):
        return True
    return isinstance(error, OSError) and error.errno in _NETWORK


def _has_not_looked(error: Exception) -> bool:
    """Return True if no storage has looked: it did not answer, or refused."""
    status = _status(error)
    if status is not None:
        return status not in _GONE
    return is_passing(error) or _BAD_CERTIFICATE in str(error)


_UNABLE = (NotImplementedError, TypeError, ValueError)
"""Errors of a driver that does not support ``mode="create"``."""

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError, FileExistsError)
"""Errors of a driver that reads something other than a file; the last is for a key below a file."""


class GenericStore:
    """A store on Google Cloud Storage, Azure or another fsspec driver with ``mode="create"``.

    A driver's failures are not specified, so anything other than "exists" or "denied" is UNKNOWN.
    Nor is its exclusive create: probe the root before use.
    """

    is_local = False
    has_clock = True
    retry_seconds = 0.0
    cache_bytes = 0
    response_date = None

    def __init__(self, url: str, options: dict[str, Any]):
        """Take a URL, which may have a file system, or the options of the URL's driver.

        Raises what :mod:`pravega_spark.engine.store.filesystems` raises.
        """
        self._url = url
        self._options = options
        self._drivers: dict[int, tuple[Any, str]] = {}
        self._connection()  # raises now if the driver is missing

    @property
    def url(self) -> str:
        """The root's URL."""
        return self._url

    @property
    def storage(self) -> str:
        """The driver, its identity of the file system, and the bucket."""
        fs, root = self._connection()
        try:
            which = fs.fsid
        except NotImplementedError:
            which = getattr(fs, "account_name", None)
        bucket = root.lstrip("/").partition("/")[0]
        return " ".join(filter(None, ("fsspec", type(fs).__name__, which, bucket)))

    def __repr__(self) -> str:
        """Show the root; options may be secret."""
        return f"GenericStore({self.url!r})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle as URL and options."""
        return shared, (GenericStore, self._url, self._options)

    def _connection(self) -> tuple[Any, str]:
        """Return the driver of this process and the root's path in it, ending in a slash."""
        process = os.getpid()
        found = self._drivers.get(process)
        if found is None:
            given = filesystem_of(self._url)
            if given is None:
                fs, root = filesystem_at(self._url, self._options)
            else:
                fs, root = own_filesystem(given, self._url)
            found = self._drivers.setdefault(process, (fs, root.rstrip("/") + "/"))
        return found

    def _at(self, key: str) -> tuple[Any, str]:
        fs, root = self._connection()
        return fs, root + check_key(key)

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        fs, path = self._at(key)
        try:
            data: bytes = fs.cat_file(path, **_in_one_call(fs))
        except Exception as error:
            raise self._read_error(error, key) from error
        return data

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return a part of the object."""
        fs, path = self._at(key)
        try:
            data: bytes = fs.cat_file(path, start=start, end=max(end, start + 1))
        except Exception as error:
            if _is_empty_range(error):
                return b""
            raise self._read_error(error, key) from error
        return data[: max(0, end - start)]

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects in order, None for each absent one; in parallel if the driver can."""
        if not keys:
            return []
        paths = [self._at(key)[1] for key in keys]
        fs = self._connection()[0]
        found: list[bytes | None] = []
        whole = [None] * len(paths)  # older fsspec takes no single None
        answers = fs.cat_ranges(paths, whole, whole, on_error="return", **_in_one_call(fs))
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, FileNotFoundError):
                found.append(None)
            elif isinstance(answer, Exception):
                raise self._read_error(answer, key) from answer
            else:
                found.append(bytes(answer))
        return found

    def exists(self, key: str) -> bool:
        """Return True if the object exists now."""
        fs, path = self._at(key)
        try:
            fs.invalidate_cache()
            is_file: bool = fs.info(path)["type"] == "file"  # isfile takes any error for a no
        except FileNotFoundError as error:
            self._raise_hidden(error, key)
            return False
        except Exception as error:
            raise self._read_error(error, key) from error
        return is_file

    def time_ms(self) -> int:
        """Return the date of an object that is created for this and deleted again."""
        key = f"_probe/clock-{os.urandom(8).hex()}"
        try:
            self.put(key, b"")
            found = self._dated_ms(key)
            self.delete([key])
        except StoreReadOnly:
            found = None
        return found or time.time_ns() // 1_000_000

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was last written; None if absent, 0 if the driver has no date."""
        found = self._dated_ms(key)
        return found if not found or found % 1_000 else found + 999  # rounded to seconds, it seems

    def _dated_ms(self, key: str) -> int | None:
        fs, path = self._at(key)
        try:
            fs.invalidate_cache()
            return _modified_ms(fs.info(path))
        except FileNotFoundError as error:
            self._raise_hidden(error, key)
            return None
        except Exception as error:
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
        fs, path = self._at(key)
        try:
            answer = fs.pipe_file(path, data, mode="create", **_as_a_whole(fs, data))
        except FileExistsError:
            return PutOutcome.EXISTS
        except _UNABLE as error:
            refused = StoreRefused(
                f"{self.url}: its driver {type(fs).__name__} has no exclusive create ({error}). "
                f"{OTHER_STORAGE}",
                url=self.url,
            )
            return outcome_after_refusal(self, key, refused, error)
        except Exception as error:  # drivers raise their SDK's own classes
            return self._outcome(error, key)
        return PutOutcome.UNKNOWN if _is_of_no_store(answer) else PutOutcome.CREATED

    def _outcome(self, error: Exception, key: str) -> PutOutcome:
        """Return the outcome of a create that failed, or raise its refusal."""
        cause = _from_botocore(error)
        if cause is not None:
            from pravega_spark.engine.store.s3_errors import Meaning, meaning_of

            meaning = meaning_of(cause)
            if meaning is Meaning.EXISTS:  # servers say so without the condition that s3fs expects
                return PutOutcome.EXISTS
            is_refused = meaning is Meaning.REFUSED
        else:
            is_refused = is_denied(error)
        if is_refused:
            return outcome_after_refusal(self, key, self._failure(error, key, "create", ""), error)
        return PutOutcome.UNKNOWN

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Create or overwrite the object."""
        fs, path = self._at(key)
        try:
            answer = fs.pipe_file(path, whole := bytes(data), **_as_a_whole(fs, whole))
        except Exception as error:
            raise self._write_error(error, key) from error
        if _is_of_no_store(answer):
            url = f"{self.url}/{key}"
            raise StoreUnavailable(f"{url} could not be written: the answer has no ETag.", url=url)

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or overwrite the objects, in parallel if the driver allows it."""
        if self._connection()[0].async_impl:
            in_parallel(lambda item: self.put(*item), objects)
            return
        for key, data in objects:
            self.put(key, data)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create the objects, durably at once."""
        self.put_many(objects)

    @contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        """Yield a temporary file on the local disk, which is uploaded at the end.

        Drivers differ in what a file that is opened for writing leaves behind after an error.
        """
        fs, path = self._at(key)
        with tempfile.NamedTemporaryFile(prefix="pravega_spark-") as spool:
            yield ObjectSink(spool.write, lambda error: self._spool_error(error, key)).as_arrow()
            try:
                spool.flush()
            except OSError as error:
                raise self._spool_error(error, key) from error
            try:
                _send_at_once(fs)
                fs.put_file(spool.name, path)
            except Exception as error:
                raise self._write_error(error, key) from error

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects one by one."""
        for key in keys:
            fs, path = self._at(key)
            try:
                fs.rm_file(path)
            except FileNotFoundError:
                continue
            except Exception as error:
                raise self._failure(
                    error, key, "delete", f"could not be deleted: {error}"
                ) from error

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Do nothing: unfinished uploads are not visible."""
        return []

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below ``prefix``."""
        fs, root = self._connection()
        folder = (root + check_prefix(prefix)).rstrip("/")
        try:
            fs.invalidate_cache()
            items = fs.ls(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:
            raise self._read_error(error, prefix) from error
        found = {_name(item) for item in items if item["type"] == "directory"}
        return sorted(found - {""})

    def open(self, key: str) -> pa.NativeFile:
        """Open the object for random reads."""
        fs, path = self._at(key)
        try:
            file = fs.open(path, "rb")
            if (getattr(file, "details", None) or {}).get("type") == "directory":
                raise IsADirectoryError(path)  # some drivers open a folder as an empty file
            return pa.PythonFile(file, mode="r")
        except Exception as error:
            raise self._read_error(error, key) from error

    def make_durable(self, prefix: str) -> None:
        """Do nothing: an object that can be read is assumed to be durable."""

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        """Return the objects below the folder ``prefix``."""
        fs, root = self._connection()
        folder = (root + check_prefix(prefix)).rstrip("/")
        try:
            fs.invalidate_cache()
            items = fs.find(folder, detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise self._read_error(error, prefix) from error
        found = []
        # For a listing below a file, some drivers return that file itself, or its name in a list.
        for path, item in items.items() if isinstance(items, dict) else ():
            key = path[len(root) :]
            if path == folder or not is_visible(key) or (after is not None and key <= after):
                continue
            if before is None or key < before:
                found.append(Entry(key, int(item["size"] or 0), _modified_ms(item)))
        return sorted(found, key=lambda entry: entry.key)

    def _raise_hidden(self, error: FileNotFoundError, key: str) -> None:
        """Raise the failure that a driver took for absence, if it kept it as the cause."""
        cause = error.__cause__
        if isinstance(cause, Exception) and _has_not_looked(cause):
            raise self._read_error(cause, key) from error

    def _read_error(self, error: Exception, key: str) -> OSError:
        if isinstance(error, _ABSENT) and not _lacks_bucket(error):
            return FileNotFoundError(f"{self.url}/{key} does not exist.")
        return self._failure(error, key, "read", f"cannot be read: {type(error).__name__}: {error}")

    def _write_error(self, error: Exception, key: str) -> StoreError:
        return self._failure(error, key, "put", f"could not be written: {error}")

    def _failure(self, error: Exception, key: str, operation: str, what: str) -> StoreError:
        url, cause = f"{self.url}/{key}", _from_botocore(error)
        if cause is not None:
            from pravega_spark.engine.store.s3_errors import refusal

            found = refusal(cause, url, operation)
            if isinstance(found, StoreError):
                return found
            raise found from error  # its owner's fault, such as a profile that does not exist
        if is_denied(error):
            return StoreReadOnly(
                f"{url}: {error}. Check the credentials and their rights.", url=url
            )
        kind = StoreUnavailable if is_passing(error) else StoreError
        return kind(f"{url} {what}.", url=url)

    def _spool_error(self, error: Exception, key: str) -> StoreError:
        url, folder = f"{self.url}/{key}", tempfile.gettempdir()
        return StoreError(
            f"{url} could not be prepared in {folder}: {error}. Free some space there, or set "
            "TMPDIR to another folder.",
            url=url,
        )


def _in_one_call(fs: Any) -> dict[str, Any]:
    """Return how the driver reads a whole object without asking for its size before.

    s3fs would do that for parts at the same time, and would join parts of two objects if one were
    replaced meanwhile.
    """
    return {} if _s3fs_below(fs) is None else {"max_concurrency": 1}


def _as_a_whole(fs: Any, data: bytes) -> dict[str, str]:
    """Return how the driver sends a body that counts only as a whole.

    SeaweedFS stores an empty object if a client dies behind the headers of a PUT without a digest.
    """
    if _s3fs_below(fs) is None:
        return {}
    _send_at_once(fs)
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return {"ContentMD5": base64.b64encode(digest).decode()}


def _send_at_once(fs: Any) -> None:
    """Let s3fs send a body with its headers.

    botocore lets it wait for "100 Continue" in between: a round trip, and aiohttp waits without a
    time-out, for ever if the server is silent.
    """
    driver = _s3fs_below(fs)
    if driver is None or getattr(driver, "_sends_at_once", None) is driver.s3:
        return
    from botocore.handlers import add_expect_header

    driver.s3.meta.events.unregister("before-call.s3", add_expect_header)
    driver._sends_at_once = driver.s3  # it is the store's own, whose client may be made anew


def _is_of_no_store(answer: Any) -> bool:
    """Return True for a success that s3fs passes on and S3 never sends: a login page, say."""
    return isinstance(answer, Mapping) and "ResponseMetadata" in answer and "ETag" not in answer


def _s3fs_below(fs: Any) -> Any:
    """Return the driver if it is s3fs or wraps that, else None."""
    names = ((each, kind.__name__) for each in layers(fs) for kind in type(each).__mro__)
    return next((each for each, name in names if name == "S3FileSystem"), None)


def _is_empty_range(error: BaseException) -> bool:
    cause = _from_botocore(error)
    if cause is None:
        return False
    from pravega_spark.engine.store.s3_errors import is_empty_range

    return is_empty_range(cause)


def _lacks_bucket(error: BaseException) -> bool:
    cause = _from_botocore(error)
    if cause is None:
        return False
    from pravega_spark.engine.store.s3_errors import answer_of

    answer = answer_of(cause)
    return answer is not None and answer.code == "NoSuchBucket"


def _name(item: Mapping[str, Any]) -> str:
    name: str = item["name"]
    return name.rstrip("/").rpartition("/")[2]


def _modified_ms(item: Mapping[str, Any]) -> int:
    """Return the time of the last change, 0 if unknown: each driver names it differently."""
    names = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
    value = next((item[name] for name in names if item.get(name)), 0)
    if isinstance(value, str):
        try:
            value = iso_time(value)
        except ValueError:
            return 0
    if isinstance(value, datetime.datetime):
        value = value.timestamp()
    return round(value * 1_000) if isinstance(value, (int, float)) else 0
