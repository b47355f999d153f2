"""Which failures of a driver may pass."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from pravega_spark.engine.store.generic import is_passing


class OfAnSdk(Exception):
    """An SDK's error with the HTTP status under one of the usual names."""

    def __init__(self, **fields: Any) -> None:
        super().__init__("of an SDK")
        self.__dict__.update(fields)


class ServiceRequestError(Exception):
    """What Azure's SDK raises without an answer."""


class Answer:
    status_code = 503


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        socket.gaierror(-3, "Temporary failure in name resolution"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        EOFError(),
        ServiceRequestError(),
        OfAnSdk(status_code=429),
        OfAnSdk(code=503),
        OfAnSdk(code="500"),
        OfAnSdk(status=502),
        OfAnSdk(response=Answer()),
        caused(OSError(errno.EIO, "wrapped"), ConnectionResetError()),
        caused(RuntimeError(), OfAnSdk(status_code=503)),
    ],
)
def test_failure_that_may_pass(error: Exception) -> None:
    assert is_passing(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(),
        PermissionError(),
        ValueError("503"),
        OSError(errno.EIO, "of unknown kind"),
        OSError(errno.ENOSPC, "No space left on device"),
        OfAnSdk(code=404),
        OfAnSdk(status_code=403),
        OfAnSdk(code="AccessDenied"),
        caused(OfAnSdk(status_code=403), ConnectionResetError()),
        ConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate"),
    ],
)
def test_failure_that_stays(error: Exception) -> None:
    assert not is_passing(error)
