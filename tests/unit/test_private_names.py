"""A private name is its module's: what another module needs of an object has a name for it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import pravega_spark

PACKAGE = Path(pravega_spark.__file__).parent

EXCEPTIONS = {
    ("event_writer.py", "_outcomes"): "write_event fills its future in line: a call doubles it",
    ("event_writer.py", "_number"): "as above",
    ("engine/runtime/system.py", "_condition"): "of concurrent.futures, for a child after a fork",
    ("spark/session.py", "_options"): "of Spark's builder, which shows its options nowhere else",
}
IMPORTED = "an import"
_NAMING = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.Name, ast.Attribute, ast.ImportFrom),
)
OF_NAMED_TUPLES = {"_replace", "_fields", "_asdict", "_make"}


class Reach(NamedTuple):
    """One use of a private name of another module."""

    module: str
    line: int
    name: str


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES


def owned(nodes: Iterable[ast.AST]) -> set[str]:
    """The private names that a module gives to its functions, classes, values and attributes."""
    found = set[str]()
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                found.add(name)
    return set(filter(is_private, found))


def types_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    """The parameters of a function whose type is one name, perhaps or None."""
    for given in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        kind = given.annotation
        if isinstance(kind, ast.BinOp):
            kind = kind.left
        if isinstance(kind, ast.Name):
            yield given.arg, kind.id


def reached(tree: ast.Module) -> Iterator[tuple[int, str, str | None]]:
    """Each private name that is read or set on something else than self, and that one's type."""

    left: list[tuple[ast.AST, Mapping[str, str]]] = [(tree, {})]
    while left:
        node, types = left.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                types = {**types, **dict(types_of(node))}
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                pass
            case (
                ast.Attribute(value=of, attr=name)
                | ast.Call(
                    func=ast.Name(id="getattr"), args=[of, ast.Constant(value=str(name)), *_]
                )
            ) if is_private(name):
                yield node.lineno, name, types.get(of.id) if isinstance(of, ast.Name) else None
            case ast.ImportFrom(module=str(module), names=names):
                ours = module.startswith("pravega_spark")
                yield from ((node.lineno, n.name, IMPORTED) for n in names if ours)
        left += [(child, types) for child in ast.iter_child_nodes(node)]


def reaches(trees: Mapping[str, ast.Module]) -> Iterator[Reach]:
    """Uses of private names that another module owns, by the name or by the type of its object."""
    names, kinds = {}, {}
    for module, tree in trees.items():
        nodes = [node for node in ast.walk(tree) if isinstance(node, _NAMING)]
        names[module] = owned(nodes)
        kinds[module] = {
            imported.asname or imported.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pravega_spark")
            for imported in node.names
        } - {node.name for node in nodes if isinstance(node, ast.ClassDef)} | {IMPORTED}
    every = set().union(*names.values())
    for module, tree in trees.items():
        for line, name, kind in reached(tree):
            of_another = name in every and name not in names[module]
            if is_private(name) and (of_another or kind in kinds[module]):
                yield Reach(module, line, name)


def package() -> dict[str, ast.Module]:
    found = sorted(PACKAGE.rglob("*.py"))
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_bytes()) for path in found}


@pytest.mark.medium
def test_no_module_reaches_for_a_private_name_of_another() -> None:
    found = [*reaches(package())]
    assert [one for one in found if (one.module, one.name) not in EXCEPTIONS] == []
    used = {(one.module, one.name) for one in found}
    assert used >= EXCEPTIONS.keys(), "an exception is no longer needed"


def test_what_reaches_for_private_names_is_found() -> None:
    owner = ast.parse("class Store:\n    def __init__(self):\n        self._keys = self._own = 1")
    user = ast.parse(
        "from pravega_spark.store import Store, _hidden\n"
        "class User:\n"
        "    def __init__(self, store: Store | None):\n"
        "        self._own = store._own\n"  # the same name is owned here, too
        "        for each in [store]:\n"
        "            each._keys = getattr(each, '_keys')\n"
        "        self._own._replace(store._unknown)\n"
        "    def same(self, other: User):\n"
        "        return self._own == other._own\n"
    )
    found = [*reaches({"store.py": owner, "user.py": user})]
    assert sorted((reach.line, reach.name) for reach in found) == [
        (1, "_hidden"),
        (4, "_own"),
        (6, "_keys"),
        (6, "_keys"),
        (7, "_unknown"),
    ]
