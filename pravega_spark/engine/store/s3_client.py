"""Requests to S3: one call is one HTTP request, and nothing is sent twice unasked.

botocore supplies the settings, the credentials, the form of each request and the signature;
urllib3 sends it. botocore's own client takes several times the processor time of a request, asks
the server before it sends a body, and repeats requests; see docs/adr.

Notice that a call gets no answer long before its time-out, in the thread that waits for it. A
server that accepts connections and hangs shows nothing else than silence. The wait costs one poll
of the socket a call, and no thread. A server that answers other calls is not silent, even if one
call is slow.

An answer that was cut short counts as none. http.client takes the end of a
connection for the end of the headers, and without a Content-Length also for the end of the body. So
an answer that was cut within its headers looks whole, and empty.
"""

from __future__ import annotations

import base64
import email.utils
import functools
import hashlib
import http.client
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

import urllib3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError, NoCredentialsError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HeaderParsingError
from urllib3.util import wait_for_read
from urllib3.util.response import assert_header_parsing

from pravega_spark.engine.runtime.boot_clock import elapsed_seconds
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store.base import ResponseDate
from pravega_spark.engine.store.s3_errors import KeysMissing
from pravega_spark.engine.store.s3_settings import Form, S3Settings
from pravega_spark.engine.store.supplier_log import taken_failures
from pravega_spark.errors import InvalidInput
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import OBJECT_CALLS, OBJECT_HELPERS
from pravega_spark.values.times import iso_time

SILENCE_SECONDS = 5.0
"""A warning comes if a server has answered no call for this time, although one waits: longer than a
busy server takes."""


class Silence:
    """The answers of one server to all calls of a client. Thread-safe."""

    def __init__(self, report: Callable[[float], object] | None) -> None:
        """Take what is told of a silence, by its length in seconds; None tells nobody."""
        self._report = report
        self._answered = time.monotonic()

    def note_answer(self) -> None:
        """Note that some call has been answered."""
        self._answered = time.monotonic()

    def await_answer(self, connection: Any, timeout: float | None) -> None:
        """Wait until an answer begins on a socket; TimeoutError after ``timeout`` seconds.

        While it waits, each SILENCE_SECONDS without an answer to any call of the client are
        reported.
        """
        if self._report is None or timeout is None or _has_bytes(connection):
            return
        began = time.monotonic()
        left = timeout
        while left > 0:
            if wait_for_read(connection, min(SILENCE_SECONDS, left)):
                return
            now = time.monotonic()
            left = began + timeout - now
            silent = now - max(began, self._answered)
            if left > 0 and silent >= SILENCE_SECONDS:
                self._report(silent)
        raise TimeoutError("timed out")


def _has_bytes(connection: socket.socket) -> bool:
    """Return whether bytes of a TLS connection were read already, of which no poll knows."""
    pending = getattr(connection, "pending", None)
    return pending is not None and pending() > 0


_ENDS = (b"\r\n", b"\n")
"""The line after the last header."""


class _Lines(Protocol):
    def readline(self, limit: int = -1, /) -> bytes: ...
    def close(self) -> None: ...


class _LastLine:
    """Passes lines on, and keeps the last one."""

    def __init__(self, file: _Lines) -> None:
        self._file = file
        self.line = b""

    def readline(self, limit: int = -1) -> bytes:
        self.line = self._file.readline(limit)
        return self.line

    def close(self) -> None:
        self._file.close()


class _WholeResponse(http.client.HTTPResponse):
    """A response whose headers are all there; ConnectionError otherwise."""

    def begin(self) -> None:
        if self.headers is not None:
            return
        file: Any = self.fp
        lines = _LastLine(file)
        self.fp = lines
        try:
            super().begin()
        finally:
            if self.fp is lines:  # None if the first line was wrong
                self.fp = file
        if lines.line not in _ENDS:
            raise ConnectionResetError("the connection ended within the headers")
        try:
            assert_header_parsing(self.headers)
        except HeaderParsingError as error:
            raise ConnectionResetError(f"the headers are malformed: {error}") from error


class _Connection(HTTPConnection):
    response_class = _WholeResponse

    def __init__(self, *arguments: Any, silence: Silence, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._silence = silence

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        self._silence.await_answer(self.sock, self.timeout)
        return super().getresponse()


class _SecureConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def checked(pool: urllib3.PoolManager, silence: Silence) -> urllib3.PoolManager:
    """Return the pool, whose connections fail for an answer with incomplete headers.

    They report a server that does not answer.
    """
    pool.pool_classes_by_scheme = {
        "http": functools.partial(_Pool, silence=silence),  # type: ignore[dict-item]
        "https": functools.partial(_SecurePool, silence=silence),  # type: ignore[dict-item]
    }
    return pool


def has_length(response: urllib3.BaseHTTPResponse) -> bool:
    """Return whether the end of the body was known before the end of the connection."""
    headers = response.headers
    return (
        headers.get("content-length", "").strip().isdigit()
        or headers.get("transfer-encoding", "").lower() == "chunked"
        or response.status in (204, 304)
    )


logger = own_logger(__name__)

_EXPIRED = frozenset({"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired"})
"""Codes of a refusal after which the credentials are read again."""
_DENIED_STATUS = frozenset({400, 401, 403})
_REDIRECTS = frozenset({301, 307, 400})
_WITH_BODY = frozenset({"PUT", "POST"})
_ANSWERED_WITH_BODY = frozenset({"GET", "POST"})
_WITH_DIGEST = frozenset({"DeleteObjects", "PutObject", "UploadPart"})
"""Operations whose body the server must check before it takes it.

S3 demands that of DeleteObjects. For objects, some servers (SeaweedFS 4.48) store an empty one
when a client dies between the headers and the body, although both lengths and signature differ.
"""
_WITH_TAG = frozenset({"GetObject", "HeadObject", "PutObject", "UploadPart"})
"""Operations whose success S3 always answers with an ETag, which a gateway's page does not have."""
_METHODS = {
    "AbortMultipartUpload": "DELETE",
    "CompleteMultipartUpload": "POST",
    "CreateMultipartUpload": "POST",
    "DeleteObjects": "POST",
    "GetObject": "GET",
    "HeadObject": "HEAD",
    "ListMultipartUploads": "GET",
    "ListObjectsV2": "GET",
    "PutObject": "PUT",
    "UploadPart": "PUT",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful response."""

    data: bytes
    headers: Mapping[str, str]

    def xml(self, *names: str) -> ElementTree.Element:
        """Return the body, an element of one of the names; its elements have bare names.

        ConnectionError if it is none: a gateway has answered, not the storage.
        """
        try:
            root = parse(self.data)
        except ElementTree.ParseError as error:
            raise ConnectionError(f"the response is not XML: {error}") from error
        if root.tag not in names:
            raise ConnectionError(f"the response is <{root.tag}>, not <{names[0]}>")
        return root


class S3Client:
    """A connection pool to one bucket. Thread-safe; not for a forked child of its process."""

    def __init__(
        self, settings: S3Settings, on_silence: Callable[[float], object] | None = None
    ) -> None:
        """Take the settings; send no request, also none for credentials.

        ``on_silence`` is called while a call waits and none has been answered for some seconds.
        """
        self._settings = settings
        self._silence = Silence(on_silence)
        self._lock = new_lock()
        self._session = settings.session()
        self._forms, self.endpoint_url = self._prepared(None)
        self._credentials: Any = None
        self._last_of_supplier: object = None
        """The keys that were warned of because their supplier fails to renew them."""
        self._has_worked = False
        """Whether the storage has accepted a request with the keys of a supplier."""
        self._pool = self._make_pool()
        self.response_date: ResponseDate | None = None
        """The date of the newest response."""

    def _prepared(self, region: str | None) -> tuple[dict[str, Form], str]:
        form, endpoint_url = self._settings.forms(self._session, region)
        return {operation: form(operation) for operation in _METHODS}, endpoint_url

    def _make_pool(self) -> urllib3.PoolManager:
        config, verify = self._settings.config, self._settings.verify(self._session)
        certificate = config.client_cert
        pair = certificate if isinstance(certificate, tuple) else (certificate, None)
        self._check_files(verify, *pair)
        connect, read = self._settings.timeouts
        given: dict[str, Any] = {
            "num_pools": 2,
            # For all threads of the process: with fewer, urllib3 drops connections, and warns.
            "maxsize": max(config.max_pool_connections, OBJECT_HELPERS + OBJECT_CALLS),
            "timeout": urllib3.Timeout(connect=connect, read=read),
            "cert_file": pair[0],
            "key_file": pair[1],
        }
        if verify is False:
            given["cert_reqs"] = "CERT_NONE"
        else:
            given |= {"cert_reqs": "CERT_REQUIRED", "ca_certs": get_cert_path(verify)}
        url = self._forms["ListObjectsV2"].url
        proxies = config.proxies or get_environ_proxies(url)
        proxy = proxies.get(urlsplit(url).scheme)
        if not proxy:
            return checked(urllib3.PoolManager(**given), self._silence)
        user = urllib3.util.parse_url(proxy).auth
        headers = urllib3.make_headers(proxy_basic_auth=user) if user else None
        manager = urllib3.ProxyManager(proxy, proxy_headers=headers, **given)
        return checked(manager, self._silence)

    def _check_files(self, *paths: str | bool | None) -> None:
        """Raise InvalidInput for a missing file; a connection would take it for an outage."""
        for path in paths:
            if isinstance(path, str) and not os.path.exists(path) and self._is_encrypted():
                raise InvalidInput(
                    f"s3://{self._settings.bucket}: the file of certificates {path} does not "
                    "exist; client_kwargs.verify, AWS_CA_BUNDLE or config_kwargs.client_cert "
                    "names it."
                )

    def _is_encrypted(self) -> bool:
        return self._forms["ListObjectsV2"].url.startswith("https:")

    def call(
        self,
        operation: str,
        key: str = "",
        query: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> Reply:
        """Send one request; ``query`` must be sorted and quoted, as :func:`query_of` does.

        Raises ClientError for a refusal, KeysMissing if nothing was done since there are no keys
        that hold, and ConnectionError without a complete response. A request is sent again only
        if it was refused because the bucket is in another region, or since the credentials have
        been renewed: then it has had no effect.
        """
        target = operation, quote(key, safe="/~") + ("?" + query if query else "")
        for is_last in (False, True):
            form, keys = self._forms[operation], self._keys()
            try:
                return self._send(form, target, headers or {}, body, keys)
            except ClientError as error:
                if is_last or not self._is_mended(error, form, keys):
                    raise self._ended(error) or error from error
        raise AssertionError("unreachable")

    def _is_mended(self, error: ClientError, form: Form, used: Any) -> bool:
        """Return True if the region or the keys of the refused request were out of date.

        ``used`` are the keys that signed it; the credentials may have renewed themselves since.
        """
        metadata = error.response["ResponseMetadata"]
        region = metadata["HTTPHeaders"].get("x-amz-bucket-region")
        if metadata["HTTPStatusCode"] in _REDIRECTS and region and region != form.region:
            with self._lock:
                self._forms, self.endpoint_url = self._prepared(region)
            return True
        status = metadata["HTTPStatusCode"]
        # The response to a HEAD has no body to name the reason.
        is_expired = error.response["Error"]["Code"] in _EXPIRED | {str(status)}
        if status not in _DENIED_STATUS or not is_expired or used is None or self._settings.keys:
            return False
        with self._lock:
            if self._frozen() == used:
                self._credentials = self._supplied(
                    lambda: self._settings.credentials(self._settings.session())
                )
            renewed: bool = self._frozen() != used
            return renewed

    def _keys(self) -> Any:
        """Return the keys of now, None for anonymous requests; they are renewed before they end."""
        if self._settings.anonymous:
            return None
        if self._credentials is None:
            with self._lock:
                if self._credentials is None:
                    self._credentials = self._supplied(
                        lambda: self._settings.credentials(self._session)
                    )
            if self._credentials is None:
                raise KeysMissing(NoCredentialsError(), had_keys=self._has_worked)
        return self._frozen()

    def _may_renew(self) -> bool:
        """Return whether what supplies the keys may give others: no options, no environment."""
        return not self._settings.keys and getattr(self._credentials, "method", None) != "env"

    def _frozen(self) -> Any:
        found = self._credentials
        return found and self._supplied(found.get_frozen_credentials)

    def _supplied(self, supply: Callable[[], Any]) -> Any:
        """Return what a supplier of credentials gives.

        Its errors say nothing about the object: its service may answer 404, too.
        """
        with taken_failures() as failures:
            try:
                found = supply()
            except Exception as error:
                raise KeysMissing(error, had_keys=self._has_worked) from error
        if failures and found != self._last_of_supplier:
            self._last_of_supplier = found
            logger.warning(
                "%s: the supplier of credentials fails: %s. The present keys hold for some minutes "
                "and are used until then.",
                self.endpoint_url,
                failures[0],
                extra=log_fields("credentials"),
            )
        return found

    def _ended(self, error: ClientError) -> KeysMissing | None:
        """Return the error to raise instead of a refusal because the supplier is late."""
        is_late = error.response["Error"]["Code"] in _EXPIRED and self._has_worked
        return KeysMissing(error, had_keys=True) if is_late else None

    def _send(
        self,
        form: Form,
        target: tuple[str, str],
        headers: Mapping[str, str],
        body: bytes | memoryview,
        keys: Any,
    ) -> Reply:
        operation, url = target[0], form.url + target[1]
        request = AWSRequest(_METHODS[operation], url, headers={**form.headers, **headers})
        if operation in _WITH_DIGEST:
            digest = hashlib.md5(body, usedforsecurity=False).digest()
            request.headers["Content-MD5"] = base64.b64encode(digest).decode()
        if keys is not None:
            request.context["sha256"] = hashlib.sha256(body).hexdigest()
            _Signer(keys, "s3", form.region).add_auth(request)
        try:
            response = self._pool.request(
                request.method,
                url,
                body=body if request.method in _WITH_BODY else None,  # type: ignore[arg-type]
                headers=dict(request.headers.items()),
                retries=False,
                redirect=False,
                decode_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        self._silence.note_answer()
        if request.method in _ANSWERED_WITH_BODY and not has_length(response):
            raise ConnectionError("the response has no Content-Length, so it may be cut")
        self._note(response.headers.get("date", ""))
        if response.status not in _DENIED_STATUS and keys is not None and self._may_renew():
            self._has_worked = True
        if response.status >= 300:
            raise refused(operation, response.status, response.headers, response.data)
        if operation in _WITH_TAG and not response.headers.get("etag"):
            raise ConnectionError("the response has no ETag: a gateway answered, not the storage")
        return Reply(response.data, response.headers)

    def _note(self, date: str) -> None:
        storage_ms = header_date_ms(date)
        if storage_ms is not None:
            self.response_date = ResponseDate(
                storage_ms, time.time_ns() // 1_000_000, elapsed_seconds()
            )


class _Signer(S3SigV4Auth):  # type: ignore[misc]
    """Signs a request with the digest that is computed where the body is at hand."""

    def payload(self, request: AWSRequest) -> str:
        digest: str = request.context["sha256"]
        return digest


@functools.lru_cache(maxsize=16)
def header_date_ms(text: str) -> int | None:
    """Return a date of a header in ms since 1970; None if there is none."""
    try:
        return int(email.utils.parsedate_to_datetime(text).timestamp()) * 1_000
    except (TypeError, ValueError):
        return None


def date_ms(text: str) -> int:
    """Return a date of S3's XML in ms since 1970."""
    return round(iso_time(text).timestamp() * 1_000)


def query_of(**parameters: str) -> str:
    """Return a query that is sorted and quoted as a signature needs it."""
    return "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}"
        for name, value in sorted(parameters.items())
    )


def parse(data: bytes) -> ElementTree.Element:
    """Return an XML body as an element whose names have no name space."""
    root = ElementTree.fromstring(data)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def next_of(page: ElementTree.Element, name: str) -> str | None:
    """Return where the next page begins; None after the last; ConnectionError if it is not said."""
    if page.findtext("IsTruncated") != "true":
        return None
    token = page.findtext(name)
    if not token:
        raise ConnectionError(f"the response is truncated and has no {name}")
    return token


def refused(operation: str, status: int, headers: Mapping[str, str], data: bytes) -> ClientError:
    """Return botocore's error for a response whose body is ``<Error>`` or nothing."""
    found: dict[str, str] = {}
    try:
        if data:
            found = {item.tag: item.text or "" for item in parse(data)}
    except ElementTree.ParseError:
        found = {"Message": data[:200].decode(errors="replace")}
    metadata = {
        "HTTPStatusCode": status,
        "HTTPHeaders": {name.lower(): value for name, value in headers.items()},
        "RetryAttempts": 0,
    }
    described = {"Code": found.get("Code") or str(status), "Message": found.get("Message", "")}
    return ClientError({"Error": described, "ResponseMetadata": metadata}, operation)
