"""A root in memory whose objects are dated by a clock that the test moves."""

from __future__ import annotations

import pytest

from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.spy_store import Spy


@pytest.fixture
def clock() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def store(clock: FakeRuntime) -> Spy:
    return Spy(memory(clock))
