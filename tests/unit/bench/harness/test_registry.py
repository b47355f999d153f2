from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

from bench import cases
from bench.harness.registry import find

SOURCE = """
from bench.harness.registry import Phase, benchmark

@benchmark(Phase.{phase})
def {name}(context):
    yield
"""


def package(tmp_path: Path, name: str, modules: dict[str, tuple[str, str]]) -> ModuleType:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    for module, (function, phase) in modules.items():
        (folder / f"{module}.py").write_text(SOURCE.format(name=function, phase=phase))
    return importlib.import_module(name)


def test_benchmark_is_found_by_lying_in_the_package_and_those_with_spark_run_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = {
        "apples": ("apple", "SPARK"),
        "berries": ("berry", "CHANGES_SHARED_INPUT"),
        "cherries": ("cherry", "PLAIN"),
        "dates": ("date", "PLAIN"),
    }
    found = package(tmp_path, "orchard", modules)
    assert [each.name for each in find(found)] == ["cherry", "date", "berry", "apple"]
    assert [each.name for each in find(found, ["err", "app"])] == ["cherry", "berry", "apple"]


def test_two_benchmarks_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = {"apples": ("apple", "PLAIN"), "pears": ("apple", "PLAIN")}
    with pytest.raises(AssertionError, match="apple"):
        find(package(tmp_path, "twins", modules))


def test_every_module_of_cases_has_a_benchmark() -> None:
    modules = {info.name for info in pkgutil.iter_modules(cases.__path__)}
    assert {each.run.__module__.rpartition(".")[2] for each in find(cases)} == modules
