"""The probe refuses stores that lose, tear or swap the bytes of two creators."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from pravega_spark.engine.store import PutOutcome, ensure_probed, probe
from pravega_spark.engine.store.generic import GenericStore
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.retrying_store import RetryingStore
from pravega_spark.engine.store.root_url import RootUrl
from pravega_spark.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule, Rules
from tests.harness.faulty_store import Fault, FaultyStore


class ExistsThenRename(LocalStore):
    """The way in which Delta Spark commits to a local disk."""

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        if self.exists(key):
            return PutOutcome.EXISTS
        time.sleep(0.1)  # in which all that race have looked
        self.put(key, data)
        return PutOutcome.CREATED


class ExclusiveButVisibleEarly(LocalStore):
    """``open(path, "xb")``: one winner, whose bytes appear later, and here only in part."""

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        path = self._base + key
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(path, "xb") as file:
                file.write(data[:-1])
        except FileExistsError:
            return PutOutcome.EXISTS
        return PutOutcome.CREATED


class LastWriterWins(MemoryStore):
    """One creator gets CREATED, but the bytes of another one are kept."""

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        answer = super().put_if_absent(key, data, **options)
        self.put(key, data)
        return answer


class Forgetful(MemoryStore):
    """Returns CREATED and stores nothing."""

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        return PutOutcome.EXISTS


def test_exists_then_rename_is_refused(tmp_path: Path) -> None:
    store = ExistsThenRename(str(tmp_path))
    with pytest.raises(
        StoreRefused, match=r"concurrent creates of .* succeeded.* Use a local POSIX disk"
    ):
        probe(store)
    assert store.list("") == []


def test_torn_creates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="and then held b'firs'"):
        probe(ExclusiveButVisibleEarly(str(tmp_path)))


def test_overwriting_creates_are_refused() -> None:
    with pytest.raises(StoreRefused, match="and then held"):
        probe(LastWriterWins())


def test_creates_without_effect_are_refused() -> None:
    with pytest.raises(StoreRefused, match="could not be read"):
        probe(Forgetful())


class _Racing(LocalFileSystem):
    """Creates as fsspec's base class does, but says that it has its own way."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if mode == "create":
            if self.exists(path):
                raise FileExistsError(path)
            time.sleep(0.01)  # in which all that race have looked
        super().pipe_file(path, value, mode="overwrite", **options)


def store_on(url: str, driver: AbstractFileSystem) -> GenericStore:
    return GenericStore(RootUrl(url, filesystem=driver), {})


def _probe_often(store: GenericStore) -> None:
    for _ in range(20):
        probe(store)


def test_driver_that_looks_before_it_creates_fails_the_race(tmp_path: Path) -> None:
    store = store_on(f"file://{tmp_path}/root", _Racing(auto_mkdir=True))
    with pytest.raises(StoreRefused, match=r"succeeded|does not hold|has no exclusive create"):
        _probe_often(store)


def _asynchronous(of: AbstractFileSystem) -> dict[str, AbstractFileSystem]:
    """The driver in fsspec's wrapper, which older ones lack."""
    with contextlib.suppress(ModuleNotFoundError):
        from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

        return {"asynchronous": AsyncFileSystemWrapper(of)}
    return {}


def _drivers() -> dict[str, AbstractFileSystem]:
    local = LocalFileSystem(auto_mkdir=True)
    return {
        "plain": local,
        "folder": DirFileSystem("/tmp", local),
        "folder of a folder": DirFileSystem("a", DirFileSystem("/tmp", local)),
        **_asynchronous(local),
        "cached": SimpleCacheFileSystem(fs=local, cache_storage="TMP"),
    }


@pytest.mark.parametrize("name", _drivers())
def test_driver_without_a_create_of_its_own_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match=r"FileSystem\w* has no native exclusive create"):
        store_on(f"file://{tmp_path}/root", _drivers()[name])


def test_driver_without_a_create_is_refused_where_a_marker_says_that_it_passed(
    tmp_path: Path,
) -> None:
    ensure_probed(LocalStore(str(tmp_path)))
    with pytest.raises(StoreRefused, match="has no native exclusive create"):
        GenericStore(f"file://{tmp_path}", {})


class Objects(AsyncFileSystem):
    async def _pipe_file(self, path: str, value: bytes, mode: str = "", **_: Any) -> None:
        raise NotImplementedError


def test_driver_of_an_object_store_passes() -> None:
    store_on("memory://objects", Objects())


@pytest.mark.skipif(
    "pipe_file" not in vars(DirFileSystem), reason="this fsspec's DirFileSystem hands no mode on"
)
def test_folder_of_a_driver_of_an_object_store_passes() -> None:
    store_on("memory://objects", DirFileSystem("a", Objects()))


def test_stale_listing_is_refused() -> None:
    store = FaultyStore(MemoryStore(), Rules(Rule(Fault.STALE_LIST, "list")))
    with pytest.raises(StoreRefused, match="a listing shows"):
        probe(store)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.RESEND])
@pytest.mark.parametrize("nth", [0, 1, 2, 3, 10])
def test_lost_answers_do_not_fail_a_good_store(fault: Fault, nth: int) -> None:
    probe(FaultyStore(MemoryStore(), Rules(Rule(fault, "put_if_absent", nth=nth))))


def test_lost_requests_of_some_racers_do_not_fail_a_good_store() -> None:
    rules = [Rule(Fault.LOSE_REQUEST, "put_if_absent", nth=nth) for nth in range(4, 10)]
    probe(FaultyStore(MemoryStore(), Rules(*rules)))


@pytest.mark.parametrize("first", [0, 2])
def test_creates_without_answer_prove_nothing(first: int) -> None:
    lost = [Rule(Fault.LOSE_REQUEST, "put_if_absent", nth=nth) for nth in range(first, 99)]
    with pytest.raises(StoreUnavailable, match="no answer, and had no effect"):
        probe(FaultyStore(MemoryStore(), Rules(*lost)))


def test_outage_of_a_first_scope_is_warned_of_and_raises_the_last_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = StoreUnavailable("put failed with 503 SlowDown.")
    rules = Rules(Rule(Fault.LOSE_REQUEST, "put_if_absent"), Rule(slow, "put"))
    client, runtime = FaultyStore(MemoryStore(), rules), FakeRuntime()
    store = RetryingStore(
        lambda url, options: client, "memory://", {"retry_timeout": 4}, runtime=runtime
    )
    with pytest.raises(StoreUnavailable, match=r"503 SlowDown.*for 4 s.*retry_timeout"):
        ensure_probed(store, runtime)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert client.inner.list("") == []


def test_outage_during_the_probe_is_sat_out() -> None:
    runtime = FakeRuntime()
    lost = [Rule(Fault.LOSE_REQUEST, "put_if_absent", nth=nth) for nth in range(1, 7)]
    client = FaultyStore(MemoryStore(), Rules(*lost))
    probe(RetryingStore(lambda url, options: client, "memory://", {}), runtime=runtime)
    assert runtime.elapsed > FakeRuntime().elapsed


def test_error_of_the_store_is_passed_on_and_no_marker_is_left() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, Rules(Rule(StoreReadOnly("no right"), "put_if_absent")))
    with pytest.raises(StoreReadOnly, match="no right"):
        ensure_probed(store)
    assert inner.list("") == []


def test_store_without_the_right_to_delete_passes() -> None:
    probe(FaultyStore(MemoryStore(), Rules(Rule(StoreError("may not"), "delete"))))


def at(now_ms: int) -> FakeRuntime:
    runtime = FakeRuntime()
    runtime.wall_ms = now_ms
    return runtime


def test_lost_marker_is_an_error_and_the_next_process_probes_again() -> None:
    inner = MemoryStore()
    marker_lost = Rules(Rule(Fault.LOSE_REQUEST, "put_if_absent", "_pravega_spark.json"))
    with pytest.raises(StoreUnavailable, match=r"_pravega_spark.json: create got no answer"):
        ensure_probed(FaultyStore(inner, marker_lost), at(1))
    assert inner.list("") == []
    ensure_probed(inner, at(2))
    assert b'"probed_ms": 2' in inner.get("_pravega_spark.json")


def test_two_concurrent_probes_leave_one_marker() -> None:
    inner = MemoryStore()
    probe(inner, token="other")
    resent = Rules(Rule(Fault.RESEND, "put_if_absent", "_pravega_spark.json"))
    ensure_probed(FaultyStore(inner, resent), at(1))
    ensure_probed(inner, at(2))
    assert b'"probed_ms": 1' in inner.get("_pravega_spark.json")
