"""The model of a commit names functions of the package that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_action_of_the_model_names_functions_that_are_there() -> None:
    model = (ROOT / "docs/model/commit.pml").read_text()
    named = re.findall(r"/\* (engine/[\w/]+\.py): ([^.,*]*?(?:\.\w+[^.,*]*)?)[.,:*]", model)
    assert len(named) >= 10
    for path, words in named:
        source = (ROOT / "pravega_spark" / path).read_text()
        names = re.findall(r"\b_?\w+\.(_?\w+)\b|\b(\w+_\w+|[A-Z]\w+[A-Z]\w+)\b", words)
        assert names, (path, words)
        for found in names:
            name = found[0] or found[1]
            assert re.search(rf"(?:def|class) {name}\b", source), (path, name)
