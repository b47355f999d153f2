"""Errors as answers: a status and one JSON object, without traces."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.errors import (
    Damaged,
    IllegalState,
    InvalidInput,
    NotFound,
    PravegaSparkError,
    Reopen,
    RootChanged,
    ScopeNotEmpty,
    StoreError,
    StreamNotSealed,
    TooBusy,
    TruncatedData,
    TryAgain,
)
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.page_files import is_for_people, page

logger = own_logger(__name__)

_STATUS: Final[tuple[tuple[type[PravegaSparkError], int], ...]] = (
    (InvalidInput, 400),
    (NotFound, 404),
    (ScopeNotEmpty, 412),
    (StreamNotSealed, 412),
    (IllegalState, 409),
    (TooBusy, 503),
    (TryAgain, 409),
    (RootChanged, 503),
    (Reopen, 409),
    (TruncatedData, 410),
    (Damaged, 500),
    (StoreError, 503),
)
"""Pravega's statuses where it has one; the first class that fits decides."""


class Refused(HTTPException):
    """A request that is answered with a status and a type of its own."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        """Take what the answer says."""
        super().__init__(status, message)
        self.kind = kind


def problem(status: int, kind: str, message: str) -> JSONResponse:
    """Return an error as an answer: ``{"error": {"type": ..., "message": ...}}``."""
    return JSONResponse({"error": {"type": kind, "message": message}}, status)


def status_of(error: PravegaSparkError) -> int:
    """Return the status that stands for an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def add_handlers(app: FastAPI, root_url: str) -> None:
    """Make the application answer every error in the same form, with paths below the root."""
    app.add_exception_handler(PravegaSparkError, partial(_on_known, root_url))
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_unknown)


async def _on_known(root_url: str, request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PravegaSparkError)
    status = status_of(error)
    if status >= 500:
        logger.warning(
            "%s %s: %s: %s",
            *_place(request),
            type(error).__name__,
            error,
            extra=log_fields("answer"),
        )
    message = said(error, root_url)
    answer = problem(status, type(error).__name__, message)
    if status == 503:
        answer.headers["Retry-After"] = "5"
    return answer


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    texts = [f"{_where(found)}: {found['msg']}" for found in error.errors()[:5]]
    return problem(400, "InvalidInput", "; ".join(texts))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and is_for_people(request):
        return page(404)
    kind = error.kind if isinstance(error, Refused) else "HTTPError"
    answer = problem(error.status_code, kind, str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


async def _on_unknown(request: Request, error: Exception) -> JSONResponse:
    logger.error("%s %s failed", *_place(request), exc_info=error, extra=log_fields("answer"))
    return problem(500, "InternalError", "the server failed to answer; its log has the reason.")


def _place(request: Request) -> tuple[str, str]:
    return request.method, request.url.path


def _where(found: dict[str, Any]) -> str:
    return " ".join(map(str, found["loc"]))
