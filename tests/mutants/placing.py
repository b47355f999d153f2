"""Faults placed in the simulated processes of a fork, by the code of the functions they change.

Copies of the package share their code objects, so a fault that lies within functions is placed in
all of them at once, and in the fork alone: no module is loaded again.

A fault within one expression makes a difference only where that has another value with it. A
marked process asks for both values, so a seed in which they are always equal need not be played.
"""

from __future__ import annotations

import ast
import gc
import inspect
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.mutants.faults import PACKAGE, Fault
from tests.sim import copies
from tests.sim.copies import Copy

_REACHED, _DIFFERS = "__fault_reached__", "__fault_differs__"
_WITH_EFFECT = frozenset({"removed_after"})
"""Methods that must not be called once more: they ask the storage."""
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
            copy._builtins[_DIFFERS] = self._compare

    def _note(self, number: int) -> None:
        self.reached[number] += 1

    def _compare(self, number: int, value: Any, other: Callable[[], Any]) -> Any:
        """Note whether the fault makes another value of an expression; return that without it."""
        try:
            one, two = value, other()
            if isinstance(one, bool) or isinstance(two, bool):
                one, two = bool(one), bool(two)
            is_other = bool(one != two)
        except Exception:
            is_other = True
        if is_other:
            self.reached[number] += 1
        return value

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
            lines = [_line(fault, source) for fault in its]
            for fault, line in zip(its, lines, strict=True):
                changed = _changed(source, fault)
                number = self.numbers[fault]
                if changed is None:
                    _insert(tree, line, number)
                else:
                    tree = _Compared(*changed, number).visit(tree)
            if its:
                yield from _swapped(module_of(its[0]), ast.fix_missing_locations(tree)) or []


def _line(fault: Fault, source: str) -> int:
    blank = len(fault.text) - len(fault.text.lstrip("\n"))
    return source[: source.index(fault.text)].count("\n") + 1 + blank


_WHERE = ("lineno", "col_offset", "end_lineno", "end_col_offset")
_Place = tuple[int | None, ...]


def _place_of(node: ast.expr) -> _Place:
    return tuple(getattr(node, name, None) for name in _WHERE)


def _changed(source: str, fault: Fault) -> tuple[_Place, ast.expr] | None:
    """Return the expression that a fault changes, by its place, and what it becomes.

    None if it changes more than one expression, or one that must not be asked for twice.
    """
    found = _difference(ast.parse(source), ast.parse(fault.placed_in(source)))
    if found is None:
        return None
    unsafe = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)
    for one in found:
        if any(isinstance(node, unsafe) for node in ast.walk(one)):
            return None
        named = {node.attr for node in ast.walk(one) if isinstance(node, ast.Attribute)}
        if named & _WITH_EFFECT:
            return None
    for node in ast.walk(found[1]):  # else its place would be one of the other text
        for name in _WHERE:
            vars(node).pop(name, None)
    return _place_of(found[0]), found[1]


def _difference(old: ast.AST, new: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return the outermost expressions of one statement in which two trees differ, if in one."""
    if type(old) is not type(new):
        return None
    pairs: list[tuple[ast.AST, ast.AST]] = []
    for name, one in ast.iter_fields(old):
        other = getattr(new, name)
        if ast.dump(_listed(one)) == ast.dump(_listed(other)):
            continue
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            pairs += [(a, b) for a, b in zip(one, other, strict=True) if ast.dump(a) != ast.dump(b)]
        elif isinstance(one, ast.AST) and isinstance(other, ast.AST):
            pairs.append((one, other))
        else:
            return None
    if len(pairs) != 1:
        return None
    ((one, other),) = pairs
    if isinstance(one, ast.expr) and isinstance(other, ast.expr):
        return one, other
    return _difference(one, other)


def _listed(value: Any) -> ast.AST:
    """Return what a field of a node holds as a node, to be compared."""
    if isinstance(value, ast.AST):
        return value
    items = value if isinstance(value, list) else [value]
    nodes: list[Any] = [one if isinstance(one, ast.AST) else ast.Constant(one) for one in items]
    return ast.List(nodes, ast.Load())


class _Compared(ast.NodeTransformer):
    """Has an expression compared with what a fault makes of it."""

    def __init__(self, place: _Place, other: ast.expr, number: int) -> None:
        self._place, self._other, self._number = place, other, number

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and _place_of(node) == self._place:
            no_arguments = ast.arguments([], [], None, [], [], None, [])
            both = [node, ast.Lambda(no_arguments, self._other)]
            call = ast.Call(ast.Name(_DIFFERS, ast.Load()), [ast.Constant(self._number), *both], [])
            return ast.copy_location(call, node)
        return self.generic_visit(node)


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
