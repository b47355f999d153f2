"""A run as it is kept: what was found, when, of which commit and on which machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.peers.measures import ROWS
from bench.peers.peer import Peer
from bench.peers.runner import Result, Run

KEPT = Path(__file__).parents[1] / "peers.json"


@dataclass(frozen=True, slots=True)
class About:
    """When, where and how large a run was; load averages are those of one minute."""

    day: str
    commit: str
    size: str
    rows: int
    machine: str
    load_before: float
    load_after: float = 0.0
    minutes: float = 0.0

    @classmethod
    def now(cls, size: str) -> About:
        """Return what is known at the beginning; ``minutes`` holds the clock until the end."""
        return cls(
            time.strftime("%Y-%m-%d"),
            _commit(),
            size,
            ROWS[size],
            _machine(),
            os.getloadavg()[0],
            minutes=time.monotonic() / 60,
        )

    def ended(self) -> About:
        """Return the same at the end of the run."""
        took = time.monotonic() / 60 - self.minutes
        return replace(self, load_after=os.getloadavg()[0], minutes=took)


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """A peer as it was in the run."""

    name: str
    versions: str
    acknowledged: str
    caveats: Sequence[str]


@dataclass(frozen=True, slots=True)
class Record:
    """A whole run."""

    about: About
    peers: Sequence[PeerRecord]
    absent: dict[str, str] = field(default_factory=dict)
    """By peer: why it could not be had."""
    results: Sequence[Result] = ()

    @classmethod
    def of(cls, about: About, run: Run, chosen: Sequence[Peer], had: Sequence[Peer]) -> Record:
        """Return the record of a run that has ended, while its peers still run."""
        peers = [
            PeerRecord(
                peer.name,
                peer.versions() if peer in had else "",
                peer.acknowledged,
                list(peer.caveats),
            )
            for peer in chosen
        ]
        return cls(about.ended(), peers, run.absent, run.results)


def save(record: Record, path: Path) -> None:
    """Write a record as JSON, a line for each result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = asdict(record)
    results = ",\n  ".join(json.dumps(row) for row in found.pop("results"))
    head = json.dumps(found, indent=1).removesuffix("\n}")
    path.write_text(f'{head},\n "results": [\n  {results}\n ]\n}}\n', encoding="utf-8")


def load(path: Path) -> Record | None:
    """Read a record that ``save`` wrote; None if there is none."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Record(
        About(**found["about"]),
        [PeerRecord(**peer) for peer in found["peers"]],
        found["absent"],
        [Result(**result) for result in found["results"]],
    )


def _commit() -> str:
    """Return the commit's short name, with ``-dirty`` if the tree has changes."""
    describe = ("describe", "--always", "--dirty", "--exclude=*")
    command = ["git", "-C", str(Path(__file__).parent), *describe]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )
