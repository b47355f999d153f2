"""Docstrings for a site in Markdown: without the roles that only Sphinx knows."""

from __future__ import annotations

import re
from typing import Any

from griffe import Docstring, Extension, Object

_ROLE = re.compile(r":(?:class|data|func|meth|mod):(?=`)")
_LITERAL = re.compile(r"^::$", re.MULTILINE)
_VERB = re.compile(r"_verb\((.+)\)")


class DocstringMarkup(Extension):
    """Removes roles such as ``:func:`` and the mark of a literal block from every docstring."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of an object that griffe has read.

        A verb that ``StreamManager`` takes from ``Stream`` says where it is described.
        """
        verb = _VERB.fullmatch(str(getattr(obj, "value", "")))
        if verb:
            obj.docstring = Docstring(f"See `{verb[1]}`, after the name of the stream.")
        if obj.docstring:
            obj.docstring.value = _LITERAL.sub("", _ROLE.sub("", obj.docstring.value))
