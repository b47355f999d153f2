"""One run: within a measure the peers take turns, so that the machine's noise meets all alike."""

from __future__ import annotations

import contextlib
import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.peers.measures import Measure
from bench.peers.peer import Absent, Found, Peer


@dataclass(frozen=True, slots=True)
class Result:
    """A figure of a peer: the median of its rounds, the lowest and the highest; or why none."""

    measure: str
    figure: str
    peer: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    """Why the peer has no such thing; empty if it has."""
    is_failure: bool = False
    """Whether the reason is an error of this run."""


@dataclass
class Run:
    """The results of a run, and the peers that it could not have."""

    results: list[Result] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    unstarted: list[str] = field(default_factory=list)
    """Of those that are absent: the peers that are here and did not start."""

    @property
    def failures(self) -> list[str]:
        """What failed, as ``peer: measure``."""
        failed = [
            f"{result.peer}: {result.measure}" for result in self.results if result.is_failure
        ]
        return [*(f"{peer}: start" for peer in self.unstarted), *dict.fromkeys(failed)]

    def rows(self) -> list[dict[str, Any]]:
        """Return the results as plain values."""
        return [asdict(result) for result in self.results]


_LONGEST_REASON = 300
Tell = Callable[[str], None]


@contextlib.contextmanager
def started(peers: Sequence[Peer], run: Run, tell: Tell) -> Iterator[list[Peer]]:
    """Start and fill all peers; yield those that can be had; stop all."""
    with contextlib.ExitStack() as stack:
        had: list[Peer] = []
        for peer in peers:
            tell(f"{peer.name}: start")
            stack.callback(peer.stop)
            try:
                peer.start()
                peer.fill()
            except Absent as absent:
                run.absent[peer.name] = str(absent)
            except Exception as error:
                run.absent[peer.name] = _failed(error)
                run.unstarted.append(peer.name)
            if peer.name in run.absent:
                tell(f"{peer.name}: {run.absent[peer.name]}")
                continue
            had.append(peer)
        yield had


def measure(
    measures: Sequence[Measure], peers: Sequence[Peer], size: str, run: Run, tell: Tell
) -> None:
    """Measure one thing after another; add the results to the run."""
    for each in measures:
        run.results += _alternate(each, peers, size, tell)


def _alternate(each: Measure, peers: Sequence[Peer], size: str, tell: Tell) -> list[Result]:
    """Measure each peer once a round, after a round that does not count; reverse every other."""
    limit, rounds = each.limits[size], each.rounds[size]
    able = [peer for peer in peers if each.name not in peer.cannot]
    found: dict[str, list[Found]] = {peer.name: [] for peer in able}
    reasons = {
        peer.name: (peer.cannot[each.name], False) for peer in peers if each.name in peer.cannot
    }
    for number in range(-1 if each.is_warmed else 0, rounds):
        for peer in able:
            if peer.name in reasons:
                continue
            gc.collect()
            try:
                once = getattr(peer, each.name)(limit)
            except Exception as error:
                reasons[peer.name] = (_failed(error), True)
                tell(f"{peer.name}: {each.name}: {reasons[peer.name][0]}")
                continue
            tell(f"{peer.name}: {each.name}: {_text(once)}{' (warm-up)' if number < 0 else ''}")
            if number >= 0:
                found[peer.name].append(once)
        able.reverse()
    return [
        _result(each.name, figure, peer.name, found.get(peer.name, []), reasons.get(peer.name))
        for peer in peers
        for figure in each.shown
    ]


def _result(
    name: str, figure: str, peer: str, found: list[Found], reason: tuple[str, bool] | None
) -> Result:
    if reason is not None:
        text, is_failure = reason
        return Result(name, figure, peer, reason=text, is_failure=is_failure)
    values = [once[figure] for once in found]
    return Result(name, figure, peer, statistics.median(values), min(values), max(values))


def _failed(error: Exception) -> str:
    return f"failed: {type(error).__name__}: {error}"[:_LONGEST_REASON]


def _text(found: Found) -> str:
    return ", ".join(f"{name} {value:,.4g}" for name, value in found.items())
