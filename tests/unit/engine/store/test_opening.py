"""URLs and their stores, and the errors of URLs that open none."""

from __future__ import annotations

import builtins
import ftplib
import os
import pickle
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.retrying_store import RetryingStore
from pravega_spark.engine.store.s3 import S3Store
from pravega_spark.errors import InvalidInput, InvalidOption, StoreError, StoreRefused
from pravega_spark.manager import StreamManager


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "FILE://", "local://"])
def test_paths_and_file_urls_are_one_local_store(tmp_path: Path, prefix: str) -> None:
    store = open_store(f"{prefix}{tmp_path}/root/")
    assert store is open_store(tmp_path / "root")
    assert isinstance(store, LocalStore)
    assert store.is_local
    assert store.url == f"file://{tmp_path}/root"


def test_local_is_another_name_of_file_and_takes_no_options(tmp_path: Path) -> None:
    assert open_store(f"local://{tmp_path}") is open_store(tmp_path)
    with pytest.raises(InvalidOption, match="takes no storage options, got auto_mkdir"):
        open_store(f"local://{tmp_path}", auto_mkdir=False)


def test_relative_and_home_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("root") is open_store("~/root") is open_store(tmp_path / "root")


@pytest.mark.parametrize("url", ["s3://b/r", "s3a://b/r", "s3n://b/r/", "s3://b/r//"])
def test_s3_urls_have_one_form_and_open_no_connection(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, RetryingStore)
    assert isinstance(store.inner, S3Store)
    assert store.url == "s3://b/r"
    assert not store.is_local
    assert store.inner._connections == {}
    assert open_store("s3://b").url == "s3://b"


def test_named_memory_is_kept() -> None:
    open_store("memory://opening-test").put("key", b"1")
    assert open_store("memory://opening-test/").get("key") == b"1"
    assert open_store("memory://opening-test/other").list("") == []
    private = MemoryStore()
    assert pickle.loads(pickle.dumps(private)) is private
    assert private is not MemoryStore()


def test_named_memory_uses_the_time_of_day(tmp_path: Path) -> None:
    """Otherwise leases would expire by the number of writes."""
    store = open_store(f"memory://{tmp_path.name}")
    for _ in range(3):
        store.put("x", b"")
    (entry,) = store.list("")
    assert 0 <= time.time() * 1_000 - entry.modified_ms < 60_000


@pytest.mark.parametrize("url", ["hdfs://namenode:8020/x", "viewfs://cluster/x", "HDFS://n/x"])
def test_hdfs_is_refused_with_the_reason(url: str) -> None:
    with pytest.raises(StoreRefused, match=r"no exclusive create.* rename replaces"):
        open_store(url)


@pytest.mark.parametrize("url", ["foo://x", "simplecache::s3://b/x", "://x", "s3fs+x://b"])
def test_unknown_scheme_is_named_with_those_that_hold_streams(url: str) -> None:
    with pytest.raises(StoreRefused, match=r"scheme '.*file://, s3://, gs://, abfs://, mem") as it:
        open_store(url)
    assert "a driver of fsspec with an exclusive create" in str(it.value)
    assert "github" not in str(it.value)


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(-2, "Name or service not known"),
        IsADirectoryError(21, "Is a directory"),
        AttributeError("'NoneType' object has no attribute 'startswith'"),
        ftplib.error_perm("530 Login incorrect"),
    ],
)
def test_driver_that_cannot_be_created_is_a_store_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr("pravega_spark.engine.store.filesystems.url_to_fs", fail)
    with pytest.raises(StoreError, match=r"^ftp://unknown/x cannot be reached: ") as raised:
        open_store("ftp://unknown/x")
    assert f"{type(error).__name__}: {error}. Check the URL, the network" in str(raised.value)
    assert "name another root" in str(raised.value)
    assert raised.value.__cause__ is error


def test_server_that_refuses_the_connection_is_a_store_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"ftp://127.0.0.1:{listener.getsockname()[1]}/x"
        with pytest.raises(StoreError, match=rf"^{url} cannot be reached: ConnectionRefusedError"):
            open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
        "\t\n",
        "s3://",
        "s3:///x",
        "gs://",
        "abfs://",
        "s3:/b/x",
        "a\0b",
        "s3://b/../c",
        "file://",
        "file://host/x",
    ],
)
def test_invalid_root_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(url)


@pytest.mark.parametrize(
    ("root", "advice"),
    [
        ("localhost:9092", r"names a server.* a folder of this name is \./localhost:9092"),
        ("a.example:9092,b.example:9092", "names a server, but this package has none"),
        ("tcp://localhost:9090", r"names a server.* Give a folder, or a URL such as s3://"),
        (r"C:\data", r"is a Windows path.* WSL"),
        ("c:/data", "is a Windows path"),
        ("dbfs:/root", "is a Databricks path.* abfss://container@account"),
        ("dbfs://root", "is a Databricks path"),
        ("s3://my bucket/root", "'my bucket' is not a valid bucket name: use 3 to 63"),
    ],
)
def test_root_that_is_no_storage_is_refused_with_advice(root: str, advice: str) -> None:
    with pytest.raises(InvalidInput, match=advice):
        open_store(root)


@pytest.mark.parametrize("bucket", ["Bad_Bucket", "ab", "-a-b", "x" * 64])
def test_bucket_name_that_aws_forbids_is_invalid_there_and_allowed_elsewhere(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    options: dict[str, Any] = {"key": "k", "secret": "s", "skip_instance_cache": True}
    del options["skip_instance_cache"]
    with pytest.raises(InvalidInput, match=f"'{bucket}' is not a valid bucket name"):
        open_store(f"s3://{bucket}/x", **options).exists("a")
    alike = open_store(f"s3://{bucket}/x", endpoint_url="http://127.0.0.1:9", **options)
    assert bucket in alike.storage  # makes a client without a request


def test_folder_with_the_name_of_a_server_is_opened_by_an_explicit_path(tmp_path: Path) -> None:
    assert open_store(f"{tmp_path}/localhost:9092").is_local
    assert open_store("./localhost:9092").url.endswith("/localhost:9092")


def test_azure_by_its_second_scheme_is_the_same_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)  # as if it were not installed
    with pytest.raises(StoreRefused, match=r"^abfs://c@a\.dfs\.core\.windows\.net/x needs .*azure"):
        open_store("abfss://c@a.dfs.core.windows.net/x")


@pytest.mark.parametrize("url", ["http://h/x", "https://h/x"])
def test_url_of_a_driver_without_an_exclusive_create_is_refused(url: str) -> None:
    pytest.importorskip("aiohttp")
    with pytest.raises(StoreRefused, match=r"HTTPFileSystem has no native .* Use a path"):
        open_store(url)


@pytest.mark.parametrize("url", ["/some/path", "memory://x"])
def test_unused_options_are_invalid(url: str) -> None:
    with pytest.raises(InvalidInput, match="takes no storage options, got key, secret"):
        open_store(url, secret="s", key="k")


@pytest.mark.parametrize(
    "options", [{"client_kwargs": 5}, {"no_such_option": 1}, {"endpoint_url": "no url"}]
)
def test_invalid_s3_option_is_refused_by_the_first_call(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="s3://b/x: a storage option is invalid"):
        open_store("s3://b/x", **options).exists("key")


@pytest.mark.parametrize(
    "bucket", ["b--usw2-az1--x-s3", "arn:aws:s3::123456789012:accesspoint:mfzwi23gnjvgw.mrap"]
)
def test_bucket_that_is_signed_for_differently_is_refused_by_the_first_call(bucket: str) -> None:
    options = {"key": "k", "secret": "s", "client_kwargs": {"region_name": "us-west-2"}}
    with pytest.raises(InvalidInput, match=r"^s3://.* S3 Express and multi-region .* one region"):
        StreamManager(f"s3://{bucket}/x", storage_options=options).list_scopes()


def test_missing_driver_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **options: Any) -> Any:
        if name.partition(".")[0] in ("botocore", "gcsfs", "boxfs"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *more, **options)

    for name in [name for name in sys.modules if name.startswith("pravega_spark.engine.store.s3")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StoreRefused, match=r"pip install 'pravega-spark\[s3\]'"):
        open_store("s3://b/x")
    with pytest.raises(StoreRefused, match=r"^gs://b/x needs .*: .*pip install '.*\[gcs\]'") as it:
        open_store("gs://b/x")
    assert str(it.value).lower().count("install ") == 1
    with pytest.raises(StoreRefused, match=r"driver is missing: .* Install it"):
        open_store("box://b/x")


def test_explicit_options_are_pickled_and_not_shown() -> None:
    options = {"key": "k", "secret": "hidden", "client_kwargs": {"region_name": "eu-1"}}
    store = open_store("s3://b/options", **options)
    assert pickle.loads(pickle.dumps(store)) is store
    assert "hidden" not in repr(store) + str(store) + store.url
    other = options | {"client_kwargs": {"region_name": "eu-2"}}
    assert open_store("s3://b/options", **other) is not store


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_child_process_opens_its_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("s3://b/fork")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert open_store("s3://b/fork") is not store


@pytest.mark.parametrize(
    "options",
    [
        {"client_kwargs": {"verify": "/no/such.pem"}},
        {"config_kwargs": {"client_cert": "/no/such.pem"}},
        {"config_kwargs": {"client_cert": (__file__, "/no/such.pem")}},
    ],
)
def test_missing_file_of_certificates_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"s3://b: the file of certificates /no/such\.pem does"):
        StreamManager(
            "s3://b/r", storage_options={"key": "k", "secret": "s", **options}
        ).create_scope("s")
