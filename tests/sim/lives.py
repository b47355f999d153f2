"""What a program of a workload knows of the process that it runs in, simulated or real."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

Body = Callable[["Life"], object]

_REFUSALS = (
    "ConditionFailed", "FencingTokenMismatch", "WriterFenced", "StreamSealed", "TxnFailed",
    "ConditionalTableUpdate", "ScaleConflict", "HeldBySubscriber", "InvalidInput", "NotFound",
    "TruncatedData", "ReinitializationRequired", "IllegalState", "StoreFull", "StoreReadOnly",
)  # fmt: skip
"""Errors, with those below them, that say that nothing was done. After any other the call is open:
it may have its effect later."""


def is_refusal(error: BaseException) -> bool:
    """Return whether an error says that its call has no effect; each copy of the package has its
    own classes, so their names decide."""
    return any(kind.__name__ in _REFUSALS for kind in type(error).__mro__)


class OpenCall(Protocol):
    """A call that is being recorded."""

    def ok(self, value: Any = None) -> None:
        """It returned a value."""

    def failed(self, error: BaseException) -> None:
        """It was refused."""

    def ended_with(self, error: BaseException) -> None:
        """It raised: refused, or of unknown outcome, by what the error says."""


class Life(ABC):
    """A program in one of its processes. A workload asks it for all but the package's verbs."""

    name: str
    """The process in the history; another one after each kill."""
    author: str
    """The program's name in all of its lives."""
    lives: int
    """Which life this is, from 1."""
    source: random.Random
    state: MutableMapping[str, Any]
    """What the program knows in its next life, as if it had it from outside."""
    scope: str
    """Where its streams, groups and tables are."""
    group_name = "g"
    segments: int
    """Segments of the streams that it creates."""
    made: set[str]
    """The streams and tables that this life need not create any more."""
    package: Any
    """The module ``pravega_spark``."""
    root: str
    """The root's URL."""
    copied = ""
    """What its backups take: the root, or a scope."""
    pinned_for = "7 days"
    """How long a backup that was killed holds what it copies, if nobody goes on with it."""
    group_retention = "none"
    """Of the groups that it creates."""
    changes_groups = False
    lease = "10 s"
    """Of its readers."""
    retry_timeout = "60 s"
    """Of its calls of an object store."""
    has_long_waits = False
    """Whether programs wait for minutes, in which maintenance becomes due."""

    @property
    def stream(self) -> str:
        return f"{self.scope}/t"

    @property
    def other(self) -> str:
        """The second stream, of joint transactions."""
        return f"{self.scope}/u"

    @property
    def quiet(self) -> str:
        """The stream that is written to seldom, and swept."""
        return f"{self.scope}/q"

    @property
    def brief(self) -> str:
        """The stream that is deleted while a group reads it."""
        return f"{self.scope}/brief"

    @property
    def bytes(self) -> str:
        """The stream of bytes."""
        return f"{self.scope}/b"

    @property
    def timed(self) -> str:
        """The stream whose writers note times."""
        return f"{self.scope}/times"

    @property
    def sealed(self) -> str:
        """The stream that is sealed while others write to it."""
        return f"{self.scope}/v"

    @property
    def loaded(self) -> str:
        """The stream that is scaled by its load."""
        return f"{self.scope}/loaded"

    @property
    def group(self) -> str:
        return f"{self.scope}/{self.group_name}"

    @property
    def table(self) -> str:
        return f"{self.scope}/kv"

    @property
    def shared_state(self) -> str:
        return f"{self.scope}/state"

    @property
    def errors(self) -> Any:
        return self.module("errors")

    @abstractmethod
    def module(self, path: str) -> Any:
        """Return a module of the package by its path below it."""

    @abstractmethod
    def manager(self) -> Any:
        """Return a manager of the root."""

    @abstractmethod
    def place_of(self, copy: str) -> str:
        """Return where a copy of the root is made."""

    @abstractmethod
    def now(self) -> int:
        """Return a time in ns that never goes back, the same in all lives."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait for a time."""

    @abstractmethod
    def begin(self, operation: str, **arguments: Any) -> OpenCall:
        """Record that a call begins."""

    def look_at(self, error: BaseException) -> bool:
        """Be told of an error, which may end the run; return whether the run goes on."""
        return True

    def strike_soon(self, seconds: float = 2.0) -> bool:
        """Perhaps kill the process within so many seconds; return whether it will be."""
        return False

    def pause_soon(self) -> bool:
        """Perhaps stop the process for a while at one of its next calls of the storage; return
        whether it will be."""
        return False

    def cut_off(self, seconds: float) -> bool:
        """Perhaps cut the process off from the storage for a time; return whether it is."""
        return False

    def stop_at(self, failpoint: str, passing: int = 0, seconds: float = 200.0) -> bool:
        """Perhaps stop the process when it has passed a failpoint so often and comes to it again,
        until another one has it go on, or so many seconds have passed; return whether it will be.
        """
        return False

    def lose_commit(self, how: str) -> bool:
        """Perhaps leave the process's next commit without an answer; return whether it will be.

        ``how`` is "unheard": it lands, and the process stops, at the failpoint of that name, until
        another one has it go on. Or it is "held back": it lands when the process has looked for it
        in vain, before it is sent again.
        """
        return False

    def meanwhile(self, failpoint: str, seconds: float = 60.0) -> bool:
        """Wait so long for another process to stop at a failpoint; return whether it has."""
        return False

    def go_on(self, failpoint: str) -> bool:
        """Let the process go on that has stopped at a failpoint; return whether one had."""
        return False

    def call(
        self,
        operation: str,
        function: Callable[[], Any],
        *,
        told: Any = lambda found: None,
        **arguments: Any,
    ) -> tuple[bool, Any]:
        """Make a call of the package, record it, and return (whether it succeeded, its result).

        ``told`` makes of the result what the history has.
        """
        call = self.begin(operation, **arguments)
        try:
            found = function()
            recorded = told(found)
        except self.errors.PravegaSparkError as error:
            call.ended_with(error)
            self.look_at(error)
            return False, error
        call.ok(recorded)
        return True, found

    def until_it_works(self, function: Callable[[], Any], *accepted: str) -> Any:
        """Repeat what is not part of the history until it succeeds; accept errors of some names."""
        while True:
            try:
                return function()
            except self.errors.PravegaSparkError as error:
                self.look_at(error)
                if type(error).__name__ in accepted:
                    return error
                self.wait(1.0)
