"""``pravega-spark serve`` with a store that counts: the process, and its owner's side.

Each line of its input is answered by a line with the calls, bytes and memory so far.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.counting_store import CountingStore
from pravega_spark import cli, manager
from pravega_spark.engine.store import open_store


@dataclass(frozen=True)
class Spent:
    """What a server has asked of its storage, and the memory that it holds in MiB.

    To make the commits of a local folder durable is no request on an object store, and not counted.
    """

    calls: int
    read_bytes: int
    listed: int
    memory_mib: float
    kinds: dict[str, int]

    def since(self, before: Spent) -> Spent:
        """Return what came after an earlier measurement."""
        kinds = {name: n - before.kinds.get(name, 0) for name, n in self.kinds.items()}
        return Spent(
            self.calls - before.calls,
            self.read_bytes - before.read_bytes,
            self.listed - before.listed,
            self.memory_mib,
            {name: n for name, n in kinds.items() if n},
        )


@dataclass(frozen=True)
class CountedServer:
    """A server process."""

    url: str
    process: subprocess.Popen[str]

    def spent(self) -> Spent:
        """Return what it has spent so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return Spent(**json.loads(self.process.stdout.readline()))


@contextmanager
def counted_server(root: str, *options: str) -> Iterator[CountedServer]:
    """Yield a running server of a root."""
    command = [sys.executable, "-m", "bench.harness.counted_server", root, *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield CountedServer(process.stdout.readline().split()[0].rstrip("/"), process)
        finally:
            process.kill()


def main() -> None:
    """Serve the root that is the first argument."""
    stores: list[CountingStore] = []

    def counted(url: str, **options: Any) -> CountingStore:
        stores.append(CountingStore(open_store(url, **options)))
        return stores[-1]

    vars(manager)["open_store"] = counted
    threading.Thread(target=_tell, args=(stores,), daemon=True).start()
    root, *options = sys.argv[1:]
    cli.main(["serve", "--port", "0", "--root", root, *options])


def _tell(stores: list[CountingStore]) -> None:
    for _ in sys.stdin:
        kinds = sum((store.calls for store in stores), Counter[str]())
        del kinds["durable"]
        told = {
            "calls": kinds.total(),
            "read_bytes": sum(store.read_bytes for store in stores),
            "listed": sum(store.listed for store in stores),
            "memory_mib": _memory_mib(),
            "kinds": kinds,
        }
        print(json.dumps(told), flush=True)


def _memory_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)


if __name__ == "__main__":
    main()
