"""A fleet of processes on one root, some of an older release, that are replaced while they work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO

from tests.harness import file_kms
from tests.harness.releases import environment
from tests.sim.upgrade.working import KEY

TREE = Path(__file__).parents[3]
OLD = "0.1.0"
NEW = "this"


@dataclass
class Member:
    """A process that works at one of the fleet's places."""

    name: str
    release: str
    process: subprocess.Popen[str]
    errors: IO[bytes]

    def order(self, what: str) -> None:
        """Give an order; ``done`` waits until it is carried out."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def done(self) -> str:
        """Return the line that says that an order is carried out, or fail with its errors."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            self.process.wait()
            raise AssertionError(
                f"{self.name} ended with {self.process.returncode}:\n{self.said()}"
            )
        return line

    def said(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode()

    def stop(self) -> None:
        """Let it end as an application does: it carries out its orders before."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait() == 0, f"{self.name}:\n{self.said()}"
        self.discard()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.discard()

    def discard(self) -> None:
        """Close what this side has open."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.errors.close()


class Fleet:
    """Processes at numbered places; each replacement is another one's successor there."""

    def __init__(
        self, root: str, history: Path, seed: int, places: int, first: str = OLD, **more: str
    ) -> None:
        """The release ``first`` makes the root, which the old one then fills.

        ``more`` are environment variables: those by which a storage is reached.
        """
        self.root, self.history, self.seed = root, history, seed
        keys = history.with_suffix(".keys")
        keys.write_text(json.dumps({KEY: "secret"}))
        self.more = {"PRAVEGA_SPARK_KMS": file_kms.FACTORY, file_kms.VARIABLE: str(keys), **more}
        self._numbers = count()
        self.members = [self.started("maker", first)]
        self.members[0].order("create")
        self.members[0].done()
        self.members.pop().stop()
        self.members += [self.started(place, OLD) for place in range(places)]

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()

    def started(self, place: int | str, release: str) -> Member:
        """Start a process and wait until it is ready."""
        number = next(self._numbers)
        name = f"{'old' if release == OLD else 'new'}-{place}-{number}"
        arguments = (self.root, self.history, name, place, 1_000 * self.seed + number)
        own = {**os.environ, "PYTHONPATH": str(TREE)}
        variables = own if release == NEW else environment(release, TREE)
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the member
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.sim.upgrade.working", *map(str, arguments)],
            env={**variables, **self.more},
            cwd=TREE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        member = Member(name, release, process, errors)
        version = member.done()
        assert (version == OLD) == (release == OLD), version
        return member

    def work(self) -> None:
        """Let all work for a round, at the same time."""
        for member in self.members:
            member.order("round")
        for member in self.members:
            member.done()

    def replace(self, place: int, release: str, *, kill_after: int | None) -> None:
        """Put a process of another release in one's place, while the others work.

        It is stopped after its round, or killed once the history has that many more lines. Its
        successor says of a killed one that its readers are gone.
        """
        before = self.members[place]
        lines = self.lines()
        for member in self.members:
            member.order("round")
        if kill_after is None:
            before.done()
            before.stop()
        else:
            while self.all_run() and self.lines() < lines + kill_after:
                time.sleep(0.01)
            assert before.process.poll() is None, before.said()
            before.kill()
        after = self.members[place] = self.started(place, release)
        if kill_after is not None:
            after.order(f"expire {before.name}")
            after.done()
        for member in self.members:
            if member is not after:
                member.done()

    def all_run(self) -> bool:
        """Whether no process has ended by itself: ``done`` says why one has."""
        return all(member.process.poll() is None for member in self.members)

    def lines(self) -> int:
        return self.history.read_bytes().count(b"\n")

    def stop(self) -> None:
        """Stop all, one after the other; the last ones go on without the others."""
        while self.members:
            self.members.pop().stop()

    def audit(self) -> None:
        """Let a process of each release read everything, alone."""
        for release in (OLD, NEW):
            member = self.started(f"audit-{release}", release)
            self.members.append(member)
            member.order("audit")
            member.done()
            self.members.pop().stop()
