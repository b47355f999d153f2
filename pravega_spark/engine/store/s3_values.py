"""The values of S3's storage options, checked before botocore takes a text for a flag, say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pravega_spark.errors import InvalidInput
from pravega_spark.values.checks import check_options, is_whole, shown


class _Kind(NamedTuple):
    name: str
    fits: Callable[[Any], bool]
    is_secret: bool = False


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_endpoint(value: object) -> bool:
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        found = parts and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of the port, or of brackets
        return False
    return value == "" or bool(found)


def _is_certificate(value: object) -> bool:
    pair = value if isinstance(value, tuple) and len(value) == 2 else (value,)
    return all(map(_is_text, pair))


_DICTS = frozenset(
    {"client_kwargs", "config_kwargs", "config_kwargs.proxies", "config_kwargs.s3",
     "s3_additional_kwargs"}
)  # fmt: skip
_FLAG = _Kind("True or False, not a text or a number", _is_flag)
_TEXT = _Kind("a text", _is_text)
_SECRET = _Kind("a text", _is_text, is_secret=True)
_ENDPOINT = _Kind("a URL with its scheme and host, such as http://host:9000", _is_endpoint)
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "username", "password")
_KINDS = {
    **dict.fromkeys(("anon", "requester_pays", "use_ssl", "client_kwargs.use_ssl"), _FLAG),
    "config_kwargs.ignore_configured_endpoint_urls": _FLAG,
    "config_kwargs.use_dualstack_endpoint": _FLAG,
    "config_kwargs.use_fips_endpoint": _FLAG,
    "config_kwargs.s3.use_accelerate_endpoint": _FLAG,
    "config_kwargs.s3.use_arn_region": _FLAG,
    **dict.fromkeys(("key", "secret", "token", *_KEYS), _SECRET),
    **dict.fromkeys((f"client_kwargs.{name}" for name in _KEYS), _SECRET),
    **dict.fromkeys(("endpoint_url", "client_kwargs.endpoint_url"), _ENDPOINT),
    **dict.fromkeys(("client_kwargs.region_name", "config_kwargs.region_name", "profile"), _TEXT),
    "config_kwargs.signature_version": _TEXT,
    "config_kwargs.client_cert": _Kind("a path, or a tuple of two", _is_certificate),
    "config_kwargs.max_pool_connections": _Kind(
        "a whole number of at least 1", lambda value: is_whole(value) and value > 0
    ),
    "client_kwargs.verify": _Kind(
        "False, or the path of a file of certificates", lambda v: _is_flag(v) or _is_text(v)
    ),
}


def check_values(url: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a value of another kind than its option; None is a default."""
    what = f"{url}: a storage option is invalid: "
    for name, value in _each(what, options):
        kind = _KINDS.get(name)
        if kind is not None and value is not None and not kind.fits(value):
            got = f"a value of type {type(value).__name__}" if kind.is_secret else shown(value)
            raise InvalidInput(f"{what}{name} must be {kind.name}; got {got}.")


def _each(what: str, options: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    for last, value in options.items():
        name = under + last
        if name in _DICTS:
            yield from _each(what, check_options(what + name, value), f"{name}.")
        else:
            yield name, value
