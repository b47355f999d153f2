"""One run of the benchmark: set up, measure, prove, remove."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pravega_spark.benchmark.chain import ReadChain
from pravega_spark.benchmark.folder import Prefix, RunFolder
from pravega_spark.benchmark.meter import BoundReached, Bounds, Meter, Use
from pravega_spark.benchmark.workloads import SCOPE, Measured, Workloads
from pravega_spark.errors import PravegaSparkError, StoreError
from pravega_spark.manager import manager_over

_PROVING_SHARE = 0.25
"""The part of a run's time in which it reads what it wrote."""

READ_BACK = "read back"
"""What the proof is called among the workloads; it has no single operations."""

Say = Callable[[str], object]


@dataclass(slots=True)
class Proof:
    """What was read again from the storage, past every cache, and compared link by link."""

    events: int = 0
    acknowledged: int = 0
    breaks: list[str] = field(default_factory=list)
    """What differs from what was acknowledged, a sentence each."""
    is_complete: bool = False
    """Whether all was read before the time was over."""

    @property
    def is_good(self) -> bool:
        """Whether nothing that was read differs."""
        return not self.breaks


@dataclass(slots=True)
class Report:
    """What a run found; a failed one has the rest as it was then."""

    url: str
    bounds: Bounds
    set_up: Use = field(default_factory=Use)
    measured: list[Measured] = field(default_factory=list)
    proof: Proof = field(default_factory=Proof)
    use: Use = field(default_factory=Use)
    seconds: float = 0.0
    stopped_by: str | None = None
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices of a run."""

    bounds: Bounds
    writers: int
    event_bytes: int


def run(prefix: Prefix, name: str, plan: Plan, meter: Meter, say: Say) -> Report:
    """Measure in a new folder of that name below the prefix, and remove the folder, come what may.

    ``say`` is told how far it is. Raises what the storage raises; an error of the clean-up says
    what is left.
    """
    folder = prefix.folder(name, plan.bounds.seconds)
    report = Report(folder.url, plan.bounds)
    try:
        folder.begin()
        _measure(report, folder, plan, meter, say)
    except PravegaSparkError as error:
        with _added_to(error):
            _remove(folder, say)
        raise
    except BaseException as error:
        _remove(folder, say, is_interrupted=isinstance(error, KeyboardInterrupt))
        raise
    report.stopped_by = meter.stopped_by
    report.removed = _remove(folder, say)
    report.use, report.seconds = meter.use(), meter.seconds
    return report


def _remove(folder: RunFolder, say: Say, *, is_interrupted: bool = False) -> int:
    """Remove the folder; a first interrupt that comes meanwhile is raised once that is done."""
    try:
        if is_interrupted:
            say("interrupted: the figures so far are not a result")
        say("removing what was written")
        return folder.remove()
    except KeyboardInterrupt:
        if is_interrupted:
            say(f"{folder.url} is not removed; the next run names the command that removes it.")
        else:
            _remove(folder, say, is_interrupted=True)
        raise
    except (PravegaSparkError, OSError) as error:
        raise StoreError(
            f"{folder.url} is not removed: {error} Mend that; the next run names the command that "
            "removes it.",
            url=folder.url,
        ) from error


@contextlib.contextmanager
def _added_to(error: PravegaSparkError) -> Iterator[None]:
    """Add a second error to the message of the first."""
    try:
        yield
    except StoreError as second:
        error.message += f" {second}"


def _measure(report: Report, folder: RunFolder, plan: Plan, meter: Meter, say: Say) -> None:
    run_name = folder.url.rpartition("/")[2]
    workloads = Workloads(folder, meter, run_name, plan.writers, plan.event_bytes)
    say("setting up")
    try:
        report.set_up = workloads.set_up()
    except BoundReached:
        return
    seconds = plan.bounds.seconds * (1 - _PROVING_SHARE)
    for measured in workloads.measure(seconds):
        report.measured.append(measured)
        say(f"{measured.name}: {measured.operations:,} in {measured.seconds:.1f} s")
    say("reading all again")
    report.measured.append(prove(report.proof, workloads, folder, meter, run_name))


def prove(
    proof: Proof, workloads: Workloads, folder: RunFolder, meter: Meter, run_name: str
) -> Measured:
    """Read every stream from its head, by a store that has no cache, and check each chain."""
    meter.prove()
    manager = manager_over(folder.store(is_cached=False))
    chains = workloads.chains
    found = {key: ReadChain(key, run_name) for key in chains}
    measured = Measured(READ_BACK, "reading all events from the storage")
    measured.begin(meter)
    proof.acknowledged = sum(chain.acknowledged for chain in chains.values())
    with contextlib.suppress(BoundReached):
        for name, *_ in workloads.all:
            for event in manager.read(f"{SCOPE}/{name}"):
                key = event.routing_key
                wrong = (
                    found[key].take(event.data) if key in found else f"key {key!r} was not written"
                )
                if wrong is not None:
                    proof.breaks.append(f"{SCOPE}/{name}: {wrong}.")
                    break
                proof.events += 1
        proof.is_complete = True
    if proof.is_complete and not proof.breaks:
        for key, chain in chains.items():
            if found[key].events < chain.acknowledged:
                proof.breaks.append(
                    f"key {key}: {chain.acknowledged:,} events were acknowledged, and "
                    f"{found[key].events:,} are there."
                )
    measured.events = proof.events
    measured.end(meter)
    return measured
