"""File systems of fsspec that are handed in, and the storage options of those that are named."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.implementations.zip import ZipFileSystem
from fsspec.spec import AbstractFileSystem

from pravega_spark import StreamManager
from pravega_spark.engine.store import PutOutcome, Store, open_store
from pravega_spark.engine.store.filesystems import option_names
from pravega_spark.engine.store.generic import GenericStore
from pravega_spark.engine.store.root_url import RootUrl, root_as_text
from pravega_spark.errors import InvalidInput, InvalidOption, StoreRefused
from tests.harness.store_backends import ExclusiveMemoryFileSystem

SECRET = "do-not-show-this"


class Own(ExclusiveMemoryFileSystem):
    """As a user makes one: with arguments, and fsspec's caches as they are by default."""

    protocol = ("own", "owned")  # type: ignore[assignment]

    def __init__(self, name: str = "", secret: object = None, **options: Any) -> None:
        super().__init__(**options)
        self.name = name

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol("memory://" + (path.partition("://")[2] or path))


class Racing(Own):
    """Says that its create is its own, and looks before it writes."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        threading.Event().wait(0.01)
        MemoryFileSystem.pipe_file(self, path, value)


def driver_of(manager: StreamManager) -> AbstractFileSystem:
    inner = manager._root.store.inner  # type: ignore[attr-defined]
    assert isinstance(inner, GenericStore)
    found: AbstractFileSystem = inner._connection()[0]
    return found


@pytest.mark.parametrize("root", ["own://given/a1", "owned://given/a2/", "/given/a3"])
def test_streams_live_in_a_file_system_that_is_handed_in(root: str) -> None:
    given = Own("mine", secret=SECRET)
    manager = StreamManager(root, filesystem=given, storage_options={"retry_timeout": 5})
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"1").result()
    copy = pickle.loads(pickle.dumps(manager.stream("s/t")))
    assert [event.data for event in copy.read()] == [b"1"]
    assert given.find(f"/given/{root.rstrip('/')[-2:]}")
    again = StreamManager(manager.root)  # which has the file system
    assert [event.data for event in again.read("s/t")] == [b"1"]
    assert manager.root == f"own:///given/{root.rstrip('/')[-2:]}"
    assert manager._root.store.retry_seconds == 5.0


def test_backup_goes_to_a_file_system_that_is_handed_in(tmp_path: Path) -> None:
    source = StreamManager(tmp_path)
    source.create_scope("s")
    source.create_stream("s/t")
    copy = StreamManager("own://given/copy", filesystem=Own("mine"))
    source.backup(copy.root)
    assert copy.list_streams("s") == ["s/t"]


def test_each_process_makes_its_own_without_a_cache_of_listings() -> None:
    given = Own("mine", use_listings_cache=True, asynchronous=True, loop="of the caller")
    own = driver_of(StreamManager("own://given/b", filesystem=given))
    assert isinstance(own, Own)
    assert own is not given
    assert own.storage_args == ("mine",)
    assert own.storage_options == {"use_listings_cache": False}
    assert given.dircache.use_listings_cache


def test_equal_file_systems_share_a_store_and_others_do_not() -> None:
    def store(**options: Any) -> Store:
        return open_store(RootUrl("own://given/c", filesystem=Own(**options)))

    assert store(name="a") is store(name="a")
    assert store(name="a") is not store(name="b")
    assert pickle.loads(pickle.dumps(store(name="a"))) is store(name="a")


def test_nothing_shows_a_secret_of_it() -> None:
    manager = StreamManager("own://given/d", filesystem=Own("mine", secret=SECRET))
    store = manager._root.store
    for text in (repr(manager.root), repr(store), store.storage, repr(manager.stream("s/t"))):
        assert SECRET not in text


def test_argument_that_cannot_be_pickled_is_named_when_it_should_go_elsewhere() -> None:
    manager = StreamManager("own://given/e", filesystem=Own("mine", secret=threading.Lock()))
    manager.create_scope("s")
    with pytest.raises(pickle.PicklingError, match=r"Own .* cannot go to another process.*lock"):
        pickle.dumps(manager.stream("s/t"))


def test_option_of_spark_is_a_text_and_refuses_it_with_the_way_on() -> None:
    root = StreamManager("own://given/f", filesystem=Own(secret=SECRET)).root
    with pytest.raises(InvalidInput, match=r"handed in, and format.*read_frame and write_frame"):
        root_as_text(root, "format('pravega')")
    assert type(root_as_text(RootUrl("s3://b/x", {"retry_timeout": 1.0}), "it")) is str


@pytest.mark.parametrize("root", ["s3://b/x", "file:///b/x"])
def test_url_of_another_file_system_is_refused(root: str) -> None:
    with pytest.raises(InvalidInput, match=r"no URL of the Own .*own://, owned://"):
        StreamManager(root, filesystem=Own())


class Buckets(Own):
    """As s3fs: the first name of a path is a bucket."""

    protocol = ("s3", "s3a")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.rpartition("://")[2].strip("/")


@pytest.mark.parametrize("root", ["", "/", "s3://", "s3a://", "s3:///"])
def test_root_without_a_bucket_is_refused_at_once(root: str) -> None:
    with pytest.raises(InvalidInput, match=r"^'.*' names no bucket: write s3://bucket/folder"):
        StreamManager(root, filesystem=Buckets())
    assert StreamManager("b", filesystem=Buckets()).root == "s3://b"


@pytest.mark.parametrize("root", ["own://given/h", "simplecache://given/h", "given/h"])
def test_cache_is_refused_before_the_scheme_of_its_url(root: str) -> None:
    cached = SimpleCacheFileSystem(fs=Own(), cache_storage="TMP")
    with pytest.raises(
        StoreRefused, match=r"SimpleCacheFileSystem .* Hand in the file system below"
    ):
        StreamManager(root, filesystem=cached)


class Modeless(Own):
    """Knows no mode, so no create."""

    def pipe_file(self, path: str, value: bytes) -> None:  # type: ignore[override]
        raise AssertionError("written")


class Passing(Own):
    """Takes a mode among its options without naming it, as adlfs does."""

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:  # type: ignore[override]
        if options.get("colour"):
            raise AssertionError("unknown")
        return super().pipe_file(path, value, **options)


class Unable(Own):
    """Says only when it is asked that it has no create."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        raise NotImplementedError("no create")


def test_file_system_whose_write_takes_no_mode_is_refused_when_it_is_handed_in(
    tmp_path: Path,
) -> None:
    for given in (Modeless(), ZipFileSystem(str(tmp_path / "a.zip"), mode="w")):
        with pytest.raises(StoreRefused, match=r"has no native exclusive create.* Use a path or"):
            StreamManager("b/x", filesystem=given)
    StreamManager("given/i", filesystem=Passing()).create_scope("s")


def test_http_is_refused_when_it_is_handed_in() -> None:
    http = pytest.importorskip("fsspec.implementations.http")
    with pytest.raises(StoreRefused, match=r"HTTPFileSystem has no native .* Use a path or"):
        StreamManager("h/x", filesystem=http.HTTPFileSystem())


def test_create_that_fails_as_unable_is_refused_with_the_way_on() -> None:
    manager = StreamManager("own://given/j", filesystem=Unable())
    with pytest.raises(StoreRefused, match=r"no exclusive create \(no create\)\. Use a path or"):
        manager.create_scope("s")


@pytest.mark.parametrize(
    ("given", "wrong"),
    [({1: 2}, "got the name 1"), ([SECRET], "got a value of type list"), (5, "of type int")],
)
def test_storage_options_that_are_no_dict_are_refused_with_what_is_wrong(
    given: Any, wrong: str
) -> None:
    with pytest.raises(
        InvalidInput, match=rf"must be a dict from names to values.* {wrong}\."
    ) as it:
        StreamManager("/tmp/x", storage_options=given)
    assert SECRET not in str(it.value)


@pytest.mark.parametrize("given", ["s3", object(), MemoryFileSystem], ids=["text", "any", "class"])
def test_what_is_no_file_system_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a file system of fsspec"):
        StreamManager("b/x", filesystem=given)


def test_storage_options_belong_to_the_file_system() -> None:
    with pytest.raises(InvalidOption, match=r"remove key, .* only chunk_cache and retry_timeout"):
        StreamManager("own://b/x", filesystem=Own(), storage_options={"key": SECRET})


class Once(Own):
    """Cannot be made of its arguments again."""

    made = 0

    def __init__(self, name: str) -> None:
        super().__init__()


def test_file_system_that_cannot_be_made_again_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Once .* cannot be made again of its arguments"):
        StreamManager("own://b/x", filesystem=Once("n"))


@pytest.mark.parametrize(
    ("given", "way_on"),
    [
        (LocalFileSystem(), "Use a path or file://"),
        (MemoryFileSystem(), "memory://name for the memory of a process"),
        (DirFileSystem("/a", MemoryFileSystem()), "memory://name"),
        (SimpleCacheFileSystem(fs=Own(), cache_storage="TMP"), "answers from a cache"),
        (DirFileSystem("/a", SimpleCacheFileSystem(fs=Own(), cache_storage="TMP")), "a cache"),
    ],
    ids=["local", "memory", "wrapped", "cached", "wrapped cache"],
)
def test_file_system_without_an_exclusive_create_or_with_a_cache_is_refused_when_it_is_handed_in(
    given: AbstractFileSystem, way_on: str
) -> None:
    with pytest.raises(StoreRefused, match=way_on):
        StreamManager("b/x", filesystem=given)


def test_create_that_only_says_it_is_exclusive_is_refused_by_the_first_write() -> None:
    manager = StreamManager("own://given/g", filesystem=Racing())
    with pytest.raises(StoreRefused, match=r"concurrent creates|could be created twice|not hold"):
        manager.create_scope("s")
    assert manager.list_scopes() == []


class Named(ExclusiveMemoryFileSystem):
    """A driver with options; the last name vanishes without a word, as in most drivers."""

    def __init__(self, colour: str = "", *, weight: int = 0, **options: Any) -> None:
        super().__init__(**options)


def test_option_that_a_driver_does_not_name_is_refused_with_those_that_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {"colour", "weight"} <= option_names(Named)
    monkeypatch.setattr("fsspec.get_filesystem_class", lambda scheme: Named)
    store = open_store("exclusivememory://named/a", retry_timeout=1, colour="red")
    assert store.put_if_absent("key", b"") is PutOutcome.CREATED
    for name in ("no_such", "use_listings_cache", "listings_expiry_time", "loop"):
        with pytest.raises(
            InvalidOption, match=rf"{name} .*Use chunk_cache, colour, .*retry_timeout, weight; or"
        ):
            open_store("exclusivememory://named/a", **{name: 1})


@pytest.mark.parametrize("url", ["memory://options", "{path}", "file://{path}", "local://{path}"])
def test_option_of_a_disk_or_of_memory_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="takes no storage options, got auto_mkdir, retry_tim"):
        open_store(url.format(path=tmp_path), auto_mkdir=True, retry_timeout=1)
