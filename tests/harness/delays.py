"""A plugin of pytest that delays threads where they meet: what a busy machine does, but each time.

``python -m pytest -p tests.harness.delays --delays SEED tests/...``: a new thread, the one that
started it, and those that an event, a condition or a future wakes then sleep at random. A test that
fails so relies on the moment of another thread, and will fail on somebody's machine one day.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import Any

import pytest

_STARTS: tuple[tuple[type, str], ...] = ((threading.Thread, "start"), (threading.Thread, "run"))
_MEETINGS: tuple[tuple[type, str], ...] = (
    (threading.Event, "set"),
    (threading.Event, "wait"),
    (threading.Condition, "wait"),
    (Future, "set_result"),
    (Future, "set_exception"),
)
_dice = random.Random()
_sleep = time.sleep
"""Tests may replace that of the module."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--delays", type=int, help="Delay threads at random, by this seed.")


def pytest_configure(config: pytest.Config) -> None:
    """Let the methods sleep, from here to the end of the process."""
    if config.getoption("delays") is None:
        return
    for kind, name in _STARTS:
        setattr(kind, name, _delayed(getattr(kind, name), share=0.3, seconds=0.1))
    for kind, name in _MEETINGS:
        setattr(kind, name, _delayed(getattr(kind, name), share=0.1, seconds=0.03))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw the delays of a test by its name, whatever ran before it."""
    _dice.seed(zlib.crc32(f"{item.config.getoption('delays')} {item.nodeid}".encode()))


def _delayed(method: Callable[..., Any], share: float, seconds: float) -> Callable[..., Any]:
    """Return a method that sleeps before and after a share of its calls, at most so long."""

    def pause() -> None:
        if _dice.random() < share:
            _sleep(seconds * _dice.random())

    @wraps(method)
    def delayed(*args: Any, **options: Any) -> Any:
        pause()
        found = method(*args, **options)
        pause()
        return found

    return delayed
