"""From a URL to a store: choose the back end; one store per root and process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from pravega_spark.engine.store.base import Store
from pravega_spark.engine.store.client_options import OWN
from pravega_spark.engine.store.root_url import RootUrl, filesystem_of
from pravega_spark.engine.store.store_cache import shared
from pravega_spark.errors import InvalidInput, InvalidOption, StoreRefused
from pravega_spark.values.package import install_extra

_SCHEME = re.compile(r"([^/]*?):/")
_S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
_HADOOP_SCHEMES = frozenset({"hdfs", "viewfs"})
_DISK_SCHEMES = frozenset({"file", "local"})
"""Of a local disk; ``local`` is fsspec's name, whose own driver creates nothing exclusively."""
_WITHOUT_TIMEOUTS = _DISK_SCHEMES | {"memory"}
_SERVER_SCHEMES = frozenset({"tcp", "tls", "pravega", "kafka", "pulsar"})
_ALIASES = {"abfss": "abfs"}
"""Schemes that a driver accepts although fsspec's table does not list them."""
_SERVER = re.compile(r"[\w.-]+:\d+([,/].*)?")
_WINDOWS = re.compile(r"[A-Za-z]:([\\/].*)?")
_NO_SERVER = (
    "names a server, but this package has none: a root is the storage of the events. Give a "
    "folder, or a URL such as s3://bucket/root"
)


def open_store(url: str | os.PathLike[str], **storage_options: Any) -> Store:
    """Return the store whose root is ``url``; the same object for the same call in a process.

    A path, ``file://`` or ``local://`` is a local disk, ``s3://`` (and ``s3a://``) S3 or a
    compatible server, ``memory://name`` this process's memory; any other URL that fsspec knows is
    usable if its driver has a native exclusive create and
    :func:`~pravega_spark.engine.store.probe.probe` accepts it. ``storage_options`` are those of
    s3fs, or of the driver of fsspec; for S3 the usual ``AWS_*`` variables are the defaults. Four
    of them are this package's: ``retry_timeout``, how long a call is repeated while the storage
    does not answer, and for S3 ``connect_timeout`` and ``read_timeout``, how long one attempt
    waits, each a duration such as ``"30 s"``, or a number of seconds; and ``chunk_cache``, the
    bytes of recent chunks that readers keep. A root whose URL has a file system is in that one,
    and takes ``retry_timeout`` and ``chunk_cache`` alone.

    Raises InvalidInput for anything but a path or URL; InvalidOption for an option that has no
    effect on this root; StoreRefused for storage that is unknown,
    cannot hold streams, or lacks its driver; StoreError if the driver needs its server
    to start and gets no answer. Reads and writes no object.
    """
    if isinstance(url, RootUrl):
        storage_options = {**url.timeouts, **storage_options}
    address = os.fspath(url) if isinstance(url, (str, os.PathLike)) else url
    if not isinstance(address, str):
        raise InvalidInput(f"a root is a path or a URL, got {url!r}.")
    given = filesystem_of(url)
    if given is not None:
        return _open_given(str(address), given, storage_options)
    return _open(str(address), storage_options)


def has_timeouts(url: str) -> bool:
    """Return whether the storage of a URL may not answer; a local disk always does."""
    match = _SCHEME.match(url)
    return match is not None and match[1].lower() not in _WITHOUT_TIMEOUTS


def is_s3(url: str) -> bool:
    """Return whether a URL names S3 or a compatible server."""
    match = _SCHEME.match(url)
    return match is not None and match[1].lower() in _S3_SCHEMES


def _open(address: str, options: dict[str, Any]) -> Store:
    if not address.strip() or "\0" in address or not _has_utf8(address):
        raise InvalidInput(
            f"{address!r} is not a valid root: give a path or a URL such as s3://bucket/root."
        )
    _refuse_what_is_no_storage(address)
    match = _SCHEME.match(address)
    scheme = match[1].lower() if match else "file"
    rest = address[match.end() :] if match else address
    if scheme in _DISK_SCHEMES:
        if match and rest.startswith("/") and not rest.startswith("//"):
            raise InvalidInput(
                f"{address!r} names a host or no path: write {scheme}:///path, with three slashes."
            )
        return _open_local(address, "/" + rest.lstrip("/") if match else rest, options)
    if not rest.startswith("/"):
        raise InvalidInput(f"{address!r} is not a valid URL: write {scheme}:// with two slashes.")
    rest = rest[1:].rstrip("/")
    if scheme in _S3_SCHEMES:
        return _open_s3(f"s3://{rest}", options)
    if scheme == "memory":
        return _open_memory(address, rest, options)
    if scheme in _HADOOP_SCHEMES:
        raise StoreRefused(
            f"{address} cannot hold streams: pyarrow offers no exclusive create on HDFS, and its "
            "rename replaces what exists. Use a local disk, S3, or another object store with "
            "conditional writes.",
            url=address,
        )
    scheme = _ALIASES.get(scheme, scheme)
    return _open_generic(scheme, f"{scheme}://{rest}", options)


def _refuse_what_is_no_storage(address: str) -> None:
    """Raise InvalidInput for common mistakes, such as a server's address."""
    scheme = address.partition(":/")[0].lower()
    if scheme in _SERVER_SCHEMES:
        raise InvalidInput(f"{address!r} {_NO_SERVER}.")
    if _SERVER.fullmatch(address):
        raise InvalidInput(f"{address!r} {_NO_SERVER}; a folder of this name is ./{address}.")
    if _WINDOWS.fullmatch(address):
        raise InvalidInput(
            f"{address!r} is a Windows path, which is not supported: use Linux (or WSL) or macOS "
            "and a path there, or a URL such as s3://bucket/root."
        )
    if scheme == "dbfs":
        raise InvalidInput(
            f"{address!r} is a Databricks path, and its file system cannot create a file "
            "exclusively: give the storage's own URL, such as s3://bucket/root or "
            "abfss://container@account.dfs.core.windows.net/root."
        )


def _has_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _open_local(address: str, path: str, options: dict[str, Any]) -> Store:
    from pravega_spark.engine.store.local import LocalStore

    _refuse_options(address, options)
    return shared(LocalStore, os.path.abspath(os.path.expanduser(path)))


def _open_memory(address: str, name: str, options: dict[str, Any]) -> Store:
    from pravega_spark.engine.store.memory import MemoryStore

    _refuse_options(address, options)
    return shared(MemoryStore.named, name)


def _open_s3(address: str, options: dict[str, Any]) -> Store:
    return _open_distant(_s3_client, address, options)


def _s3_client(url: str, options: dict[str, Any]) -> Store:
    try:
        from pravega_spark.engine.store.s3 import S3Store
    except ImportError as error:
        raise StoreRefused(
            f"{url} needs botocore ({error}): {install_extra('s3')}.", url=url
        ) from error
    return S3Store(url, options)


def _open_generic(scheme: str, address: str, options: dict[str, Any]) -> Store:
    from fsspec.registry import known_implementations, registry

    if scheme not in {*known_implementations, *registry}:
        raise StoreRefused(
            f"{address!r}: the scheme {scheme!r} is unknown. Use a path, file://, s3://, gs://, "
            "abfs://, memory://, or a URL of a driver of fsspec with an exclusive create.",
            url=address,
        )
    from pravega_spark.engine.store.filesystems import check_bucket
    from pravega_spark.engine.store.generic import GenericStore

    check_bucket(address, scheme, address.partition("://")[2])
    return _open_distant(GenericStore, address, options)


def _open_given(root: str, filesystem: Any, options: dict[str, Any]) -> Store:
    from pravega_spark.engine.store.filesystems import url_in
    from pravega_spark.engine.store.generic import GenericStore

    url = url_in(filesystem, root)
    if unknown := set(options) - OWN:
        raise InvalidOption(
            f"{url} is in a file system that was handed in, which has its own options: remove "
            f"{', '.join(sorted(unknown))}, or give it to the file system. Here only "
            f"{' and '.join(sorted(OWN))} have an effect."
        )
    return _open_distant(GenericStore, RootUrl(url, filesystem=filesystem), options)


def _open_distant(client: Callable[..., Store], address: str, options: dict[str, Any]) -> Store:
    from pravega_spark.engine.store.retrying_store import RetryingStore

    return shared(RetryingStore, client, address, options)


def _refuse_options(address: str, options: Mapping[str, Any]) -> None:
    if options:
        raise InvalidOption(
            f"{address} takes no storage options, got {', '.join(sorted(options))}."
        )
