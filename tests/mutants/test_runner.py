from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutants.__main__ import Tree, run_faults
from tests.mutants.faults import Fault

SOURCE = "from __future__ import annotations\n\n\ndef larger(a, b):\n    return a if a > b else b\n"
TEST = "from pravega_spark import larger\n\n\ndef test_larger():\n    assert larger(2, 1) == 2\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one function and its tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # each run starts in half the time
    root = tmp_path / "root"
    for name, text in {
        "pravega_spark/__init__.py": SOURCE,
        "tests/test_larger.py": TEST,
        "tests/test_slow.py": "import time\n\n\ndef test_slow():\n    time.sleep(600)\n",
        "tests/test_red.py": "def test_red():\n    assert False\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    return root


def fault(text: str, becomes: str, test: str = "test_larger.py", equal: str = "") -> Fault:
    return Fault(f"{text} or {becomes}", "__init__.py", text, becomes, (test,), equal)


@pytest.mark.medium
def test_outcome_of_each_fault_is_told_and_the_tree_is_left_as_it_was(root: Path) -> None:
    expected = {
        fault("a > b", "a < b"): ("caught", False),
        fault("a > b", "a > 0"): ("survived", True),
        fault("a > b", "a >= b", equal="of two equal numbers each is the larger"): ("equal", False),
        fault("a > b", "b > a", equal="it is not"): ("error", True),
        fault("a > b", "a > c"): ("error", True),
        fault("a == b", "a != b"): ("error", True),
        fault("a > b", "a >> b", "test_red.py"): ("error", True),
    }
    found = run_faults([*expected], root, workers=2)
    assert {one.fault: (one.verdict, one.is_wrong) for one in found} == expected
    details = {one.fault.becomes: one.detail for one in found}
    assert "test_larger.py::test_larger" in details["a < b"]
    assert "its text is 0 times in" in details["a != b"]
    assert "ends in NameError" in details["a > c"]
    assert "fail without a fault" in details["a >> b"]
    assert (root / "pravega_spark/__init__.py").read_text() == SOURCE


@pytest.mark.medium
def test_tests_that_hang_are_killed(root: Path, tmp_path: Path) -> None:
    run = Tree(root, tmp_path / "copy").run(["test_slow.py"], limit=2)
    assert run.code is None


@pytest.mark.medium
def test_tests_that_run_another_package_than_the_copy_are_told(root: Path) -> None:
    (root / "tests/conftest.py").write_text("import sys\nsys.modules['pravega_spark'] = sys\n")
    with pytest.raises(SystemExit, match="do not run the copy"):
        run_faults([fault("a > b", "a < b")], root, workers=1)
