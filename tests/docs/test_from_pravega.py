"""docs/from-pravega.md has every class, method, option and command of Pravega, and ours exist.

tests/fixtures/pravega_names.json lists them as Pravega's sources have them.
"""

from __future__ import annotations

import ast
import inspect
import json
import re

import pytest

import pravega_spark
from pravega_spark.config.root_settings import SETTING_NAMES
from tests.harness.page_examples import REPOSITORY

TEXT = (REPOSITORY / "docs/from-pravega.md").read_text(encoding="utf-8")
PAGE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
NAMES = json.loads((REPOSITORY / "tests/fixtures/pravega_names.json").read_text(encoding="utf-8"))
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")


def words(text: str) -> set[str]:
    """Every name in backticks, and every word of a command."""
    found = CODE.findall(text)
    return set(found) | {word for phrase in found for word in phrase.split()}


@pytest.mark.parametrize("name", NAMES["client"])
def test_every_class_of_the_client_has_its_methods_and_options_on_the_page(name: str) -> None:
    if name.endswith("Exception"):
        assert name in words(PAGE)
        return
    home = [section for section in SECTIONS if f"`{name}`" in section]
    assert home, name
    known = words("\n".join(home))
    assert [method for method in NAMES["client"][name] if method not in known] == []


@pytest.mark.parametrize("component", NAMES["commands"])
def test_every_command_is_on_the_page(component: str) -> None:
    (section,) = [section for section in SECTIONS if section.startswith("Command line")]
    known = words(section)
    assert [verb for verb in NAMES["commands"][component] if verb not in known] == []


@pytest.mark.parametrize("component", NAMES["options"])
def test_every_option_of_the_servers_is_on_the_page(component: str) -> None:
    (section,) = [section for section in SECTIONS if section.startswith("Options of the servers")]
    if component == "controller":
        rows = section.partition("| component ")[0]
    else:
        _, _, rows = section.partition("| component ")
        lines = rows.splitlines()
        start = next(n for n, line in enumerate(lines) if f"`{component}`" in line.split("|")[1])
        end = next(
            (n for n in range(start + 1, len(lines)) if not lines[n].startswith("| |")), len(lines)
        )
        rows = "\n".join(lines[start:end])
        if "| all" in rows:
            return
    assert [option for option in NAMES["options"][component] if option not in words(rows)] == []


def callables(name: str) -> list[inspect.Signature]:
    """The public class of this name, and each method that has it."""
    public = [getattr(pravega_spark, word) for word in pravega_spark.__all__]
    classes = [found for found in public if inspect.isclass(found)]
    found = [made for made in public if getattr(made, "__name__", "") == name]
    found += [vars(owner)[name] for owner in classes if name in vars(owner)]
    return [inspect.signature(getattr(made, "__func__", made)) for made in found if callable(made)]


def test_calls_of_the_page_have_the_keywords_of_ours() -> None:
    refused, seen = [], set()
    for code in CODE.findall(PAGE):
        try:
            tree = ast.parse(code, mode="eval").body
        except SyntaxError:
            continue
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name | ast.Attribute):
            continue
        name = tree.func.id if isinstance(tree.func, ast.Name) else tree.func.attr
        for keyword in tree.keywords:
            seen.add(name)
            if not any(keyword.arg in signature.parameters for signature in callables(name)):
                refused.append(code)
    assert {"StreamManager", "delete_scope", "list_streams"} <= seen
    assert refused == []


def test_what_the_page_names_of_this_package_exists() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "pravega_spark").rglob("*.py")
    )
    ours = {
        name
        for line in PAGE.splitlines()
        if line.startswith("|")
        for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", line.rsplit("|", 2)[-2])
    }
    assert len(ours) > 80
    known = {*re.findall(r"\w+", sources), *SETTING_NAMES, "max_pool_connections"}
    assert sorted(ours - known) == []
    classes = {name for name in words(PAGE) if name in pravega_spark.__all__}
    assert {"StreamManager", "ScalingPolicy", "TableInsert", "KeyVersion"} <= classes
