"""The meaning of an S3 failure, by HTTP status and error code.

A response is botocore's ClientError. Without a response, the error is one of the system (lost
connections, time-outs) or of botocore (credentials).
"""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    CredentialRetrievalError,
    DataNotFoundError,
    HTTPClientError,
    MetadataRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)

from pravega_spark.errors import (
    InvalidInput,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from pravega_spark.values.names import is_number

_CREDENTIALS = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    NoRegionError,
)
_CALLER = (ParamValidationError, DataNotFoundError)
_DENIED = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "MethodNotAllowed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_SKEWED = "RequestTimeTooSkewed"
"""The clock of this machine is wrong, and S3 refuses to read, too: it says nothing about rights."""
_FULL = frozenset(
    {"InsufficientStorage", "QuotaExceeded", "StorageFull", "XMinioAdminBucketQuotaExceeded",
     "XMinioStorageFull"}
)  # fmt: skip
_CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_CUT_SHORT = frozenset(
    {"BadDigest", "IncompleteBody", "RequestTimeout", "RequestTimeoutException",
     "XAmzContentSHA256Mismatch"}
)  # fmt: skip
"""The body did not arrive, or not as it was sent."""
_PASSING_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504})
_PASSING = _CONFLICTS | _CUT_SHORT | frozenset(
    {"BandwidthLimitExceeded", "InternalError", "RequestLimitExceeded", "RequestThrottled",
     "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"}
)  # fmt: skip
"""Answers that may be different soon."""
_NO_SUPPLIER = (ConnectionError, HTTPClientError, MetadataRetrievalError)
_NO_ANSWER = (*_NO_SUPPLIER, OSError)


class KeysMissing(Exception):
    """No request was made, or it had no effect, because the supplier of credentials gives none."""

    def __init__(self, cause: BaseException, *, had_keys: bool) -> None:
        """Take what the supplier or the storage said, and whether it has given good keys before."""
        super().__init__(cause)
        answer = answer_of(cause)
        self.may_pass = had_keys or (
            isinstance(cause, _NO_SUPPLIER)
            if answer is None
            else answer.code in _PASSING or answer.status in _PASSING_STATUS
        )
        """Whether the supplier may give keys soon: it gave some before, or does not answer."""


class Meaning(enum.Enum):
    """The meaning of a failed conditional create for the object."""

    EXISTS = "exists"
    CONFLICT = "conflict"
    """Another request for the same key was in flight: send this one again."""
    REFUSED = "refused"
    """Nothing was done."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of the server."""

    status: int
    code: str
    message: str


def answer_of(error: BaseException) -> Answer | None:
    """Return the server's response; None if there is none."""
    if not isinstance(error, ClientError):
        return None
    described = error.response.get("Error", {})
    code = str(described.get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    status = status or (int(code) if is_number(code) else 0)
    return Answer(int(status), code, str(described.get("Message", "")))


def meaning_of(error: BaseException) -> Meaning | None:
    """Return the meaning of a failed conditional create; None for a fault of our own."""
    answer = answer_of(error)
    if isinstance(error, KeysMissing):
        return Meaning.UNKNOWN if error.may_pass else Meaning.REFUSED
    if answer is None:
        if isinstance(error, _CREDENTIALS):
            return Meaning.REFUSED
        if isinstance(error, _CALLER):
            return None
        return Meaning.UNKNOWN if isinstance(error, (BotoCoreError, OSError)) else None
    if answer.status == 412 or answer.code == "PreconditionFailed":
        return Meaning.EXISTS
    if answer.status == 409 or answer.code in _CONFLICTS:
        return Meaning.CONFLICT
    if answer.code in _FULL or answer.status in (501, 507):
        return Meaning.REFUSED
    if 400 <= answer.status < 500 and answer.status not in (408, 429):
        return Meaning.UNKNOWN if answer.code in _CUT_SHORT else Meaning.REFUSED
    return Meaning.UNKNOWN


def is_missing(error: BaseException) -> bool:
    """Return True if the object does not exist, but its bucket does."""
    answer = answer_of(error)
    return answer is not None and answer.status == 404 and answer.code != "NoSuchBucket"


def is_empty_range(error: BaseException) -> bool:
    """Return True if the requested range is outside of the object."""
    answer = answer_of(error)
    return answer is not None and (answer.status == 416 or answer.code == "InvalidRange")


def refusal(error: BaseException, url: str, operation: str) -> StoreError | InvalidInput:
    """Return the error to raise for a failed ``operation`` on ``url``."""
    if isinstance(error, InvalidInput):  # of a storage option: nothing was sent
        return error
    if isinstance(error, ProfileNotFound):
        return InvalidInput(
            f"{url}: the profile {error.kwargs['profile']!r} is not in AWS's files on host "
            f"{socket.gethostname()}, where this process runs. Give profile=, or AWS_PROFILE, the "
            "name of one that is, or none."
        )
    answer = answer_of(error)
    if isinstance(error, KeysMissing) and error.may_pass:
        return StoreUnavailable(
            f"{url}: {operation} needs credentials, and their supplier has no valid ones any more "
            f"({error}). Mend what supplies them, then try again.",
            url=url,
        )
    if isinstance(error, (KeysMissing, *_CREDENTIALS)):
        return StoreReadOnly(
            f"{url}: {operation} needs credentials, and process {os.getpid()} on host "
            f"{socket.gethostname()} has none that hold ({error}). Set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY where this process runs (a Spark executor has its own "
            "environment), pass key= and secret=, or repair their supplier.",
            url=url,
        )
    if answer is None:
        kind = StoreUnavailable if _is_passing(error) else StoreError
        return kind(
            f"{url}: {operation} got no response ({type(error).__name__}: {error}). Check the "
            "endpoint and the network, then try again.",
            url=url,
        )
    failure = f"{answer.status} {answer.code}: {answer.message}".rstrip(": .")
    reason = f"{operation} failed with {failure}"
    if answer.code == "NoSuchBucket":
        return StoreError(f"{url}: the bucket does not exist. Create it, or name another.", url=url)
    if answer.code in _FULL or answer.status == 507:
        return StoreFull(
            f"{url}: {reason}. Free some space or raise the quota, then try again.", url=url
        )
    if answer.status == 501:
        return StoreRefused(
            f"{url}: {reason}. The server lacks conditional writes: use another.", url=url
        )
    if answer.code == _SKEWED:
        return StoreError(
            f"{url}: {reason}. Set the clock of this machine, then try again.", url=url
        )
    if answer.code in _DENIED or answer.status in (401, 403):
        return StoreReadOnly(
            f"{url}: {reason}. Check the credentials and the bucket's policy.", url=url
        )
    is_passing = answer.code in _PASSING or answer.status in _PASSING_STATUS
    return (StoreUnavailable if is_passing else StoreError)(f"{url}: {reason}.", url=url)


def _is_passing(error: BaseException) -> bool:
    """Return True for a lost connection or a time-out; False for a certificate nobody trusts."""
    return isinstance(error, _NO_ANSWER) and "CERTIFICATE_VERIFY_FAILED" not in str(error)


def delete_refusal(failed: Mapping[str, str], url: str) -> StoreError:
    """Return the error to raise for one entry of ``Errors`` in a response of DeleteObjects.

    ``url`` is the bucket's: the entry's key is whole.
    """
    code, at = failed.get("Code", ""), f"{url}/{failed.get('Key')}"
    reason = f"{at}: delete failed with {code} {failed.get('Message', '').rstrip('.')}"
    if code in _DENIED:
        return StoreReadOnly(f"{reason}. Check the bucket's policy.", url=at)
    return (StoreUnavailable if code in _PASSING else StoreError)(f"{reason}.", url=at)
