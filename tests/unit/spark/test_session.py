from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.spark.jars import JARS, PACKAGES
from pravega_spark.spark.session import (
    CATALOG,
    DEFAULTS,
    DELTA_CATALOG,
    DELTA_EXTENSION,
    EXTENSIONS,
    _defaults_file,
    _missing_settings,
    _submit_arguments,
    _submitted_packages,
    session,
)

DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE")
    for name in (*spark, "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


def missing(known: dict[str, str], spark: str = "4.2.0", delta: bool = True) -> dict[str, str]:
    return _missing_settings(known, spark, delta)


def test_bare_settings_get_delta() -> None:
    wanted = missing({})
    assert wanted[PACKAGES] == DELTA_PACKAGE
    assert (wanted[EXTENSIONS], wanted[CATALOG]) == (DELTA_EXTENSION, DELTA_CATALOG)


def test_server_of_the_environment_is_that_of_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [key for key in missing({}) if "s3a" in key], "AWS has its own server"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all:9000")
    wanted = missing({})
    assert wanted["spark.hadoop.fs.s3a.endpoint"] == "http://all:9000"
    assert wanted["spark.hadoop.fs.s3a.path.style.access"] == "true"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3:9000")
    assert missing({})["spark.hadoop.fs.s3a.endpoint"] == "http://s3:9000"
    own = {
        "spark.hadoop.fs.s3a.endpoint": "http://own",
        "spark.hadoop.fs.s3a.path.style.access": "",
    }
    assert not [key for key in missing(own) if "s3a" in key]


def test_settings_of_the_user_stay_and_packages_are_extended() -> None:
    wanted = missing(
        {
            PACKAGES: "org.example:x:1, org.example:y:2",
            EXTENSIONS: "org.example.Extension",
            CATALOG: "org.example.Catalog",
            "spark.sql.execution.arrow.pyspark.enabled": "false",
        }
    )
    assert wanted[PACKAGES] == f"org.example:x:1,org.example:y:2,{DELTA_PACKAGE}"
    assert wanted[EXTENSIONS] == f"org.example.Extension,{DELTA_EXTENSION}"
    assert CATALOG not in wanted
    assert "spark.sql.execution.arrow.pyspark.enabled" not in wanted


def test_another_delta_version_of_the_user_replaces_the_default_one() -> None:
    packages = "io.delta:delta-spark_4.2_2.13:4.4.1"
    assert PACKAGES not in missing({PACKAGES: packages})
    assert missing({PACKAGES: packages})[EXTENSIONS] == DELTA_EXTENSION
    assert PACKAGES not in missing({"spark.jars": "/jars/delta-spark_4.2_2.13-4.4.0.jar"})


def test_without_delta_nothing_of_it_is_set_and_nothing_is_fetched() -> None:
    wanted = missing({}, delta=False)
    assert wanted == dict.fromkeys(DEFAULTS, "true")
    own = {PACKAGES: "io.delta:delta-spark_4.2_2.13:4.4.1", CATALOG: DELTA_CATALOG}
    assert missing(own, delta=False) == wanted, "what the user names stays"


def test_spark_without_a_jar_of_delta_leaves_it_out_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert missing({}, "4.3.0") == dict.fromkeys(DEFAULTS, "true")
    (line,) = caplog.messages
    assert "Delta Lake has no jar for Spark 4.3: take Spark 4.2" in line
    own = missing({JARS: "/jars/delta-spark_4.3_2.13-4.5.0.jar"}, "4.3.0")
    assert (own[EXTENSIONS], own[CATALOG]) == (DELTA_EXTENSION, DELTA_CATALOG)
    assert PACKAGES not in own
    assert len(caplog.messages) == 1


def test_jar_of_delta_among_those_of_spark_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert missing({})[PACKAGES] == DELTA_PACKAGE
    (tmp_path / "jars" / "io.delta_delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert PACKAGES not in missing({})
    assert missing({})[EXTENSIONS] == DELTA_EXTENSION


def test_packages_of_spark_and_hadoop_get_their_versions() -> None:
    hadoop = "org.apache.hadoop:hadoop-aws"
    assert missing({PACKAGES: hadoop}, delta=False)[PACKAGES] == f"{hadoop}:3.5.0"
    assert missing({PACKAGES: hadoop}, "4.0.5")[PACKAGES] == (
        f"{hadoop}:3.4.1,io.delta:delta-spark_4.0_2.13:4.4.0"
    )
    assert PACKAGES not in missing({PACKAGES: f"{hadoop}:3.4.9"}, delta=False)


def test_settings_of_the_defaults_file_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("spark-defaults.conf").write_text(
        "# a comment\n\nspark.jars.packages  org.example:x:1\nspark.sql.extensions=a.B\nodd\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert _defaults_file() == {PACKAGES: "org.example:x:1", EXTENSIONS: "a.B"}


def test_submit_arguments_are_known_and_get_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYSPARK_SUBMIT_ARGS",
        "--packages org.example:x:1 --conf spark.a='b c' --jars /j.jar pyspark-shell",
    )
    found = _submit_arguments()
    assert found == {PACKAGES: "org.example:x:1", "spark.a": "b c", "spark.jars": "/j.jar"}
    before = os.environ["PYSPARK_SUBMIT_ARGS"]
    with _submitted_packages(missing(found)):
        words = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        assert words[1] == f"org.example:x:1,{DELTA_PACKAGE}"
        assert words[-1] == "pyspark-shell"
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == before


class _Builder:
    """A substitute for SparkSession.builder, which returns its settings."""

    def __init__(self, **options: str) -> None:
        self._options: dict[str, str] = options

    def config(self, key: str, value: str) -> _Builder:
        self._options[key] = value
        return self

    def getOrCreate(self) -> dict[str, str]:
        return self._options


def dict_of(settings: Any) -> dict[str, str]:
    assert isinstance(settings, dict)
    return settings


def test_databricks_and_remote_servers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"spark.a": "b"}
    assert dict_of(session(_Builder(**{"spark.remote": "sc://host"}), **given)) == {
        "spark.remote": "sc://host",
        **given,
    }
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    assert dict_of(session(_Builder(), **given)) == given


def test_session_without_pyspark_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pravega-spark\[spark\]'"):
        session()
