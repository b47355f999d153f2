"""Whatever a public signature names is public itself, so that a caller can import it."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import GenericAlias, ModuleType

import pytest

import pravega_spark


def is_class(value: object) -> bool:
    """Return whether a value is a class; Python 3.10 takes ``Callable[...]`` for one."""
    return inspect.isclass(value) and not isinstance(value, GenericAlias)


PUBLIC = sorted(
    name
    for name in pravega_spark.__all__
    if is_class(getattr(pravega_spark, name)) or inspect.isfunction(getattr(pravega_spark, name))
)


ALIASES = {"Deserializer", "ExpectedPosition", "Notification", "Serializer"}
"""Types that are not classes."""


@cache
def ours(module: ModuleType) -> dict[str, str]:
    """The names in a module that come from this package, with where each is defined.

    Also what only type checkers import.
    """
    assert module.__file__ is not None
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pravega_spark"):
            found |= {alias.asname or alias.name: str(node.module) for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            found[node.name] = module.__name__
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = module.__name__
    return found


def members(node: ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield what is annotated in public: fields, arguments and results, with what it is called.

    Not ``__init__``: users get these objects from methods.
    """
    if isinstance(node, ast.FunctionDef):
        arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        found = [*(argument.annotation for argument in arguments), node.returns]
        yield from ((node.name, annotation) for annotation in found if annotation)
        return
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
            yield from ((f"{node.name}.{name}", found) for name, found in members(item))
        elif isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_"):
            yield f"{node.name}.{ast.unparse(item.target)}", item.annotation


def classes_in(name: str) -> Iterator[tuple[str, str]]:
    """Yield the classes of this package in the annotations of a public name, and the member."""
    value = getattr(pravega_spark, name)
    module = importlib.import_module(value.__module__)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    (node,) = (n for n in tree.body if getattr(n, "name", None) == value.__name__)
    assert isinstance(node, (ast.ClassDef, ast.FunctionDef))
    for member, annotation in members(node):
        for part in ast.walk(annotation):
            if isinstance(part, ast.Name) and part.id in ours(module):
                home = importlib.import_module(ours(module)[part.id])
                if is_class(getattr(home, part.id)) or part.id in ALIASES:
                    yield part.id, member


@pytest.mark.parametrize("name", PUBLIC)
def test_every_class_in_a_public_signature_is_public(name: str) -> None:
    hidden = {n: member for n, member in classes_in(name) if n not in pravega_spark.__all__}
    assert hidden == {}
