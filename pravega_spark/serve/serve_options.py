"""The options of the web server, checked before it starts."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pravega_spark.errors import InvalidOption

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9091
"""The port of Pravega's REST API is 9091, too."""
MIN_TOKEN_LENGTH: Final = 16
MAX_VIEWERS: Final = 64
"""Open streams of live updates; each is a connection that a page keeps."""
MAX_ANSWERS: Final = MAX_VIEWERS + 64
"""Requests for data that are answered at the same time, live updates included."""
MAX_QUERY_BYTES: Final = 16_000
"""A cut of 500 segments, and the longest key of a table."""
MAX_BODY_BYTES: Final = 64 * 1_024
MAX_HEADER_BYTES: Final = 32 * 1_024
POLL_SECONDS: Final = 3.0
MIN_POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How long the server waits for a client, and for how many.

    A header ends within ``header_seconds`` of the connection, or of the last answer; a body within
    ``body_seconds`` of its header. A client reads at least 64 KiB of an answer in
    ``unread_seconds``, or its rest. Of more than ``connections`` the one ends that has waited for
    its client for the longest.
    """

    header_seconds: float = 10.0
    body_seconds: float = 10.0
    unread_seconds: float = 30.0
    connections: int = 512

    def __post_init__(self) -> None:
        """Refuse a limit that no client can keep."""
        for name in ("header_seconds", "body_seconds", "unread_seconds", "connections"):
            value = getattr(self, name)
            if not value > 0:
                raise InvalidOption(f"the limit {name} is {value}; it must be above 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Where the server listens, and what it allows; raises InvalidOption for unsafe combinations.

    ``allowed_hosts`` are names that a request may call this server by, beside its addresses and
    ``localhost``. ``poll_seconds`` is the pause between looks at the root while a page is open.
    With ``hide_events`` no payload and no routing key is shown. ``limits`` hold for connections.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    token: str | None = field(default=None, repr=False)
    allow_changes: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    poll_seconds: float = POLL_SECONDS
    hide_events: bool = False
    limits: ConnectionLimits = ConnectionLimits()

    def __post_init__(self) -> None:
        """Refuse what would be open to more than its user expects."""
        if self.token is not None and len(self.token) < MIN_TOKEN_LENGTH:
            raise InvalidOption(
                f"the token has {len(self.token)} characters; it needs at least "
                f"{MIN_TOKEN_LENGTH}. Make one with: python -c 'import secrets; "
                "print(secrets.token_urlsafe())'."
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise InvalidOption("the token must consist of printable ASCII characters.")
        if self.token is None and not is_loopback(self.host):
            raise InvalidOption(
                f"listening at {self.host} makes the root visible beyond this machine, which needs "
                "a token: give --token-file or the variable PRAVEGA_SPARK_SERVE_TOKEN, or listen "
                f"at {DEFAULT_HOST}."
            )
        if self.token is None and self.allow_changes:
            raise InvalidOption(
                "--allow-changes needs a token, so that no other program or web page of this "
                "machine can change the root: give --token-file or the variable "
                "PRAVEGA_SPARK_SERVE_TOKEN."
            )
        if not 0 <= self.port <= 65_535:
            raise InvalidOption(f"the port {self.port} is not between 0 and 65535.")
        if not self.poll_seconds >= MIN_POLL_SECONDS:
            raise InvalidOption(
                f"the poll interval {self.poll_seconds:g} s is below {MIN_POLL_SECONDS:g} s."
            )

    def accepts_token(self, given: str) -> bool:
        """Return whether a token is the server's, in a time that tells nothing about it."""
        assert self.token is not None, "asked for a token that the server does not have"
        ours, theirs = (hashlib.sha256(text.encode()).digest() for text in (self.token, given))
        return hmac.compare_digest(ours, theirs)

    def accepts_host(self, name: str) -> bool:
        """Return whether a request may call this server by a name.

        A page of another site can make a browser resolve that site's own name to this server (DNS
        rebinding). It cannot do so with an address, or with ``localhost``.
        """
        lowered = name.lower().rstrip(".")
        return lowered == "localhost" or _is_address(lowered) or lowered in self.allowed_hosts


def host_names(names: Iterable[str]) -> frozenset[str]:
    """Return names of hosts in lower case; raises InvalidOption for an invalid name."""
    found = {name.strip().lower().rstrip(".") for name in names}
    for name in found:
        if not name or any(not (c.isascii() and (c.isalnum() or c in ".-")) for c in name):
            raise InvalidOption(
                f"{name!r} is not the name of a host; write it as in a URL, without port, such as "
                "streams.example.org."
            )
    return frozenset(found)


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
