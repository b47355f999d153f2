"""What a failure of an fsspec driver means: by its HTTP status, its class, its errno, or its text.

Drivers raise their SDK's classes, which are known here by name: none of the SDKs is imported.
"""

from __future__ import annotations

import asyncio
import errno
import http.client

from pravega_spark.names import is_number

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


def is_denied(error: BaseException) -> bool:
    """Return True if the credentials, or their rights, were refused."""
    if isinstance(error, PermissionError) or _status(error) in _DENIED:
        return True
    return isinstance(error, OSError) and str(error).startswith("Forbidden: ")  # gcsfs says no more


def is_passing(error: BaseException) -> bool:
    """Return True if there was no answer, or one that asks to call again; also of a cause."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        status = _status(link)
        if status is not None:
            return status in _STATUS
        if _has_no_answer(link):
            return True
        link = link.__cause__ or link.__context__
    return False


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error carries under one of its usual names."""
    answer = getattr(error, "response", None)
    found = [getattr(error, name, None) for name in ("status_code", "status", "code")]
    for value in (*found, getattr(answer, "status_code", None)):
        if is_number(str(value)) and 100 <= int(str(value)) < 600:
            return int(str(value))
    return None


def _has_no_answer(error: BaseException) -> bool:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return False
    if isinstance(error, _NO_ANSWER):
        return True
    if any(kind.__name__ in _NO_ANSWER_NAMES for kind in type(error).__mro__):
        return True
    return isinstance(error, OSError) and error.errno in _NETWORK
