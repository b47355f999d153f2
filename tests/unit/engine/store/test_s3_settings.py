"""The storage options of S3: what each makes of a request, and which are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from fsspec.config import conf

from pravega_spark.engine.store import s3_settings as module
from pravega_spark.engine.store.client_options import TIMEOUTS
from pravega_spark.engine.store.s3_settings import Form, S3Settings, read_settings
from pravega_spark.errors import InvalidInput, InvalidOption
from pravega_spark.manager import StreamManager

VIRTUAL = {"addressing_style": "virtual"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def settings(bucket: str = "bucket", **options: Any) -> S3Settings:
    return read_settings(f"s3://{bucket}/r", bucket, options)


def forms(bucket: str = "bucket", **options: Any) -> Callable[[str], Form]:
    given = settings(bucket, **options)
    return given.forms(given.session(), None)[0]


def form(operation: str, bucket: str = "bucket", **options: Any) -> Form:
    return forms(bucket, **options)(operation)


@pytest.mark.parametrize(
    ("bucket", "options", "url", "region"),
    [
        ("b-b", {}, "https://b-b.s3.amazonaws.com/", "us-east-1"),
        (
            "b-b",
            {"client_kwargs": {"region_name": "eu-central-1"}},
            "https://b-b.s3.eu-central-1.amazonaws.com/",
            "eu-central-1",
        ),
        ("b.b", {"use_ssl": False}, "http://s3.amazonaws.com/b.b/", "us-east-1"),
        ("b", {"endpoint_url": "http://h:9000"}, "http://h:9000/b/", "us-east-1"),
        ("b", {"endpoint_url": "http://h:9000/up"}, "http://h:9000/up/b/", "us-east-1"),
        (
            "bbb",
            {
                "endpoint_url": "http://h:1",
                "config_kwargs": {"s3": {"addressing_style": "virtual"}},
            },
            "http://bbb.h:1/",
            "us-east-1",
        ),
        (
            "b-b",
            {"config_kwargs": {"s3": {"addressing_style": "path"}, "region_name": "eu-west-3"}},
            "https://s3.eu-west-3.amazonaws.com/b-b/",
            "eu-west-3",
        ),
        (
            "arn:aws:s3:us-west-2:123456789012:accesspoint/point",
            {},
            "https://point-123456789012.s3-accesspoint.us-west-2.amazonaws.com/",
            "us-west-2",
        ),
    ],
)
def test_address_and_region_are_those_of_botocore(
    bucket: str, options: dict[str, Any], url: str, region: str
) -> None:
    of_operation = forms(bucket, **options)
    found = of_operation("GetObject")
    assert (found.url, found.region) == (url, region)
    listing = of_operation("ListObjectsV2").url
    assert listing.rstrip("/") == url.rstrip("/")


def test_variables_of_the_environment_are_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://from-variable:1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    found = form("PutObject")
    assert (found.url, found.region) == ("http://from-variable:1/bucket/", "eu-north-1")
    assert form("PutObject", endpoint_url="http://given:2").url == "http://given:2/bucket/"


def test_encryption_and_payer_are_headers_of_the_operations_that_know_them() -> None:
    options: dict[str, Any] = {
        "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "id"},
        "requester_pays": True,
    }
    payer = {"x-amz-request-payer": "requester"}
    encrypted = {
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": "id",
    }
    found = forms(**options)
    for operation in ("PutObject", "CreateMultipartUpload"):
        assert found(operation).headers == payer | encrypted
    for operation in ("GetObject", "HeadObject", "ListObjectsV2", "UploadPart", "DeleteObjects"):
        assert found(operation).headers == payer
    own = {"SSECustomerKey": "k" * 32, "SSECustomerAlgorithm": "AES256"}
    found = forms(s3_additional_kwargs=own)
    for operation in ("PutObject", "GetObject", "HeadObject", "UploadPart"):
        assert len(found(operation).headers) == 3
    assert form("PutObject").headers == {}


@pytest.mark.parametrize(
    "options",
    [
        {"key": "k", "secret": "s", "token": "t"},
        {"username": "k", "password": "s", "token": "t"},
        {"client_kwargs": {"aws_access_key_id": "k", "aws_secret_access_key": "s",
                           "aws_session_token": "t"}},
    ],
)  # fmt: skip
def test_keys_have_the_names_of_s3fs_and_of_botocore(options: dict[str, Any]) -> None:
    found = settings(**options).credentials(botocore.session.Session())
    assert found.get_frozen_credentials()[:3] == ("k", "s", "t")


def test_profile_has_its_own_keys(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[other]\naws_access_key_id=a\naws_secret_access_key=b\n")
    given = settings(profile="other")
    assert given.credentials(given.session()).access_key == "a"
    assert settings().credentials(settings().session()) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"colour": 1}, r"colour is not known, .* Use anon, chunk_cache, client_kwargs"),
        ({"session": object()}, "session is not known"),
        ({"colour": 1}, "connect_timeout.* read_timeout.* retry_timeout"),
        ({"key": 5, "secret": "s"}, "key must be a text; got a value of type int"),
        ({"profile": 5}, "profile must be a text; got 5"),
        ({"read_timeout": 1e300}, "read_timeout must be at most 1 day"),
        ({"key": "k"}, "key and secret belong together"),
        ({"secret": "s"}, "key and secret belong together"),
        ({"client_kwargs": {"colour": 1}}, r"client_kwargs has colour\. Use endpoint_url"),
        ({"token": "t"}, "token has no effect without key and secret"),
        ({"anon": True, "key": "k", "secret": "s"}, "no effect with anon"),
        (
            {"config_kwargs": {"retries": {"max_attempts": 1}}},
            "retries is not known",
        ),
        ({"config_kwargs": {"request_checksum_calculation": "x"}}, "request_checksum_calculation"),
        ({"config_kwargs": {"s3": {"payload_signing_enabled": 1}}}, r"s3\.payload_signing_enabled"),
        ({"client_kwargs": "x"}, "client_kwargs must be a dict .* got a value of type str"),
        ({"s3_additional_kwargs": ["x"]}, "s3_additional_kwargs must be a dict"),
        ({"config_kwargs": {"colour": 1}}, "config_kwargs are invalid: .*colour"),
        ({"config_kwargs": 5}, "config_kwargs must be a dict"),
    ],
)
def test_wrong_option_is_refused_when_the_root_is_opened(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        settings(**options)


FLAGS = [
    *("anon", "requester_pays", "use_ssl", "client_kwargs.use_ssl"),
    *("config_kwargs.use_fips_endpoint", "config_kwargs.use_dualstack_endpoint"),
    *("config_kwargs.ignore_configured_endpoint_urls", "config_kwargs.s3.use_arn_region"),
    "config_kwargs.s3.use_accelerate_endpoint",
]
ENDPOINT = "a URL with its scheme and host, such as http://host:9000"
WRONG = [
    *((name, wrong, "True or False") for name in FLAGS for wrong in ("false", "no", 0)),
    *(("endpoint_url", wrong, ENDPOINT) for wrong in (5, "nohost", "h:9000", "http://", False)),
    *(("endpoint_url", wrong, ENDPOINT) for wrong in ("ftp://h", "http://h:x", "http://[h")),
    ("client_kwargs.endpoint_url", "nohost", ENDPOINT),
    ("client_kwargs.region_name", 5, "a text"),
    ("client_kwargs.verify", 5, "False, or the path"),
    ("config_kwargs.region_name", 5, "a text"),
    ("config_kwargs.signature_version", 5, "a text"),
    ("config_kwargs.client_cert", 5, "a path, or a tuple of two"),
    ("config_kwargs.max_pool_connections", "many", "a whole number of at least 1"),
    ("config_kwargs.s3", 5, "a dict"),
    ("config_kwargs.proxies", 5, "a dict"),
    ("client_kwargs", {1: 2}, "a dict from names to values, and a name is a text"),
]


@pytest.mark.parametrize(("name", "value", "right"), WRONG, ids=str)
def test_wrong_value_is_refused_with_its_option_the_value_and_a_right_one(
    name: str, value: object, right: str
) -> None:
    options: dict[str, Any] = {}
    *parents, last = name.split(".")
    place = options
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    with pytest.raises(InvalidInput) as raised:
        StreamManager("s3://bucket/r", storage_options=options)
    message = str(raised.value)
    assert message.startswith(f"s3://bucket/r: a storage option is invalid: {name} must be {right}")
    is_dict = right.startswith("a dict")
    assert (
        ("got the name 1" in message or "type int" in message)
        if is_dict
        else (message.endswith(f"; got {value!r}."))
    )


@pytest.mark.parametrize("name", ["secret", "token", "password", "client_kwargs"])
def test_wrong_value_that_may_be_secret_is_not_shown(name: str) -> None:
    with pytest.raises(
        InvalidInput, match=rf"{name} must be .* got a value of type bytes"
    ) as found:
        StreamManager("s3://bucket/r", storage_options={"key": "k", name: b"hidden"})
    assert "hidden" not in str(found.value)


def test_none_is_an_option_that_is_not_given() -> None:
    names = ("anon", "endpoint_url", "key", "profile", "requester_pays", "use_ssl")
    for options in (dict.fromkeys(names), {"client_kwargs": {"use_ssl": None}}):
        assert form("GetObject", **options) == form("GetObject")


def test_profile_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    given = StreamManager("s3://bucket/r", storage_options={"profile": "nope"})
    for call in (given.list_scopes, lambda: given.create_scope("s")):
        with pytest.raises(InvalidInput, match=r"the profile 'nope' .* Give profile=, or AWS_PRO"):
            call()
    monkeypatch.setenv("AWS_PROFILE", "gone")
    with pytest.raises(InvalidInput, match="the profile 'gone'"):
        StreamManager("s3://bucket/of-variable").list_scopes()


def test_profile_that_a_file_system_does_not_have_is_named() -> None:
    s3fs = pytest.importorskip("s3fs")
    files = s3fs.S3FileSystem(profile="nope", skip_instance_cache=True)
    given = StreamManager("s3://bucket/r", filesystem=files, storage_options={"retry_timeout": 0})
    for call in (given.list_scopes, lambda: given.create_scope("s")):
        with pytest.raises(InvalidInput, match="the profile 'nope'"):
            call()


def test_wrong_endpoint_of_the_environment_is_refused_with_the_way_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nohost")
    with pytest.raises(InvalidInput, match=r"nohost\. Check .* AWS_\* .* http://host:9000"):
        StreamManager("s3://bucket/wrong-variable").list_scopes()


@pytest.mark.parametrize(
    ("operation", "bucket", "options", "reason"),
    [
        ("PutObject", "b", {"s3_additional_kwargs": {"ServerSideEncryption": 5}}, "Invalid type"),
        ("PutObject", "b", {"s3_additional_kwargs": {"Colour": "red"}}, "Colour is not known"),
        ("PutObject", "b", {"s3_additional_kwargs": {"CacheControl": "x"}}, "or has no effect"),
        ("GetObject", "bbb--use1-az4--x-s3", {}, "S3 Express"),
    ],
)
def test_what_botocore_refuses_is_an_invalid_option(
    operation: str, bucket: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        form(operation, bucket, **options)


def test_options_of_s3fs_for_its_caches_are_refused_and_passed_over_where_fsspec_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own: dict[str, Any] = {"default_block_size": 1, "use_listings_cache": False, "loop": None}
    with pytest.raises(InvalidOption, match="default_block_size, loop, use_listings_cache is"):
        settings(**own)
    monkeypatch.setitem(conf, "s3", {**own, "use_ssl": False})
    assert form("GetObject").url.startswith("http://")
    monkeypatch.setitem(conf, "s3", {"colour": 1})
    with pytest.raises(InvalidOption, match="colour"):
        settings()


OPERATIONS = ("GetObject", "PutObject", "ListObjectsV2")
ACCESS_POINT = "arn:aws:s3:us-west-2:123456789012:accesspoint/point"
EFFECTS: list[tuple[str, dict[str, Any]]] = [
    ("b-b", {"anon": True}),
    ("b-b", {"client_kwargs": {"verify": False}}),
    ("b-b", {"client_kwargs": {"endpoint_url": "http://h:1"}}),
    ("b-b", {"client_kwargs": {"region_name": "eu-west-3"}}),
    ("b-b", {"client_kwargs": {"use_ssl": False}}),
    ("b-b", {"config_kwargs": {"client_cert": "/c.pem"}}),
    ("b-b", {"config_kwargs": {"connect_timeout": 1}}),
    ("b-b", {"config_kwargs": {"max_pool_connections": 500}}),
    ("b-b", {"config_kwargs": {"proxies": {"https": "http://h:1"}}}),
    ("b-b", {"config_kwargs": {"read_timeout": 1}}),
    ("b-b", {"config_kwargs": {"region_name": "eu-west-3"}}),
    ("b-b", {"config_kwargs": {"s3": {"addressing_style": "path"}}}),
    ("b-b", {"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}),
    ("b-b", {"config_kwargs": {"use_dualstack_endpoint": True}}),
    ("b-b", {"config_kwargs": {"use_fips_endpoint": True}}),
    ("b-b", {"connect_timeout": 1}),
    ("b-b", {"endpoint_url": "http://h:1"}),
    ("b-b", {"key": "k", "secret": "s"}),
    ("b-b", {"key": "k", "secret": "s", "token": "t"}),
    ("b-b", {"profile": "mine"}),
    ("b-b", {"read_timeout": 1}),
    ("b-b", {"requester_pays": True}),
    ("b-b", {"s3_additional_kwargs": {"StorageClass": "GLACIER_IR"}}),
    ("b-b", {"use_ssl": False}),
]


@pytest.mark.medium
@pytest.mark.parametrize(("bucket", "options"), EFFECTS, ids=str)
def test_option_has_an_effect(bucket: str, options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[profile mine]\nregion = eu-west-3\n")

    def made(**given: Any) -> object:
        found = settings(bucket, **given)
        session = found.session()
        config = {name: getattr(found.config, name) for name in CONFIG}
        verify = found.verify(session), found.anonymous, found.keys
        form = found.forms(session, None)[0]
        return [form(operation) for operation in OPERATIONS], config, verify

    assert made(**options) != made()


CONFIG = ("client_cert", "connect_timeout", "max_pool_connections", "proxies", "read_timeout")
"""What the client asks the configuration for, beside what becomes a request's form."""
OF_VALUES = {"ignore_configured_endpoint_urls", "signature_version"}
"""With an effect on what the environment says, and one that takes a single value."""


def test_each_option_that_is_not_refused_has_its_effect_tried() -> None:
    tried = {name for _, options in EFFECTS for name in options}
    assert tried == {*module._KNOWN, *TIMEOUTS}
    for name, known in (("client_kwargs", module._OF_CLIENT), ("config_kwargs", module._OF_CONFIG)):
        inner = {key for _, options in EFFECTS for key in options.get(name, {})}
        assert inner == known - OF_VALUES


def test_configured_endpoint_can_be_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://h:1")
    assert form("GetObject").url.startswith("http://h:1")
    ignoring = form("GetObject", config_kwargs={"ignore_configured_endpoint_urls": True})
    assert "amazonaws.com" in ignoring.url


def test_access_point_s_region_or_that_of_the_client() -> None:
    def region(**of_s3: Any) -> str:
        config = {"region_name": "eu-west-3", "s3": of_s3}
        return form("GetObject", ACCESS_POINT, config_kwargs=config).region

    assert region(use_arn_region=True) == "us-west-2"
    with pytest.raises(InvalidInput, match="region"):
        region(use_arn_region=False)


def test_endpoint_of_the_first_region_is_its_own_or_that_of_all() -> None:
    def url(which: str) -> str:
        given = {"region_name": "us-east-1", "s3": {"us_east_1_regional_endpoint": which}}
        return form("GetObject", "b-b", config_kwargs=given).url

    assert url("regional") == "https://b-b.s3.us-east-1.amazonaws.com/"
    assert url("legacy") == "https://b-b.s3.amazonaws.com/"
