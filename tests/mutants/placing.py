"""Faults placed in the simulated processes of a fork, by the code of the functions they change.

Copies of the package share their code objects, so a fault that lies within functions is placed in
all of them at once, and in the fork alone: no module is loaded again.
"""

from __future__ import annotations

import ast
import gc
import inspect
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.mutants.faults import PACKAGE, Fault
from tests.sim import copies
from tests.sim.copies import Copy

_REACHED = "__fault_reached__"
Swap = tuple[types.CodeType, types.CodeType]
"""The code of a function, and what it becomes."""


def module_of(fault: Fault) -> str:
    """Return the name of the module that has a fault's place."""
    parts = [PACKAGE, *Path(fault.file).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def swaps_of(fault: Fault, source: str) -> list[Swap] | None:
    """Return which functions a fault changes; None if it changes what runs at the import."""
    return _swapped(module_of(fault), fault.placed_in(source))


def _swapped(module: str, other: str | ast.Module) -> list[Swap] | None:
    found = copies._code(module)
    assert found is not None
    code, file, _ = found
    return _differences(code, compile(other, file, "exec", dont_inherit=True))


def _differences(old: types.CodeType, new: types.CodeType) -> list[Swap] | None:
    swaps: list[Swap] = []
    if _own(old) != _own(new):
        if not old.co_flags & inspect.CO_OPTIMIZED or old.co_freevars != new.co_freevars:
            return None
        swaps.append((old, new))
    below, others = _nested(old), _nested(new)
    if [one.co_name for one in below] != [one.co_name for one in others]:
        return swaps or None  # made anew by the function that has them
    for one, other in zip(below, others, strict=True):
        deeper = _differences(one, other)
        if deeper is None:
            return swaps or None
        swaps += deeper
    if swaps and old.co_flags & inspect.CO_OPTIMIZED and swaps[0][0] is not old:
        swaps.insert(0, (old, new))  # it makes those below
    return swaps


def _nested(code: types.CodeType) -> list[types.CodeType]:
    return [one for one in code.co_consts if isinstance(one, types.CodeType)]


def _own(code: types.CodeType) -> tuple[Any, ...]:
    """Return what a code does, wherever its lines are, without what it does in nested ones."""
    constants = [
        one.co_name if isinstance(one, types.CodeType) else (type(one), repr(one))
        for one in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


class Places:
    """Where faults go in the functions of all copies, and which of them a seed reaches."""

    def __init__(self, root: Path, faults: Sequence[Fault], warm: Sequence[Copy]) -> None:
        """Find the functions of all faults; those of ``elsewhere`` change an import."""
        self.reached: Counter[int] = Counter()
        loaded = {name for copy in warm for name in copy.modules}
        self.absent = [fault for fault in faults if module_of(fault) not in loaded]
        here = [fault for fault in faults if fault not in self.absent]
        sources = {fault.file: fault.read(root) for fault in here}
        found = {fault: swaps_of(fault, sources[fault.file]) for fault in here}
        self.elsewhere = [fault for fault in here if not found[fault]]
        self._swaps = {fault: swaps for fault, swaps in found.items() if swaps}
        self.numbers = {fault: number for number, fault in enumerate(self._swaps)}
        self._markers = list(self._marked(sources))
        every = {old for swaps in [*self._swaps.values(), self._markers] for old, _ in swaps}
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        gc.unfreeze()
        for one in gc.get_referrers(*every) if every else []:
            if isinstance(one, types.FunctionType):
                self._functions.setdefault(one.__code__, []).append(one)
        gc.freeze()
        for copy in warm:
            copy._builtins[_REACHED] = self._note

    def _note(self, number: int) -> None:
        self.reached[number] += 1

    def place(self, fault: Fault) -> None:
        """Place a fault in this process, for good."""
        self._exchange(self._swaps[fault])

    def mark(self) -> None:
        """Have ``reached`` count in this process, for good, how often each place is reached."""
        self._exchange(self._markers)

    def _exchange(self, swaps: Sequence[Swap]) -> None:
        for old, new in swaps:
            for function in self._functions.get(old, ()):
                function.__code__ = new

    def _marked(self, sources: Mapping[str, str]) -> Iterator[Swap]:
        for file, source in sources.items():
            tree = ast.parse(source)
            its = [fault for fault in self._swaps if fault.file == file]
            for fault in its:
                first = source[: source.index(fault.text)].count("\n") + 1
                blank = len(fault.text) - len(fault.text.lstrip("\n"))
                _insert(tree, first + blank, self.numbers[fault])
            if its:
                yield from _swapped(module_of(its[0]), ast.fix_missing_locations(tree)) or []


def _insert(tree: ast.Module, line: int, number: int) -> None:
    """Insert a call before the innermost statement that has a line."""
    place: tuple[int, list[ast.stmt], ast.stmt] | None = None
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            statements: Any = getattr(node, name, None)
            if not isinstance(statements, list):  # a lambda's is an expression
                continue
            for one in statements:
                last: int = one.end_lineno or line
                if one.lineno <= line <= last:
                    size: int = last - one.lineno
                    if place is None or size <= place[0]:
                        place = size, statements, one
    assert place is not None
    _, statements, one = place
    call = ast.Call(ast.Name(_REACHED, ast.Load()), [ast.Constant(number)], [])
    statements.insert(statements.index(one), ast.copy_location(ast.Expr(call), one))
