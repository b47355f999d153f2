"""House rules that no linter checks: no name twice, and modules and functions stay small."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import pravega_spark

PACKAGE = Path(pravega_spark.__file__).parent
MODULES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
FUNCTION_LINES = 60
MODULE_LINES = 400
LONGER_MODULES = {
    "__init__.py",  # the public names: for type checkers, for users, and where each one is
    "errors.py",  # the whole tree of errors, with their fields
    "manager.py",  # Pravega's names, one line each
    "model.py",  # frozen values
    "records.py",  # a codec for each record of a stream's state
    "stream.py",  # the verbs of one stream
}


def test_no_two_modules_share_a_name() -> None:
    found = defaultdict(list)
    for path in MODULES:
        if not path.stem.startswith("__"):
            found[path.stem].append(str(path.relative_to(PACKAGE)))
    assert [paths for paths in found.values() if len(paths) > 1] == []


def test_no_two_classes_share_a_name() -> None:
    found = defaultdict(list)
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(path.stem)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_and_functions_stay_small(path: Path) -> None:
    if path.name not in LONGER_MODULES:
        lines = path.read_text().count("\n")
        assert lines <= MODULE_LINES
    for node in ast.walk(MODULES[path]):
        if isinstance(node, ast.FunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{node.name} has {lines} lines"
