"""Runs the faults of ``faults.py``: one at a time in a copy of the tree, against its tests.

The working tree is only read. ``python -m tests.mutants --help`` has the options.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue

from tests.harness.arguments import at_least_one
from tests.mutants import record
from tests.mutants.faults import FAULTS, NOT_SHOWN, Fault
from tests.mutants.simulated import played

ROOT = Path(__file__).resolve().parents[2]
_FAILED = 1
"""Pytest's exit code if tests ran and one failed; others say that no test decided anything."""
_LONGEST_SECONDS = 900.0
_PATIENCE = 5
"""A fault hangs if its tests take so many times as long as without it, and half a minute more."""
_PLAIN_ERRORS = (
    *("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "SyntaxError"),
    *("TypeError", "UnboundLocalError"),
)
_CONTROL = Fault(
    "the copy is what runs",
    "__init__.py",
    "from __future__ import annotations\n",
    "from __future__ import annotations\n\nraise MemoryError\n",
)


@dataclass(frozen=True)
class Run:
    """What a run of tests ended with: pytest's exit code, None for one that hung; how long."""

    code: int | None
    seconds: float
    output: str

    @property
    def first_failure(self) -> str:
        """The test that failed first, or the last line of the output."""
        lines = self.output.strip().splitlines() or [""]
        found = (line for line in lines if line.startswith(("FAILED ", "ERROR ")))
        return next(found, lines[-1]).partition(" - ")[0]

    @property
    def plain_error(self) -> str:
        """What the first failure is if it is an error that Python has for broken code."""
        lines = self.output.splitlines()
        found = (line for line in lines if line.startswith(("FAILED ", "ERROR ")))
        error = next(found, "").partition(" - ")[2]
        return error if error.startswith(_PLAIN_ERRORS) else ""


@dataclass(frozen=True)
class Outcome:
    """What became of a fault; ``is_wrong`` says that somebody has to do something."""

    fault: Fault
    verdict: str
    seconds: float = 0.0
    detail: str = ""
    is_wrong: bool = False

    @property
    def test(self) -> str:
        """The test that caught it."""
        return self.detail.removeprefix("FAILED ").removeprefix("ERROR ")

    def __str__(self) -> str:
        """Return the line of a report."""
        line = f"{self.verdict:<10} {self.seconds:5.1f} s  {self.fault.promise}"
        return f"{line}\n{' ' * 20}{self.detail}" if self.detail else line


class Tree:
    """A copy of the tree, in which one fault at a time is placed."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Copy what Git does not ignore."""
        self.folder = folder / "tree"
        self._temporary = folder / "tmp"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (root / name).is_file():  # not one that was deleted and is still in the index
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.folder / name)
        self._times = count(1, 10)

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """Place a fault inside the block; raise LookupError unless its text is there once."""
        path = self.folder / fault.path
        source, status = fault.read(self.folder), path.stat()
        path.write_text(fault.placed_in(source))
        time_of_its_own = next(self._times)  # else bytecode of another fault would pass for its own
        os.utime(path, (time_of_its_own, time_of_its_own))
        try:
            yield
        finally:
            path.write_text(source)
            os.utime(path, (status.st_atime, status.st_mtime))

    def run(self, tests: Sequence[str], limit: float = _LONGEST_SECONDS) -> Run:
        """Run tests in the copy up to the first failure; kill them after ``limit`` seconds."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += [f"--basetemp={self._temporary}", *(f"tests/{test}" for test in tests)]
        began = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return Run(None, time.monotonic() - began, process.communicate()[0])
        return Run(process.returncode, time.monotonic() - began, output)

    def outcomes(self, tests: Sequence[str], faults: Iterable[Fault]) -> Iterator[Outcome]:
        """Yield what becomes of faults that have the same tests, which must pass without one."""
        plain = self.run(tests)
        if plain.code != 0:
            detail = f"the tests fail without a fault: {plain.first_failure}"
            for fault in faults:
                yield Outcome(fault, "error", plain.seconds, detail, is_wrong=True)
            return
        for fault in faults:
            try:
                with self.with_fault(fault):
                    run = self.run(tests, 30 + _PATIENCE * plain.seconds)
            except LookupError as error:
                yield Outcome(fault, "error", detail=str(error), is_wrong=True)
            else:
                yield _judged(fault, run)


def _judged(fault: Fault, run: Run) -> Outcome:
    if run.code == 0:
        if fault.equal:
            return Outcome(fault, "equal", run.seconds, fault.equal)
        detail = f"no test of {', '.join(fault.tests)} fails"
        return Outcome(fault, "survived", run.seconds, detail, is_wrong=True)
    if run.code not in (None, _FAILED):
        detail = f"no test decided ({run.code}): {run.output[-2_000:]}"
        return Outcome(fault, "error", run.seconds, detail, is_wrong=True)
    if run.plain_error:
        detail = f"{run.first_failure} ends in {run.plain_error}: no promise was asked"
        return Outcome(fault, "error", run.seconds, detail, is_wrong=True)
    if fault.equal:
        detail = f"called equal ({fault.equal}), and {run.first_failure}"
        return Outcome(fault, "error", run.seconds, detail, is_wrong=True)
    if run.code is None:
        return Outcome(fault, "caught", run.seconds, "its tests hung, and were killed")
    return Outcome(fault, "caught", run.seconds, run.first_failure)


def run_faults(
    faults: Sequence[Fault], root: Path, workers: int, *, is_kept: bool = False
) -> list[Outcome]:
    """Run faults in ``workers`` copies of a tree side by side; print and return the outcomes.

    The record is written one fault at a time if it is asked for: what was found is not lost.
    """
    groups: dict[tuple[str, ...], list[Fault]] = {}
    for fault in faults:
        groups.setdefault(fault.tests, []).append(fault)
    found: list[Outcome] = []
    trees: SimpleQueue[Tree] = SimpleQueue()
    telling = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(workers):
            trees.put(Tree(root, Path(folder) / str(number)))
        first = trees.get()
        with first.with_fault(_CONTROL):
            if "MemoryError" not in first.run(faults[0].tests).output:
                raise SystemExit("the tests do not run the copy: is another one on the path?")
        trees.put(first)

        def run_group(tests: tuple[str, ...]) -> None:
            tree = trees.get()
            try:
                for outcome in tree.outcomes(tests, groups[tests]):
                    with telling:
                        found.append(outcome)
                        print(outcome, flush=True)
                        if is_kept:
                            record.keep_tests(outcome.fault, outcome.verdict, outcome.test)
            finally:
                trees.put(tree)

        executor = ThreadPoolExecutor(workers)
        try:
            for done in [executor.submit(run_group, tests) for tests in groups]:
                done.result()
        finally:
            executor.shutdown(cancel_futures=True)
    return found


def simulate(
    faults: Sequence[Fault], seeds: int, most: int, workers: int, *, is_kept: bool = False
) -> list[Outcome]:
    """Play faults in the simulator; print and return the outcomes, and perhaps keep them.

    A fault that no seed shows is none of the simulator's: its tests hold the promise.
    """
    reasons = {promise: why for why, promises in NOT_SHOWN.items() for promise in promises}
    hidden = [one for one in faults if one.promise in reasons]
    found = [Outcome(one, "not shown", detail=reasons[one.promise]) for one in hidden]
    asked = [one for one in faults if record.may_show(one)]
    for shown in played(asked, seeds, workers, most):
        found.append(Outcome(shown.fault, shown.verdict, shown.cpu_seconds, shown.detail))
        print(found[-1], flush=True)
        if is_kept:
            record.keep_shown(shown)
    caught = sum(one.verdict == "caught" for one in found)
    print(f"{caught} of {len(asked)} that a history may show are caught within {seeds} seeds")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults that the arguments choose; return 1 if one survived or could not be judged."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the faults, and run nothing")
    parser.add_argument(
        "--only",
        metavar="TEXT",
        nargs="+",
        default=[],
        help="those whose promise or file has one of these texts in it",
    )
    parser.add_argument(
        "--workers", type=at_least_one, default=2, help="copies side by side (default: 2)"
    )
    parser.add_argument(
        "--simulated",
        metavar="SEEDS",
        type=at_least_one,
        nargs="?",
        const=record.SEEDS,
        help="play so many seeds of the simulator with each fault in place of its tests, up to the "
        "first one whose history a checker refuses",
    )
    parser.add_argument(
        "--most",
        type=at_least_one,
        help="how many of the seeds that reach a fault's place are played with it "
        f"(default: {record.MOST})",
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="keep what is found, one fault at a time, and write the part of docs/reliability.md",
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="choose those that the record lacks: an interrupted run goes on",
    )
    options = parser.parse_args(arguments)
    names = {fault: f"{fault.path}: {fault.promise}" for fault in FAULTS}
    for text in options.only:
        if not text or not any(text in name for name in names.values()):
            parser.error(f"argument --only: no fault has {text!r} in its name; --list shows them")
    faults = [
        fault
        for fault in FAULTS
        if not options.only or any(text in names[fault] for text in options.only)
    ]
    if options.most is not None and options.simulated is None:
        parser.error("--most is of --simulated: give that, too")
    if options.list and options.record:
        parser.error("--list runs nothing that --record could keep")
    most = options.most or record.MOST
    budget = (options.simulated or record.SEEDS, most)
    if options.record and budget != (record.SEEDS, record.MOST):
        parser.error(f"the record is of {record.SEEDS} seeds, and of {record.MOST} at most")
    if options.missing:
        faults = record.lacking(faults, "tests" if options.simulated is None else "simulator")
        if not faults:
            print("the record lacks none")
            return 0
    if options.list:
        for fault in faults:
            print(names[fault])
        return 0
    began = time.monotonic()
    if options.simulated is not None:
        found = simulate(faults, options.simulated, most, options.workers, is_kept=options.record)
    else:
        found = run_faults(faults, ROOT, options.workers, is_kept=options.record)
    if options.record:
        record.write_page()
    counts = {one.verdict: sum(o.verdict == one.verdict for o in found) for one in found}
    wrong = [one for one in found if one.is_wrong]
    if wrong:
        print("\nto be mended:", *wrong, sep="\n")
    shown = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    print(f"\n{len(found)} faults in {time.monotonic() - began:.0f} s: {shown}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
