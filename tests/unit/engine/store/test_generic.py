"""The store over an fsspec driver: outcomes for the driver's responses and failures."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.hooks import HierarchicalEmitter
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from pravega_spark.engine.store import PutOutcome
from pravega_spark.engine.store.generic import GenericStore, _modified_ms
from pravega_spark.engine.store.root_url import RootUrl
from pravega_spark.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable


class Driver(MemoryFileSystem):
    """Fails every call with ``error``."""

    error: Exception

    def _fail(self, *arguments: Any, **options: Any) -> Any:
        raise self.error

    pipe_file = cat_file = rm_file = info = ls = find = open = _fail


def store_on(driver: type[AbstractFileSystem]) -> GenericStore:
    given = driver(skip_instance_cache=True)
    return GenericStore(RootUrl("memory://generic-unit", filesystem=given), {})


def failing(error: Exception) -> GenericStore:
    return store_on(type("Failing", (Driver,), {"error": error}))


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (FileExistsError("there"), PutOutcome.EXISTS),
        (TimeoutError(), PutOutcome.UNKNOWN),
        (OSError(5, "of unknown kind"), PutOutcome.UNKNOWN),
        (RuntimeError("of an SDK"), PutOutcome.UNKNOWN),
    ],
)
def test_failed_create_has_an_outcome(error: Exception, answer: PutOutcome) -> None:
    assert failing(error).put_if_absent("key", b"") is answer


class Refusing(MemoryFileSystem):
    """Refuses a create; with ``applied``, one that an earlier request has applied."""

    error: Exception
    applied = False

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if self.applied:
            super().pipe_file(path, value, mode=mode, **options)
        raise self.error


def refusing(error: Exception, *, applied: bool) -> GenericStore:
    own = {"error": error, "applied": applied, "store": {}, "pseudo_dirs": [""]}
    return store_on(type("RefusingOnce", (Refusing,), own))


class HttpResponseError(Exception):
    """As Azure's SDK raises it."""

    status_code = 403


class S3FileSystem(Driver):
    """Answers with what s3fs passes on of a gateway that wants a login."""

    error = TimeoutError()
    s3 = SimpleNamespace(meta=SimpleNamespace(events=HierarchicalEmitter()))

    def pipe_file(self, path: str, value: bytes, **options: Any) -> Any:
        digest = {"mode": "create", "ContentMD5": "kYuB216R0DFUi5Y8k4ReWw=="}
        assert {"mode": "create", **options} == digest
        return {"ResponseMetadata": {"HTTPStatusCode": 200}}


def test_success_without_a_tag_is_no_answer() -> None:
    store = store_on(S3FileSystem)
    assert store.put_if_absent("key", b"mine") is PutOutcome.UNKNOWN
    with pytest.raises(StoreUnavailable, match="no ETag"):
        store.put("key", b"mine")


REFUSALS = [
    (PermissionError("denied"), StoreReadOnly),
    (OSError("Forbidden: b/streams/o\nno storage.objects.create"), StoreReadOnly),  # gcsfs
    (HttpResponseError("AuthorizationPermissionMismatch"), StoreReadOnly),
    (TypeError("unexpected keyword 'mode'"), StoreRefused),
    (NotImplementedError(), StoreRefused),
    (ValueError("mode"), StoreRefused),
]


@pytest.mark.parametrize(("error", "kind"), REFUSALS)
def test_driver_that_cannot_create_is_an_error(error: Exception, kind: type[StoreError]) -> None:
    with pytest.raises(kind, match="memory://generic-unit"):
        refusing(error, applied=False).put_if_absent("key", b"")


@pytest.mark.parametrize(("error", "kind"), REFUSALS)
def test_refused_create_is_checked(error: Exception, kind: type[StoreError]) -> None:
    """A driver retries a create after a lost response; the retry may be refused."""
    store = refusing(error, applied=True)
    assert store.put_if_absent("key", b"mine") is PutOutcome.EXISTS
    assert store.get("key") == b"mine"
    assert failing(error).put_if_absent("key", b"mine") is PutOutcome.UNKNOWN


def test_other_calls_raise_the_stores_own_errors() -> None:
    store = failing(RuntimeError("of an SDK"))
    for call in (
        lambda: store.get("key"),
        lambda: store.exists("key"),
        lambda: store.put("key", b""),
        lambda: store.delete(["key"]),
        lambda: store.folders(""),
        lambda: store.list(""),
        lambda: store.open("key"),
        lambda: store.get_many(["key"]),
    ):
        with pytest.raises(StoreError, match="of an SDK"):
            call()
    denied = failing(PermissionError("denied"))
    for write in (lambda: denied.put("key", b""), lambda: denied.delete(["key"])):
        with pytest.raises(StoreReadOnly, match="denied"):
            write()


class Answered(Exception):
    """The error of an SDK that carries the status of an answer."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


def absent_by(cause: Exception) -> GenericStore:
    """A store whose driver takes a failure for absence."""
    absent = FileNotFoundError("x.json")
    absent.__cause__ = cause
    return failing(absent)


@pytest.mark.parametrize("status", [404, 410])
def test_answer_that_nothing_is_there_is_absence(status: int) -> None:
    store = absent_by(Answered(status))
    assert not store.exists("x.json")
    assert store.modified_ms("x.json") is None


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Answered(403), StoreReadOnly),
        (Answered(503), StoreUnavailable),
        (Answered(418), StoreError),
        (ConnectionError("nobody listens"), StoreUnavailable),
    ],
)
def test_failure_that_a_driver_takes_for_absence_is_raised(
    cause: Exception, kind: type[StoreError]
) -> None:
    store = absent_by(cause)
    for call in (store.exists, store.modified_ms):
        with pytest.raises(kind, match=str(cause)) as refused:
            call("x.json")
        assert type(refused.value) is kind


def test_certificate_that_is_refused_says_nothing_of_absence() -> None:
    store = absent_by(ConnectionError("CERTIFICATE_VERIFY_FAILED"))
    with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED") as refused:
        store.exists("x.json")
    assert type(refused.value) is StoreError  # no call again mends it


@pytest.mark.parametrize(
    ("item", "modified_ms"),
    [
        ({"mtime": 1.5}, 1_500),
        ({"updated": "1970-01-01T00:00:02Z"}, 2_000),
        ({"LastModified": datetime.datetime.fromtimestamp(3, datetime.timezone.utc)}, 3_000),
        ({"updated": "yesterday"}, 0),
        ({"mtime": None, "created": 4}, 4_000),
        ({}, 0),
    ],
)
def test_modification_time_is_read_in_every_form(item: dict[str, Any], modified_ms: int) -> None:
    assert _modified_ms(item) == modified_ms
