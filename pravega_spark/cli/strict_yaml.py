"""YAML of plain values in which no name stands twice."""

from __future__ import annotations

from typing import Any

import yaml

from pravega_spark.arguments import shown
from pravega_spark.errors import InvalidInput


def read_yaml(data: bytes, where: str) -> Any:
    """Return the plain values of a YAML document in UTF-8; InvalidInput for anything else.

    ``where`` is what errors call the document.
    """
    try:
        return _values(data.decode(), where)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where} is no text in UTF-8: {error.reason}.") from None
    except RecursionError:
        raise InvalidInput(f"{where} is nested too deeply: use no more than ten levels.") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that is none
        raise InvalidInput(f"{where} is no YAML: {' '.join(str(error).split())}.") from error


def _values(text: str, where: str) -> Any:
    loader = _StrictLoader(text)
    loader.name = where
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _StrictLoader(yaml.SafeLoader):
    """Makes plain values only, as SafeLoader does, and refuses a name that stands twice."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{shown(key.value)} stands twice", problem_mark=key.start_mark
                )
            seen.add(name)
        return node
