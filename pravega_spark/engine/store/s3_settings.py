"""The storage options of S3: those of ``s3fs.S3FileSystem``, and what botocore makes of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import botocore.loaders
import botocore.session
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, MissingDependencyException
from fsspec.config import conf

from pravega_spark.engine.store.client_options import OWN, TIMEOUTS, with_timeouts
from pravega_spark.engine.store.s3_values import check_values
from pravega_spark.errors import InvalidInput, InvalidOption

_KEYS = {
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "username": "key",
    "password": "secret",
}
"""Other names of three options."""
_KNOWN = frozenset(
    {"anon", "client_kwargs", "config_kwargs", "endpoint_url", "key", "profile", "requester_pays",
     "s3_additional_kwargs", "secret", "token", "use_ssl"}
)  # fmt: skip
_OF_S3FS = frozenset(
    {"asynchronous", "cache_regions", "default_block_size", "default_cache_type",
     "default_fill_cache", "fixed_upload_size", "listings_expiry_time", "local_expiry_check",
     "loop", "max_concurrency", "max_paths", "skip_instance_cache", "use_listings_cache",
     "version_aware"}
)  # fmt: skip
"""Options of s3fs for caches and threads, which this store has not: passed over where fsspec's own
configuration has them, which is also that of s3fs, and refused where they are given."""
_ANY_KEY = "k"
_ANY_ARGUMENTS: Mapping[str, Any] = {
    "Key": _ANY_KEY,
    "UploadId": "u",
    "PartNumber": 1,
    "Delete": {"Objects": [{"Key": _ANY_KEY}]},
}
_WITH_OPTIONS = ("GetObject", "ListObjectsV2", "PutObject")
"""Operations to which ``s3_additional_kwargs`` may belong."""
_OF_BODY = ("x-amz-checksum", "x-amz-content", "x-amz-decoded", "x-amz-sdk", "x-amz-trailer")
"""Headers that botocore computes from the body of a request."""
_OF_CLIENT = frozenset({"endpoint_url", "region_name", "use_ssl", "verify"})
_OF_CONFIG = frozenset(
    {"client_cert", "connect_timeout", "ignore_configured_endpoint_urls", "max_pool_connections",
     "proxies", "read_timeout", "region_name", "s3", "signature_version", "use_dualstack_endpoint",
     "use_fips_endpoint"}
)  # fmt: skip
_OF_CONFIG_S3 = frozenset(
    {"addressing_style", "us_east_1_regional_endpoint", "use_accelerate_endpoint", "use_arn_region"}
)
"""Of ``config_kwargs``, and of its ``s3``, what this store asks botocore's configuration for."""


_FIXED_CONFIG = {
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
"""The signature covers the body of each request; chunks and logs have digests."""


class _Found(Exception):
    """Ends a call of botocore before it is sent."""


@dataclass(frozen=True, slots=True)
class Form:
    """Where and how botocore sends one operation: for an object, to ``url`` and its name."""

    url: str
    headers: Mapping[str, str]
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Checked storage options, still without a connection."""

    bucket: str
    anonymous: bool
    profile: str | None
    keys: tuple[str, str, str | None] | None
    additional: Mapping[str, Any]
    client: Mapping[str, Any]
    config: Config

    @property
    def timeouts(self) -> tuple[float, float]:
        """Seconds to wait for a connection, and for the next bytes of an answer."""
        return self.config.connect_timeout, self.config.read_timeout

    def session(self) -> botocore.session.Session:
        """Return a new session, which reads the ``AWS_*`` variables and files of now."""
        session = botocore.session.Session(profile=self.profile)
        session.register_component("data_loader", _descriptions())
        return session

    def credentials(self, session: botocore.session.Session) -> Any:
        """Return the credentials, which may renew themselves; None if there are none."""
        return Credentials(*self.keys) if self.keys else session.get_credentials()

    def verify(self, session: botocore.session.Session) -> Any:
        """Return the file of certificates to trust, True for the usual ones, False for all."""
        given = self.client.get("verify")
        return given if given is not None else session.get_config_variable("ca_bundle") or True

    def forms(
        self, session: botocore.session.Session, region: str | None
    ) -> tuple[Callable[[str], Form], str]:
        """Return what tells the form of an operation such as ``PutObject``, and the endpoint.

        botocore prepares a call and is stopped before it signs: its rules for endpoints,
        addressing styles, regions and encryption hold here without a copy of them.
        """
        of_client = dict(self.client)
        if region is not None:
            of_client["region_name"] = region
        arguments = {"Bucket": self.bucket, **_ANY_ARGUMENTS, **self.additional}
        # Not the user's credentials: loading them may be a request, and the call is not sent.
        client = session.create_client(
            "s3",
            config=self.config,
            aws_access_key_id="none",
            aws_secret_access_key="none",
            **of_client,
        )

        def stop(request: Any, region_name: str, **_: Any) -> None:
            raise _Found(request, region_name)

        client.meta.events.register("before-sign.s3", stop)
        model = client.meta.service_model
        shapes = [model.operation_model(operation).input_shape for operation in _WITH_OPTIONS]
        unknown = set(self.additional).difference(*map(_additional_names, shapes))
        if unknown:
            raise InvalidOption(
                "a storage option is invalid: in s3_additional_kwargs, "
                f"{', '.join(sorted(unknown))} is not known, or has no effect. Use what PutObject, "
                "GetObject and ListObjectsV2 send as a header x-amz-..., such as "
                "ServerSideEncryption, SSEKMSKeyId or StorageClass."
            )
        methods = {operation: name for name, operation in client.meta.method_to_api_mapping.items()}

        def form(operation: str) -> Form:
            members = model.operation_model(operation).input_shape.members
            given = {name: value for name, value in arguments.items() if name in members}
            try:
                getattr(client, methods[operation])(**given)
            except _Found as found:
                return _form(*found.args, is_object="Key" in members)
            except MissingDependencyException as error:  # for the signature of many regions
                raise _of_one_region(self.bucket) from error
            except BotoCoreError as error:
                raise InvalidInput(f"a storage option is invalid: {error}.") from error
            raise AssertionError("botocore has sent a call without signing it")

        return form, str(client.meta.endpoint_url)


@functools.cache
def _descriptions() -> Any:
    """Return botocore's loader, which keeps the descriptions of S3 that it has read.

    Without it each store reads them anew, most of the time that it takes to open one.
    """
    return botocore.loaders.create_loader()


def _of_one_region(named: str) -> InvalidInput:
    return InvalidInput(
        f"{named}: buckets of S3 Express and multi-region access points are not supported. Name "
        "a bucket of one region."
    )


def _additional_names(shape: Any) -> set[str]:
    """Return the parameters of an operation that become a header which :func:`_form` keeps."""
    headers = {
        name: str(member.serialization.get("name", "")).lower()
        for name, member in shape.members.items()
    }
    return {name for name, header in headers.items() if _is_kept(header)}


def _is_kept(header: str) -> bool:
    return header.startswith("x-amz-") and not header.startswith(_OF_BODY)


def _form(request: Any, region: str, *, is_object: bool) -> Form:
    signing = request.context.get("signing", {})
    if request.context.get("auth_type", "v4") not in ("v4", "s3v4"):
        raise _of_one_region(request.url.partition("?")[0].removesuffix(_ANY_KEY))
    kept = {name: value for name, value in request.headers.items() if _is_kept(name.lower())}
    url = request.url.partition("?")[0]
    return Form(
        url.removesuffix(_ANY_KEY) if is_object else url, kept, signing.get("region") or region
    )


def read_settings(url: str, bucket: str, options: Mapping[str, Any]) -> S3Settings:
    """Return the settings of the storage options of ``url``.

    Defaults of fsspec's own configuration for ``s3`` hold as well. Raises InvalidOption for one
    that has no effect, and InvalidInput for a wrong value.
    """
    defaults = {name: v for name, v in conf.get("s3", {}).items() if name not in _OF_S3FS}
    named = {**defaults, **options}
    unknown = set(named) - _KNOWN - TIMEOUTS - set(_KEYS)
    if unknown:
        raise InvalidOption(
            f"{url}: a storage option is invalid: {', '.join(sorted(unknown))} is not known, or "
            f"has no effect. Use {', '.join(sorted(_KNOWN | TIMEOUTS | OWN))}; or "
            "make an s3fs.S3FileSystem, and give it to StreamManager as filesystem=."
        )
    check_values(url, named)
    given = {name: value for name, value in with_timeouts(named).items() if value is not None}
    client = {n: value for n, value in given.get("client_kwargs", {}).items() if value is not None}
    for old, name in _KEYS.items():
        for source in (given, client):
            if source.get(old) is not None:
                given.setdefault(name, source[old])
            source.pop(old, None)
    wrong = set(client) - _OF_CLIENT
    if wrong:
        raise InvalidOption(
            f"{url}: a storage option is invalid: client_kwargs has {', '.join(sorted(wrong))}. "
            f"Use {', '.join(sorted(_OF_CLIENT))}."
        )
    if given.get("endpoint_url"):
        client["endpoint_url"] = given["endpoint_url"]
    client.setdefault("use_ssl", given.get("use_ssl", True))
    key, secret, token = (given.get(name) or None for name in ("key", "secret", "token"))
    if (key is None) != (secret is None):
        raise InvalidInput(f"{url}: key and secret belong together: give both, or none.")
    if token is not None and key is None:
        raise InvalidOption(f"{url}: token has no effect without key and secret: give them, too.")
    if given.get("anon") and key is not None:
        raise InvalidOption(f"{url}: key and secret have no effect with anon: give one of both.")
    additional = dict(given.get("s3_additional_kwargs", {}))
    if given.get("requester_pays"):
        additional["RequestPayer"] = "requester"
    return S3Settings(
        bucket=bucket,
        anonymous=bool(given.get("anon")),
        profile=given.get("profile"),
        keys=(key, secret, token) if key and secret else None,
        additional=additional,
        client=client,
        config=_config(url, given["config_kwargs"]),
    )


def _config(url: str, given: Mapping[str, Any]) -> Config:
    of_s3 = given.get("s3") or {}
    wrong = set(given) - _OF_CONFIG | {f"s3.{name}" for name in set(of_s3) - _OF_CONFIG_S3}
    if wrong:
        raise InvalidOption(
            f"{url}: config_kwargs are invalid: {', '.join(sorted(wrong))} is not known, or has no "
            f"effect. Use {', '.join(sorted(_OF_CONFIG))}, and in s3 "
            f"{', '.join(sorted(_OF_CONFIG_S3))}."
        )
    try:
        return Config(**{**given, **_FIXED_CONFIG})
    except (TypeError, ValueError, BotoCoreError) as error:
        raise InvalidInput(f"{url}: config_kwargs are invalid: {error}.") from error
