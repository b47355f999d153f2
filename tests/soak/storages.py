"""Where the root of a soak is: a local disk, or an S3 server behind proxies that fail."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pravega_spark.engine.store.opening import open_store
from tests.harness.fault_proxy import LOSE_ANSWER, LOSE_REQUEST, Reply, start_proxy
from tests.harness.s3_outages import S3Outages
from tests.harness.s3_server import start_s3
from tests.harness.tcp_proxy import Network, tcp_proxy

SPOILED = 0.01
"""The share of requests that are lost, answered in vain or refused as too many."""


@dataclass
class Storage:
    """A root, how processes reach it, and what may go wrong with it."""

    root: str
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the processes: it names the storage for Spark."""
    good_options: Mapping[str, Any] = field(default_factory=dict)
    """Those of whoever looks from outside: past the faults."""
    faults: Mapping[str, Callable[[random.Random], None]] = field(default_factory=dict)
    """Each lasts some seconds, and returns at its end."""
    between: tuple[float, float] = (1.0, 5.0)
    """Seconds from one fault to the next."""
    set_calm: Callable[[bool], None] = lambda is_calm: None
    """Ends and begins what happens to single requests."""

    def keys(self) -> list[str]:
        """Return the names of all objects of the root."""
        return [entry.key for entry in open_store(self.root, **self.good_options).list("")]


@contextlib.contextmanager
def disk(folder: Path, counts: Counter[str], seed: int) -> Iterator[Storage]:
    """A folder of a local disk: what fails are the processes alone."""
    yield Storage(str(folder / "root"))


@contextlib.contextmanager
def s3(folder: Path, counts: Counter[str], seed: int) -> Iterator[Storage]:
    """A server that is killed and stopped, behind a proxy of requests and one of connections."""
    source, lock = random.Random(f"requests {seed}"), threading.Lock()
    calm = threading.Event()

    def decide(method: str, path: str) -> str | Reply | None:
        with lock:
            if calm.is_set() or source.random() >= SPOILED:
                return None
            kind = source.choice((LOSE_ANSWER, LOSE_REQUEST, "busy"))
            counts[kind] += 1
        return Reply(503, "SlowDown") if kind == "busy" else kind

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_s3())
        outages = stack.enter_context(S3Outages(server))
        requests = stack.enter_context(start_proxy(server.endpoint_url))
        requests.decide = decide
        network = stack.enter_context(tcp_proxy(requests.endpoint_url))

        def set_calm(is_calm: bool) -> None:
            (calm.set if is_calm else calm.clear)()
            requests.seen.clear()

        def of(state: Network) -> Callable[[random.Random], None]:
            def play(dice: random.Random) -> None:
                network.network = state
                time.sleep(dice.uniform(0.1, 1.5))
                network.network = Network.GOOD

            return play

        yield Storage(
            f"s3://{server.bucket}/root",
            {"retry_timeout": "20 s", "read_timeout": "5 s"},
            {**server.environment, "AWS_ENDPOINT_URL": network.url},
            server.options,
            {
                "connections cut": of(Network.CUT),
                "connections reset": of(Network.REFUSE),
                "network slow": of(Network.SLOW),
                "network stalls": of(Network.STALL),
                "server killed": lambda dice: outages.kill(dice.uniform(0.0, 2.0)),
                "server stopped": lambda dice: outages.stop(dice.uniform(0.5, 3.0)),
            },
            (2.0, 8.0),
            set_calm,
        )


STORAGES = {"disk": disk, "s3": s3}
