"""What every request passes first: the host it names, its size, its token, and its origin.

The server sets no cookie and reads none, so a browser adds nothing to a request of another site
that this server would trust. Changes are refused to other origins nevertheless.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pravega_spark.serve.serve_options import (
    MAX_ANSWERS,
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    MAX_QUERY_BYTES,
    ServeOptions,
)
from pravega_spark.serve.web_problems import problem

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN_PATHS: Final = frozenset({"/ping", "/v1/health/liveness", "/v1/health/readiness"})
"""Without a token, for probes: they tell whether the server works, and nothing of the root."""
_OPEN_PAGE: Final = "/api/docs"
_DATA_FOLDERS: Final = ("/v1/", "/api/", "/metrics")
"""All else is the page itself, which holds no data: what it shows it asks for with the token."""
_HEAD_FOLDERS: Final = ("/v1/", "/api/", "/metrics", "/ping")
"""What answers HEAD as GET, but for _LIVE."""
_LIVE: Final = "/api/live"
"""An answer that lasts as long as its page."""

SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class AccessGuard:
    """ASGI middleware: refuses what may not pass, and adds the security headers to all answers."""

    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self._app = app
        self._options = options
        self._answering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets: uvicorn refuses a connection that is not accepted

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                if scope["path"].startswith(_DATA_FOLDERS):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, send_guarded)
            return
        if scope["path"].startswith("/v1/") and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/")}  # as Pravega's command line asks
        path = scope["path"]
        if scope["method"] == "HEAD" and path.startswith(_HEAD_FOLDERS) and path != _LIVE:
            await self._answer({**scope, "method": "GET"}, receive, _without_body(send_guarded))
            return
        if scope["method"] in _READS:
            await self._answer(scope, receive, send_guarded)
            return
        body = await _read_body(receive)
        if body is None:
            await _too_large()(scope, receive, send_guarded)
        else:
            await self._answer(scope, _replayed(body, receive), send_guarded)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; of those for data not more than MAX_ANSWERS at the same time."""
        if scope["path"] in _OPEN_PATHS or not scope["path"].startswith(_DATA_FOLDERS):
            await self._app(scope, receive, send)
            return
        if self._answering >= MAX_ANSWERS:
            refused = problem(
                503, "TooBusy", f"the server answers {MAX_ANSWERS} requests; try again."
            )
            refused.headers["Retry-After"] = "5"
            await refused(scope, receive, send)
            return
        self._answering += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._answering -= 1

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers, method, options = Headers(scope=scope), scope["method"], self._options
        if _is_framed_twice(scope["http_version"], headers):
            return _framed_twice()
        named = headers.getlist("host")
        host = _host_name(named[0]) if len(named) == 1 else None
        if host is None or not options.accepts_host(host):
            shown = host or "nothing readable"
            return problem(
                421,
                "UnknownHost",
                f"this server is not known as {shown!r}; start it with --allowed-host NAME to use "
                "it by a name.",
            )
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            return problem(431, "TooLong", f"a header block has at most {MAX_HEADER_BYTES} bytes.")
        if len(scope["query_string"]) > MAX_QUERY_BYTES:
            return problem(414, "TooLong", f"a query has at most {MAX_QUERY_BYTES} bytes.")
        if _is_over(headers.get("content-length"), MAX_BODY_BYTES):
            return _too_large()
        if method not in _READS:
            refused = self._refused_change(headers, host)
            if refused is not None:
                return refused
        if options.token is not None and not _is_open(scope["path"], method):
            return self._refused_token(headers.get("authorization"))
        return None

    def _refused_change(self, headers: Headers, host: str) -> JSONResponse | None:
        if not self._options.allow_changes:
            return problem(
                403,
                "ReadOnly",
                "this server only reads; start it with --allow-changes and a token to let it "
                "create, update, seal and delete.",
            )
        origin = headers.get("origin")
        is_foreign = origin is not None and not _is_same_origin(origin, headers["host"])
        if is_foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return problem(
                403, "ForeignOrigin", f"a page of another site may not change the root at {host}."
            )
        return None

    def _refused_token(self, authorization: str | None) -> JSONResponse | None:
        given = _token_of(authorization or "")
        if given is not None and self._options.accepts_token(given):
            return None
        refused = problem(
            401,
            "Unauthorized",
            "this server needs its token: send the header 'Authorization: Bearer TOKEN'.",
        )
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused


def _is_open(path: str, method: str) -> bool:
    if method not in _READS:
        return False
    return path in _OPEN_PATHS or path == _OPEN_PAGE or not path.startswith(_DATA_FOLDERS)


def _token_of(authorization: str) -> str | None:
    """Return the token of a header: of ``Bearer``, or the password of ``Basic``.

    Pravega's clients know no other way than Basic. Browsers are never asked for one.
    """
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


def _host_name(header: str) -> str | None:
    """Return the name or address in a ``Host`` header, without its port."""
    try:
        found = urlsplit(f"//{header}")
        _ = found.port
    except ValueError:
        return None
    return found.hostname if found.netloc == header and "@" not in header else None


def _is_same_origin(origin: str, host: str) -> bool:
    return urlsplit(origin).netloc.lower() == host.lower()


def _is_framed_twice(http_version: str, headers: Headers) -> bool:
    """Return whether a proxy may see another end of the body than this server does."""
    is_old = http_version < "1.1"
    return "transfer-encoding" in headers and (is_old or "content-length" in headers)


def _framed_twice() -> JSONResponse:
    refused = problem(
        400,
        "InvalidInput",
        "a request has a Content-Length or, from HTTP/1.1 on, a Transfer-Encoding.",
    )
    refused.headers["Connection"] = "close"  # what follows may be no request of this client
    return refused


def _is_over(length: str | None, limit: int) -> bool:
    return length is not None and (not length.isdigit() or int(length[:20]) > limit)


def _too_large() -> JSONResponse:
    return problem(413, "TooLarge", f"a body has at most {MAX_BODY_BYTES} bytes.")


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body of a request, which may come in parts; None once it is too long."""
    body = b""
    while True:
        message = await receive()
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > MAX_BODY_BYTES:
            return None
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return body


def _without_body(send: Send) -> Send:
    """Return a ``send`` that passes the headers of an answer, and of its body nothing."""

    async def send_headers(message: Message) -> None:
        is_body = message["type"] == "http.response.body"
        await send({**message, "body": b""} if is_body else message)

    return send_headers


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that returns the body once, and then what the client does."""
    waiting = [body]

    async def receive_again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return receive_again
