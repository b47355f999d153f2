"""The messages with which the package raises its errors, as its source code has them."""

from __future__ import annotations

import ast
import functools
import inspect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pravega_spark import errors

PACKAGE = Path(errors.__file__).parent
GAP = "…"
"""Stands for a part of a message that is filled in."""


def error_classes() -> dict[str, type[errors.PravegaSparkError]]:
    """Return every class of errors.py by name, in the order of the file."""
    return {
        name: found
        for name, found in vars(errors).items()
        if inspect.isclass(found) and issubclass(found, errors.PravegaSparkError)
    }


@functools.cache
def messages() -> dict[str, list[str]]:
    """Return by class the messages that are written where it is made, with a gap for each value."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in text for name in error_classes()):
            continue
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and (name := _name(call.func)) in error_classes():
                found[name] += [_template(argument) for argument in _message_arguments(call)]
    return dict(found)


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _message_arguments(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args[:1]
    yield from (keyword.value for keyword in call.keywords if keyword.arg == "message")


def _template(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_template(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
    return GAP
