"""File systems of fsspec: of a URL and options, or like one that was handed in; which are refused.

A store makes its own in each process, without a cache of listings: they do not survive a fork, and
what was listed once says nothing about now.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.spec import AbstractFileSystem

from pravega_spark.engine.store.client_options import OWN
from pravega_spark.errors import InvalidInput, InvalidOption, StoreError, StoreRefused
from pravega_spark.values.package import install_extra

_OF_LOOP = frozenset({"asynchronous", "loop"})
_WITHOUT_EFFECT = _OF_LOOP | {
    *("cache_timeout", "listings_expiry_time", "max_paths", "use_listings_cache"),
    *("skip_instance_cache", "secure_serialize", "socket_timeout"),
}
"""Options for caches and loops, which the store decides, and two that drivers no longer heed."""
_FRESH = {"skip_instance_cache": True, "use_listings_cache": False}
_UNABLE = (NotImplementedError, TypeError, ValueError)
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "abfs": "azure", "az": "azure"}
"""The extra that has the driver of a scheme."""
_WITH_BUCKETS = frozenset({"s3", "s3a", *_EXTRAS})
OTHER_STORAGE = (
    "Use a path or file:// for a local disk, memory://name for the memory of a process, S3, or "
    "another store with conditional writes."
)
"""What to use instead of a driver without an exclusive create."""


def filesystem_at(url: str, options: Mapping[str, Any]) -> tuple[AbstractFileSystem, str]:
    """Return the driver of a URL, and the root's path in it.

    Some drivers connect to their server for that. Raises StoreRefused for a driver that is missing
    or has no exclusive create, InvalidOption for an option that it does not name, InvalidInput for
    values that it does not accept, and StoreError if its server cannot be reached.
    """
    scheme = url.partition("://")[0]
    try:
        names = option_names(fsspec.get_filesystem_class(scheme))
        if unknown := set(options) - names:
            raise unknown_option(url, unknown, names)
        fs, path = url_to_fs(url, **{**options, **_FRESH})
    except ImportError as error:
        if scheme in _EXTRAS:
            raise StoreRefused(
                f"{url} needs its driver ({error.__cause__ or error}): "
                f"{install_extra(_EXTRAS[scheme])}.",
                url=url,
            ) from error
        raise StoreRefused(
            f"{url}: its driver is missing: {error}. Install it, or name another root.", url=url
        ) from error
    except InvalidOption:
        raise
    except _UNABLE as error:
        raise InvalidInput(
            f"{url} cannot be opened: {error}. Check the URL and the storage options."
        ) from error
    except Exception as error:  # drivers raise the errors of their SDK or of the network
        raise StoreError(
            f"{url} cannot be reached: {type(error).__name__}: {error}. Check the URL, "
            "the network and the credentials, or name another root.",
            url=url,
        ) from error
    _refuse_without_create(fs, url)
    return fs, path


def option_names(driver: type) -> set[str]:
    """Return the options that a driver's constructor, or one it is derived from, names.

    Others vanish in most drivers without a word.
    """
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = {
        name
        for each in driver.__mro__
        if each is not object and "__init__" in vars(each)
        for name, parameter in inspect.signature(vars(each)["__init__"]).parameters.items()
        if parameter.kind in named
    }
    return found - {"self"} - _WITHOUT_EFFECT


def unknown_option(url: str, unknown: set[str], known: set[str]) -> InvalidOption:
    """Return the error for storage options that would have no effect."""
    return InvalidOption(
        f"{url}: a storage option is invalid: {', '.join(sorted(unknown))} is not known, or has no "
        f"effect. Use {', '.join(sorted(known | OWN))}; or make the file system "
        "yourself, and give it to StreamManager as filesystem=."
    )


def check_bucket(root: str, scheme: str, path: str) -> None:
    """Raise InvalidInput for a root without a bucket on a storage that has buckets."""
    if scheme in _WITH_BUCKETS and not path.strip("/"):
        raise InvalidInput(f"{root!r} names no bucket: write {scheme}://bucket/folder.")


def url_in(filesystem: object, root: str) -> str:
    """Return the URL of a root in a file system that is handed in; ask no storage.

    Raises InvalidInput for what is no file system of fsspec, for a URL of another one, and for one
    without a bucket; StoreRefused for a cache.
    """
    from fsspec.implementations.cached import CachingFileSystem

    if not isinstance(filesystem, AbstractFileSystem):
        raise InvalidInput(
            f"filesystem must be a file system of fsspec, such as an s3fs.S3FileSystem; got a "
            f"{type(filesystem).__name__}."
        )
    for each in layers(filesystem):
        if isinstance(each, CachingFileSystem):  # whose URL, too, is that of a cache
            raise _caching(each, root)
    known = filesystem.protocol
    schemes = (known,) if isinstance(known, str) else known
    scheme, found, _ = root.partition("://")
    if found and scheme not in schemes:
        raise InvalidInput(
            f"{root} is no URL of the {type(filesystem).__name__} that was handed in: give a path "
            f"in it, or a URL with {', '.join(f'{name}://' for name in schemes)}."
        )
    path = filesystem._strip_protocol(root)
    check_bucket(root, schemes[0], path)
    url: str = filesystem.unstrip_protocol(path)
    return url.rstrip("/")


def own_filesystem(given: AbstractFileSystem, url: str) -> tuple[AbstractFileSystem, str]:
    """Return a file system of the class and arguments of one that was handed in, and the path.

    Raises StoreRefused for one whose create is not exclusive, or that caches, and InvalidInput for
    one that cannot be made again of its arguments.
    """
    fs = _made_again(given, url)
    _refuse_without_create(fs, url)
    _refuse_with_cache(fs, url)
    return fs, fs._strip_protocol(url)


def _made_again(given: AbstractFileSystem, url: str) -> AbstractFileSystem:
    def again(value: Any) -> Any:
        return _made_again(value, url) if isinstance(value, AbstractFileSystem) else value

    kept = {name: again(v) for name, v in given.storage_options.items() if name not in _OF_LOOP}
    try:
        return type(given)(*map(again, given.storage_args), **{**kept, **_FRESH})
    except Exception as error:  # of whatever it is made of
        raise InvalidInput(
            f"{url}: the {type(given).__name__} that was handed in cannot be made again of its "
            f"arguments, as each process does ({type(error).__name__}: {error})."
        ) from error


def layers(fs: AbstractFileSystem) -> Iterator[AbstractFileSystem]:
    """Yield a file system, and those that it wraps."""
    inner: AbstractFileSystem | None = fs
    while inner is not None:
        yield inner
        wrapped = (getattr(inner, name, None) for name in ("fs", "sync_fs"))
        found = next((each for each in wrapped if isinstance(each, AbstractFileSystem)), None)
        inner = None if found is inner else found


def _refuse_without_create(fs: AbstractFileSystem, url: str) -> None:
    """Raise StoreRefused for a driver without an exclusive create, as far as that can be known."""
    for each in layers(fs):
        if _has_no_create(each):
            raise StoreRefused(
                f"{url} cannot hold streams: its driver {type(each).__name__} has no native "
                "exclusive create, so two writers could both create one version. "
                f"{OTHER_STORAGE}",
                url=url,
            )


def _has_no_create(fs: AbstractFileSystem) -> bool:
    """Return whether a driver's write takes no ``mode``, or is one of fsspec's own.

    Those look whether the file exists and then open it, which a race shows only sometimes, or know
    no ``mode`` at all, except wrappers that hand on whatever they are given.
    """
    write = inspect.unwrap(fs.pipe_file)
    given = inspect.signature(write).parameters
    kinds = {parameter.kind for parameter in given.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return False
    is_own = write.__module__.partition(".")[0] == "fsspec"
    return is_own or not ("mode" in given or inspect.Parameter.VAR_KEYWORD in kinds)


def _refuse_with_cache(fs: AbstractFileSystem, url: str) -> None:
    """Raise StoreRefused for a file system that keeps listings although it was told not to."""
    for each in layers(fs):
        if getattr(getattr(each, "dircache", None), "use_listings_cache", False):
            raise _caching(each, url)


def _caching(fs: AbstractFileSystem, url: str) -> StoreRefused:
    """Return the error for a file system that answers from a cache what others have changed."""
    return StoreRefused(
        f"{url} cannot hold streams: the {type(fs).__name__} that was handed in answers from a "
        "cache. Hand in the file system below it, made with use_listings_cache=False.",
        url=url,
    )
