"""The first scope of a root: whatever call is lost, nothing is stored before the root's marker."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.engine.store import PutOutcome, Store
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.retrying_store import RetryingStore
from pravega_spark.engine.store.root_marker import MARKER_KEY, PROBE_FOLDER
from pravega_spark.errors import InvalidInput, RootChanged, StoreError, StoreUnavailable
from pravega_spark.manager import manager_over
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule, Rules
from tests.harness.faulty_store import Fault, FaultyStore

_NO_ANSWER = StoreUnavailable("no answer")
_WRITES = {"put_if_absent": (Fault.LOSE_REQUEST, Fault.LOSE_ANSWER)}
_RACE = re.compile(rf"{PROBE_FOLDER}/[^/]*/0[12]")
_CALLS = 12
"""At least so many calls beside the races does a first scope need."""


class LossyStore(FaultyStore):
    """Loses the numbered calls, requests or answers; the calls of the probe's races do not count.

    ``early`` are the objects that were stored outside of the probe's folder before the marker.
    """

    def __init__(self, inner: Store, lost: dict[int, int]) -> None:
        super().__init__(inner, self._lose)
        self.lost = lost
        self.count = 0
        self.early: list[str] = []

    def _lose(self, operation: str, key: str) -> Fault | Exception | None:
        is_write = operation in ("put_if_absent", "put", "put_many", "writer")
        if is_write and key != MARKER_KEY and not key.startswith(PROBE_FOLDER):
            self.early += [] if self.inner.exists(MARKER_KEY) else [key]
        if _RACE.match(key):
            return None
        self.count += 1
        kind = self.lost.get(self.count)
        return None if kind is None else _WRITES.get(operation, (_NO_ANSWER, _NO_ANSWER))[kind]


def repeating(client: Store, runtime: FakeRuntime) -> Store:
    """A client of an object store, whose calls are repeated for a time."""
    return RetryingStore(lambda url, options: client, "memory://", {}, runtime=runtime)


def once(client: Store, runtime: FakeRuntime) -> Store:
    return client


Wrap = Callable[[Store, FakeRuntime], Store]
LOSSES: list[dict[int, int]] = [{}] + [
    dict(zip(numbers, kinds, strict=True))
    for count in (1, 2)
    for numbers in itertools.combinations(range(1, _CALLS + 1), count)
    for kinds in itertools.product((0, 1), repeat=count)
]  # fmt: skip


def check_first_scope(inner: Store, wrap: Wrap, lost: dict[int, int]) -> None:
    runtime = FakeRuntime()
    lossy = LossyStore(inner, lost)
    manager = manager_over(wrap(lossy, runtime), runtime)
    try:
        manager.create_scope("a")
    except (StoreError, RuntimeError):
        pass
    else:
        assert inner.exists(MARKER_KEY), lost
    assert lossy.count >= _CALLS or lost
    assert lossy.early == [], lost
    lossy.lost = {}
    manager.create_scope("a")
    assert inner.exists(MARKER_KEY)
    assert manager_over(inner, runtime).list_scopes() == ["a"]


@pytest.mark.medium
@pytest.mark.parametrize("wrap", [once, repeating])
def test_no_scope_is_stored_without_the_marker_whatever_is_lost(wrap: Wrap) -> None:
    for lost in LOSSES:
        check_first_scope(MemoryStore(), wrap, lost)


def test_no_scope_is_stored_without_the_marker_on_a_disk(tmp_path: Path) -> None:
    for number, lost in enumerate(lost for lost in LOSSES if len(lost) < 2):
        check_first_scope(LocalStore(str(tmp_path / str(number))), once, lost)


def test_lost_requests_of_the_marker_are_sent_again_until_the_storage_answers() -> None:
    runtime, inner = FakeRuntime(), MemoryStore()
    rules = Rules(*(Rule(Fault.LOSE_REQUEST, "put_if_absent", MARKER_KEY, n) for n in range(1, 5)))
    client = FaultyStore(inner, rules)
    assert manager_over(repeating(client, runtime), runtime).create_scope("a")
    assert client.fired["put_if_absent", Fault.LOSE_REQUEST] == 4
    assert inner.exists(MARKER_KEY)
    assert inner.list(PROBE_FOLDER) == []


@pytest.mark.parametrize("wrap", [once, repeating])
def test_marker_that_never_arrives_fails_the_first_scope(wrap: Wrap) -> None:
    runtime, inner = FakeRuntime(), MemoryStore()
    lost = Rules(Rule(Fault.LOSE_REQUEST, "put_if_absent", MARKER_KEY))
    manager = manager_over(wrap(FaultyStore(inner, lost), runtime), runtime)
    with pytest.raises(StoreUnavailable, match=r"_pravega_spark.json: .*no answer.* Try again"):
        manager.create_scope("a")
    assert inner.list("") == []


def test_marker_that_vanishes_again_fails_the_first_scope() -> None:
    runtime, inner = FakeRuntime(), MemoryStore()

    class Vanishing(FaultyStore):
        def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
            answer = super().put_if_absent(key, data, **options)
            if key == MARKER_KEY:
                self.inner.delete([key])
            return answer

    manager = manager_over(Vanishing(inner, lambda operation, key: None), runtime)
    with pytest.raises(StoreUnavailable, match=r"_pravega_spark\.json"):
        manager.create_scope("a")
    assert inner.list("") == []


def test_root_that_lost_its_marker_names_its_scopes_and_heals_by_create_scope() -> None:
    runtime, inner = FakeRuntime(), MemoryStore()
    old = manager_over(FaultyStore(inner, lambda operation, key: None), runtime)
    old.create_scope("a")
    old.create_stream("a/t")
    inner.delete([MARKER_KEY])
    new = manager_over(FaultyStore(inner, lambda operation, key: None), runtime)
    with pytest.raises(InvalidInput, match=r"has no marker, but holds scopes: a\..*create_scope"):
        new.maintain()
    assert not inner.exists(MARKER_KEY)
    assert new.create_scope("a") is False
    assert inner.exists(MARKER_KEY)
    assert new.maintain().streams == 1
    with pytest.raises(RootChanged):  # another token: who opened the lost root opens this one anew
        old.create_scope("b")


def test_root_without_scopes_is_refused_as_before() -> None:
    manager = manager_over(MemoryStore(), FakeRuntime())
    with pytest.raises(InvalidInput, match="has no marker, so it holds no scope"):
        manager.maintain()
