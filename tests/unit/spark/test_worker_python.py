from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark.spark.worker_python import (
    DRIVER,
    INTERPRETER,
    SCRIPT,
    WORKERS,
    worker_python,
)

pyspark = pytest.importorskip("pyspark")
HOME = Path(pyspark.__file__).resolve().parent


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a test chooses; begin without a choice."""
    for name in (WORKERS, DRIVER, INTERPRETER, "SPARK_HOME", "MASTER", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)


def chosen(**settings: str) -> tuple[str | None, ...]:
    """Return the programs and the script's interpreter while Spark starts."""
    with worker_python({name.replace("_", "."): value for name, value in settings.items()}):
        return tuple(map(os.environ.get, (WORKERS, DRIVER, INTERPRETER)))


PLAIN = (sys.executable, sys.executable, None)


@pytest.mark.parametrize("master", [{}, {"spark_master": "local"}, {"spark_master": "local[4,2]"}])
def test_local_spark_of_the_installed_pyspark_starts_with_the_script(
    master: dict[str, str],
) -> None:
    assert chosen(**master) == (SCRIPT, SCRIPT, sys.executable)
    assert tuple(map(os.environ.get, (WORKERS, DRIVER, INTERPRETER))) == PLAIN


def test_script_replaces_the_same_interpreter_and_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WORKERS, sys.executable)
    monkeypatch.setenv(DRIVER, "/opt/other/python")
    assert chosen() == (SCRIPT, "/opt/other/python", sys.executable)
    assert os.environ[WORKERS] == sys.executable

    monkeypatch.setenv(WORKERS, "/opt/other/python")
    assert chosen() == ("/opt/other/python", "/opt/other/python", None)


def environment(folder: Path, base: Path) -> Path:
    """Make a virtual environment of a base interpreter; return its ``bin/python``."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin/python").symlink_to(base)
    (folder / "bin/python3").symlink_to("python")
    return folder / "bin/python"


def test_interpreter_is_the_same_by_every_path_and_another_one_in_another_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base = Path(sys.executable).resolve()
    mine, other = (environment(tmp_path / name, base) for name in ("mine", "other"))
    (tmp_path / "link").symlink_to(mine.parent.parent)
    monkeypatch.setattr(sys, "executable", str(mine))
    same = (mine, mine.with_name("python3"), tmp_path / "link/bin/python")
    for program, is_same in ((p, p in same) for p in (*same, other, base)):
        monkeypatch.setenv(WORKERS, str(program))
        monkeypatch.delenv(DRIVER, raising=False)
        expected = SCRIPT if is_same else str(program)
        assert chosen()[0] == expected, program
    monkeypatch.setenv("PATH", str(mine.parent))
    monkeypatch.setenv(WORKERS, "python3")
    assert chosen()[0] == SCRIPT
    monkeypatch.setenv(WORKERS, "no-such-python")
    assert chosen()[0] == "no-such-python"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "local-cluster[2,1,1024]"])
def test_spark_on_other_machines_gets_the_interpreter_itself(master: str) -> None:
    assert chosen(spark_master=master) == PLAIN


def test_jvm_that_already_runs_gets_the_interpreter_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert chosen() == PLAIN


def test_another_spark_than_the_installed_one_gets_the_interpreter_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert chosen() == PLAIN


def test_pyspark_that_only_this_process_finds_gets_the_interpreter_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "pyspark"))
    assert chosen() == PLAIN
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert chosen() == (SCRIPT, SCRIPT, sys.executable)


def test_interpreter_that_a_setting_names_stays() -> None:
    assert chosen(spark_pyspark_python="/opt/other/python") == (None, None, None)


def test_script_runs_the_interpreter_with_the_installed_pyspark_and_the_users_path(
    tmp_path: Path,
) -> None:
    archive = HOME / "python" / "lib" / "pyspark.zip"
    assert archive.is_file()
    jar = next(HOME.glob("jars/spark-core_*.jar"))
    mine = tmp_path / "my *modules"
    mine.mkdir()
    (mine / "mine.py").write_text("")
    program = "import sys, importlib.util as u; print(sys.executable, *sys.argv[1:], sep='\\n')"
    program += "; print(u.find_spec('pyspark').origin, u.find_spec('mine').origin, sep='\\n')"
    done = subprocess.run(
        [SCRIPT, "-c", program, "two words"],
        env={
            **os.environ,
            "SPARK_HOME": str(HOME),
            "PYTHONPATH": os.pathsep.join(map(str, (archive, jar, mine, archive))),
            INTERPRETER: sys.executable,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    executable, argument, found, own = done.stdout.splitlines()
    assert (executable, argument) == (sys.executable, "two words")
    assert Path(found).resolve() == HOME / "__init__.py"
    assert Path(own) == mine / "mine.py"
