"""The doctor names what is wrong and the way on, and leaves nothing behind."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.cli import doctor_spark, main
from pravega_spark.manager import StreamManager
from pravega_spark.spark.jvm_start import Java


@pytest.fixture(autouse=True)
def no_root_and_no_python_of_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)  # the doctor starts it
    monkeypatch.delenv("PRAVEGA_SPARK_ROOT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))


def findings(capsys: Any, *argv: str) -> tuple[int, dict[str, dict[str, str]]]:
    capsys.readouterr()
    status = main(["doctor", *argv, "--output", "json"])
    return status, {found["check"]: found for found in json.loads(capsys.readouterr().out)}


def test_a_new_folder_is_probed_and_left_as_it_was(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "root").mkdir()
    status, found = findings(capsys, "--root", str(tmp_path / "root"))
    assert status == 0
    assert found["root"]["status"] == "note"
    assert found["exclusive creates"]["status"] == "ok"
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file()] == []


def test_a_root_that_does_not_exist_does_not_exist_afterwards(tmp_path: Path, capsys: Any) -> None:
    status, _ = findings(capsys, "--root", str(tmp_path / "new" / "root"))
    assert status == 0
    assert list(tmp_path.iterdir()) == []


def test_without_a_root_the_machine_is_looked_at(capsys: Any) -> None:
    status, found = findings(capsys)
    assert status == 0
    assert "Python" in found["pravega-spark"]["detail"]
    assert "pass --root" in found["root"]["detail"]


def test_what_cannot_work_fails_with_the_way_on(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    status, found = findings(capsys, "--root", "/etc/passwd")
    assert status == 1
    assert "/no/such/python" in found["worker python"]["detail"]
    assert re.search(r"version 11, and Spark 4\.\d needs Java 17", found["java"]["detail"])
    assert found["root"]["status"] == "fail"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 1", "cannot run the package: exit status 1. Set it to"),
        ("echo 2.7", "is Python 2.7, and this is"),
        ("echo {version}; echo 'No module named x' >&2; exit 1", "No module named x. Set it to"),
    ],
)
def test_python_of_workers_that_cannot_run_the_package_fails(
    script: str, problem: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = "{}.{}".format(*sys.version_info[:2])
    worker = tmp_path / "python"
    worker.write_text(f"#!/bin/sh\n{script.format(version=version)}\n")
    worker.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(worker))
    status, found = findings(capsys)
    assert (status, found["worker python"]["status"]) == (1, "fail")
    assert problem in found["worker python"]["detail"]
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert findings(capsys)[1]["worker python"]["status"] == "ok"


def test_lost_and_garbled_markers_fail(tmp_path: Path, capsys: Any) -> None:
    StreamManager(tmp_path / "root").create_scope("s")
    marker = tmp_path / "root" / "_pravega_spark.json"
    marker.write_bytes(b"garbage")
    status, found = findings(capsys, "--root", str(tmp_path / "root"))
    assert (status, found["root"]["status"]) == (1, "fail")
    assert "_pravega_spark.json" in found["root"]["detail"]
    marker.unlink()
    status, found = findings(capsys, "--root", str(tmp_path / "root"))
    assert (status, found["root"]["status"]) == (1, "fail")
    assert "has no marker, but holds scopes: s" in found["root"]["detail"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The versions of packages: those that fit Spark 4.2; and no settings of Spark."""
    found = {
        **{"pyspark": "4.2.0", "delta-spark": "4.4.0", "pandas": "2.3.3", "pyarrow": "20.0.0"},
        **{"fsspec": "2026.1.0", "botocore": "1.40"},
    }

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    for name in ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    asked = ["py4j<0.11", 'pandas>=2.2.0; extra == "sql"', 'pyarrow>=18.0.0; extra == "sql"']
    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: asked)
    monkeypatch.setattr(doctor_spark, "installed_java", lambda: Java("/usr/bin/java", 17))
    settings = {"spark.jars.ivy": str(tmp_path / "ivy")}
    monkeypatch.setattr(doctor_spark, "environment_settings", lambda: settings)
    return found


def fetched(folder: Path, name: str) -> None:
    (folder / "ivy/jars").mkdir(parents=True, exist_ok=True)
    (folder / "ivy/jars" / name).touch()


def test_versions_that_fit_each_other_are_ok(
    installed: dict[str, str], tmp_path: Path, capsys: Any
) -> None:
    fetched(tmp_path, "io.delta_delta-spark_4.2_2.13-4.4.0.jar")
    status, found = findings(capsys)
    names = ("spark", "java", "delta-spark", "delta jar", "pandas", "pyarrow")
    assert {name: found[name]["status"] for name in names} == dict.fromkeys(names, "ok")
    assert status == 0
    assert str(tmp_path / "ivy/jars") in found["delta jar"]["detail"]


def test_clients_of_object_stores_are_shown_where_they_are_installed(
    installed: dict[str, str], capsys: Any
) -> None:
    found = findings(capsys)[1]
    assert found["botocore"] == {"check": "botocore", "status": "ok", "detail": "1.40"}
    assert not {"s3fs", "gcsfs", "adlfs"} & set(found)
    del installed["botocore"]
    installed.update({"s3fs": "2026.9.0", "gcsfs": "2026.9.1", "adlfs": "2026.9.2"})
    found = findings(capsys)[1]
    assert found["botocore"]["status"] == "note"
    assert found["botocore"]["detail"].endswith("for s3:// roots")
    shown = {name: found[name]["detail"] for name in ("s3fs", "gcsfs", "adlfs")}
    assert shown == {"s3fs": "2026.9.0", "gcsfs": "2026.9.1", "adlfs": "2026.9.2"}


@pytest.mark.parametrize(
    ("versions", "check", "status", "detail"),
    [
        ({}, "delta jar", "note", "delta-spark_4.2_2.13:4.4.0 is not in .*delta=False"),
        ({"pyspark": "4.3.0"}, "delta jar", "note", "no jar for Spark 4.3.*needs none"),
        ({"pyspark": "4.3.0"}, "delta-spark", "note", "session.. leaves Delta out"),
        ({"delta-spark": "4.3.1"}, "delta-spark", "note", "session.. takes io.delta:.*:4.4.0"),
        ({"pyspark": "3.5.9"}, "spark", "note", "is for Spark 4.0 to 4.3"),
        ({"pyspark": "4.9.0"}, "spark", "note", "is for Spark 4.0 to 4.3"),
        ({"pyspark": "3.4.1"}, "spark", "fail", "is for Spark 4.0 to 4.3"),
        ({"pandas": "1.5.3"}, "pandas", "fail", "1.5.3, and pyspark 4.2.0 needs 2.2.0 or newer"),
        ({"pandas": "3.0.0"}, "pandas", "note", "install one before 3"),
        ({"pyarrow": "17.0.0"}, "pyarrow", "fail", "17.0.0, and pyspark 4.2.0 needs 18.0.0"),
    ],
)
def test_versions_that_do_not_fit_say_the_way_on(
    versions: dict[str, str],
    check: str,
    status: str,
    detail: str,
    installed: dict[str, str],
    capsys: Any,
) -> None:
    installed.update(versions)
    code, found = findings(capsys)
    assert found[check]["status"] == status
    assert re.search(detail, found[check]["detail"])
    assert code == (status == "fail")


def test_java_that_is_newer_than_those_of_spark_is_a_note(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    installed["pyspark"] = "4.0.5"
    monkeypatch.setattr(doctor_spark, "installed_java", lambda: Java("/usr/bin/java", 25))
    status, found = findings(capsys)
    assert (status, found["java"]["status"]) == (0, "note")
    assert "version 25, and Spark 4.0 names Java 17 to 21" in found["java"]["detail"]


def test_spark_home_of_another_release_fails(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "spark/jars").mkdir(parents=True)
    core = tmp_path / "spark/jars/spark-core_2.13-4.2.0.jar"
    core.touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    assert "SPARK_HOME" not in findings(capsys)[1]
    core.rename(core.with_name("spark-core_2.12-3.5.1.jar"))
    status, found = findings(capsys)
    assert (status, found["SPARK_HOME"]["status"]) == (1, "fail")
    assert "has Spark 3.5.1: unset it, or" in found["SPARK_HOME"]["detail"]


def test_pyspark_that_pip_does_not_know_is_looked_at_by_its_files(
    installed: dict[str, str], capsys: Any
) -> None:
    of_files = importlib.import_module("pyspark.version").__version__
    del installed["pyspark"]
    assert findings(capsys)[1]["spark"]["detail"].startswith(f"pyspark {of_files}")
