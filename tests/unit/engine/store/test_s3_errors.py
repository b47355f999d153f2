"""The meaning of each S3 failure, as the client and botocore raise it."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from pravega_spark.engine.store.s3_errors import (
    Meaning,
    answer_of,
    delete_refusal,
    is_empty_range,
    is_missing,
    meaning_of,
    refusal,
)
from pravega_spark.errors import (
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)

URL = "http://s3.example"


def client_error(status: int, code: str) -> ClientError:
    response: dict[str, Any] = {
        "Error": {"Code": code, "Message": "said the server"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "PutObject")


MEANINGS = [
    (412, "PreconditionFailed", Meaning.EXISTS),
    (412, "412", Meaning.EXISTS),
    (0, "PreconditionFailed", Meaning.EXISTS),
    (409, "ConditionalRequestConflict", Meaning.CONFLICT),
    (409, "OperationAborted", Meaning.CONFLICT),
    (409, "409", Meaning.CONFLICT),
    (500, "InternalError", Meaning.UNKNOWN),
    (502, "BadGateway", Meaning.UNKNOWN),
    (503, "SlowDown", Meaning.UNKNOWN),
    (504, "504", Meaning.UNKNOWN),
    (429, "TooManyRequests", Meaning.UNKNOWN),
    (408, "RequestTimeout", Meaning.UNKNOWN),
    (400, "RequestTimeout", Meaning.UNKNOWN),
    (400, "BadDigest", Meaning.UNKNOWN),
    (400, "IncompleteBody", Meaning.UNKNOWN),
    (400, "InvalidArgument", Meaning.REFUSED),
    (400, "ExpiredToken", Meaning.REFUSED),
    (401, "Unauthorized", Meaning.REFUSED),
    (403, "AccessDenied", Meaning.REFUSED),
    (403, "SignatureDoesNotMatch", Meaning.REFUSED),
    (404, "NoSuchBucket", Meaning.REFUSED),
    (501, "NotImplemented", Meaning.REFUSED),
    (507, "XMinioStorageFull", Meaning.REFUSED),
    (0, "", Meaning.UNKNOWN),
]


@pytest.mark.parametrize(("status", "code", "meaning"), MEANINGS)
def test_failed_create_has_the_meaning_of_its_response(
    status: int, code: str, meaning: Meaning
) -> None:
    assert meaning_of(client_error(status, code)) is meaning


@pytest.mark.parametrize(
    "error",
    [
        ReadTimeoutError(endpoint_url=URL),
        EndpointConnectionError(endpoint_url=URL),
        ConnectionClosedError(endpoint_url=URL),
        TimeoutError(),
        ConnectionResetError(),
        OSError(errno.EIO, "of unknown kind"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_response_is_unknown(error: Exception) -> None:
    assert meaning_of(error) is Meaning.UNKNOWN
    assert answer_of(error) is None
    assert type(refusal(error, "s3://b/k", "read")) is StoreUnavailable


@pytest.mark.parametrize("error", [ParamValidationError(report="bad"), TypeError(), KeyError()])
def test_fault_of_our_own_is_no_response_of_the_store(error: Exception) -> None:
    assert meaning_of(error) is None


def test_missing_credentials_are_a_refusal_with_advice() -> None:
    assert meaning_of(NoCredentialsError()) is Meaning.REFUSED
    error = refusal(NoCredentialsError(), "s3://b/k", "create")
    assert isinstance(error, StoreReadOnly)
    assert "AWS_ACCESS_KEY_ID" in str(error)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", StoreReadOnly),
        (400, "ExpiredToken", StoreReadOnly),
        (507, "507", StoreFull),
        (403, "QuotaExceeded", StoreFull),
        (501, "NotImplemented", StoreRefused),
        (404, "NoSuchBucket", StoreError),
        (400, "InvalidArgument", StoreError),
        (500, "InternalError", StoreUnavailable),
        (502, "502", StoreUnavailable),
        (503, "SlowDown", StoreUnavailable),
        (429, "TooManyRequests", StoreUnavailable),
        (400, "RequestTimeout", StoreUnavailable),
        (400, "BadDigest", StoreUnavailable),
        (409, "OperationAborted", StoreUnavailable),
    ],
)
def test_refusal_names_object_response_and_advice(
    status: int, code: str, kind: type[StoreError]
) -> None:
    error = refusal(client_error(status, code), "s3://bucket/key", "create")
    assert type(error) is kind
    assert str(error).startswith("s3://bucket/key: ")
    assert code in str(error) or "bucket does not exist" in str(error)


def test_skewed_time_names_the_clock() -> None:
    error = refusal(client_error(403, "RequestTimeTooSkewed"), "s3://b/k", "create")
    assert type(error) is StoreError  # not StoreReadOnly: a reader gets it, too
    assert "the clock of this machine" in str(error)


def test_missing_object_differs_from_missing_bucket() -> None:
    assert is_missing(client_error(404, "NoSuchKey"))
    assert is_missing(client_error(404, "404"))
    assert not is_missing(client_error(404, "NoSuchBucket"))
    assert not is_missing(OSError("another"))


def test_range_of_an_empty_object_is_recognized() -> None:
    assert is_empty_range(client_error(416, "InvalidRange"))
    assert not is_empty_range(client_error(404, "NoSuchKey"))
    assert not is_empty_range(OSError())


def test_failed_deletions_name_the_key() -> None:
    denied = delete_refusal({"Key": "a/b", "Code": "AccessDenied"}, "s3://bucket")
    assert isinstance(denied, StoreReadOnly)
    assert "s3://bucket/a/b" in str(denied)
    passing = delete_refusal({"Key": "a", "Code": "InternalError"}, "s3://b")
    assert type(passing) is StoreUnavailable
    assert type(delete_refusal({"Key": "a", "Code": "KeyTooLong"}, "s3://b")) is StoreError
