"""Histories as checkers read them: the calls of a history, in the order in which they began."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.sim.history import FORMAT, encode

_SHOWN = 500
"""Characters of a call's arguments, and of its answer, in messages."""


@dataclass
class Recorded:
    """A call as a history has it; ``began`` and ``ended`` are lines, the order of everything."""

    number: int
    process: str
    operation: str
    arguments: Mapping[str, Any]
    began: int
    ended: int | None = None
    outcome: str = "info"
    """``ok``, ``fail`` (certainly without effect) or ``info`` (unknown, open to the end)."""
    value: Any = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def may_have_happened(self) -> bool:
        return self.outcome != "fail"

    def before(self, other: Recorded) -> bool:
        """Return whether this call ended, with an outcome, before the other began."""
        return self.ended is not None and self.ended < other.began

    def __str__(self) -> str:
        end = "" if self.ended is None else f"-{self.ended}"
        told = str(self.value if self.ok else self.error or "unknown")
        asked = encode(self.arguments)
        shown = (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..." for text in (asked, told))
        return f"lines {self.began}{end}: {self.process} {self.operation} {': '.join(shown)}"


class BadHistory(ValueError):
    """A text is not a history; the message names the line and what is wrong in it."""


def calls_of(text: str | Iterable[str]) -> list[Recorded]:
    """Return the calls of a history in the order in which they began."""
    lines = text.removesuffix("\n").split("\n") if isinstance(text, str) else list(text)
    calls: dict[int, Recorded] = {}
    version = _object(1, lines[0]).get("history") if lines else None
    if version != FORMAT or type(version) is not int:
        raise BadHistory(f'line 1 is not {{"history":{FORMAT},...}}')
    last = 0
    open_calls: set[int] = set()
    for at, text_line in enumerate(lines[1:], 2):
        line = _object(at, text_line)
        try:
            step, number, kind = line["step"], line["call"], line["type"]
        except KeyError as error:
            raise BadHistory(f"line {at} lacks {error}") from None
        if type(step) is not int or type(number) is not int:
            raise BadHistory(f"line {at}: step {step!r} or call {number!r} is no whole number")
        if step < last:
            raise BadHistory(f"line {at}: step {step} after step {last}")
        last = step
        _check_fields(at, line)
        if kind == "invoke":
            if number in calls:
                raise BadHistory(f"line {at}: call {number} began before")
            if number != len(calls):
                raise BadHistory(
                    f"line {at}: call {number} begins where call {len(calls)} is due: the "
                    "numbers are from 0, in the order in which calls begin"
                )
            calls[number] = Recorded(
                number, line["process"], line["operation"], line["arguments"], at
            )
            open_calls.add(number)
            continue
        if number not in open_calls:
            raise BadHistory(f"line {at}: call {number} is not open")
        open_calls.remove(number)
        call = calls[number]
        call.outcome, call.value, call.error = kind, line.get("value"), line.get("error")
        call.ended = None if kind == "info" else at
    return list(calls.values())


_FIELDS: Mapping[str, tuple[set[str], set[str]]] = {
    "invoke": ({"process", "operation", "arguments"}, set()),
    "ok": ({"value"}, set()),
    "fail": ({"error"}, {"value"}),
    "info": (set(), set()),
}
"""Of each type of line what it has beside step, call and type, and what it may have."""


def _check_fields(at: int, line: Mapping[str, Any]) -> None:
    kind = line["type"]
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise BadHistory(f"line {at}: no outcome is called {kind!r}")
    needed, others = _FIELDS[kind]
    for name in sorted(needed - line.keys()):
        raise BadHistory(f"line {at} lacks {name!r}")
    for name in sorted(line.keys() - needed - others - {"step", "call", "type"}):
        raise BadHistory(f"line {at}: a line of type {kind!r} has no {name!r}")
    for name in ("process", "operation", "error"):
        if not isinstance(line.get(name, ""), str):
            raise BadHistory(f"line {at}: {name} {line[name]!r} is no text")
    if line.get("error") == "":
        raise BadHistory(f"line {at}: the error has no name")


def of(calls: Sequence[Recorded], *operations: str) -> list[Recorded]:
    """Return the calls of some operations."""
    return [call for call in calls if call.operation in operations]


def _object(at: int, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text, object_pairs_hook=_once)
        one_form = encode(line)
    except ValueError as error:
        raise BadHistory(f"line {at} is no JSON: {error}") from None
    except RecursionError:
        raise BadHistory(f"line {at} has too many brackets in one another") from None
    if not isinstance(line, dict):
        raise BadHistory(f"line {at} is no JSON object")
    if one_form != text:
        raise BadHistory(
            f"line {at} is not in the form that it has everywhere: keys in order, no spaces, only "
            "ASCII, and a line end without a carriage return"
        )
    return line


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, which has each key once: JSON does not say which of two values counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for n, (name, _) in enumerate(pairs) if name in dict(pairs[:n]))
        raise ValueError(f"the key {twice!r} is there twice")
    return found
