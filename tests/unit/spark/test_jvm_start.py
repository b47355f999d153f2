"""A start of Spark that failed is explained by what is missing, and by nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pravega_spark.errors import IllegalState
from pravega_spark.spark.jars import PACKAGES
from pravega_spark.spark.jvm_start import IVY, Java, explained_start, installed_java

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
ENDED = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."


def java_of(folder: Path, version: str) -> Path:
    """A Java that only says its version, and the folder that JAVA_HOME would name."""
    program = folder / "bin/java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


def said(message: str, spark: str = "4.2.0", **settings: str) -> str:
    """What is said of a start that failed with a message of PySpark."""
    with (
        pytest.raises(IllegalState, match=r"^Spark did not start: ") as found,
        explained_start({f"spark.jars.{name}": text for name, text in settings.items()}, spark),
    ):
        raise RuntimeError(message)
    return str(found.value)


def test_java_home_that_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert said(ENDED) == (
        f"Spark did not start: {tmp_path}/none/bin/java does not run, and Spark 4.2 needs Java 17 "
        "to 25: install a JDK, and set JAVA_HOME to its folder."
    )


def test_path_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "java (on PATH, as JAVA_HOME is not set) does not run" in said(ENDED)


@pytest.mark.parametrize(
    ("text", "major"), [("1.8.0_491", 8), ("11.0.2", 11), ("17.0.15", 17), ("25", 25)]
)
def test_version_of_a_java_is_its_first_number(
    text: str, major: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path, text)))
    assert installed_java() == Java(f"{tmp_path}/bin/java", major)


def test_old_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path, "11.0.2")))
    assert "bin/java is version 11, and Spark 4.2 needs Java 17 to 25" in said(ENDED)
    with (
        pytest.raises(RuntimeError, match="GATEWAY"),
        explained_start({}, "3.5.9"),  # it takes Java 11
    ):
        raise RuntimeError(ENDED)


def test_java_too_new_for_the_hadoop_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path, "25.0.2")))
    for message in (ENDED, "java.lang.UnsupportedOperationException: getSubject is not supported"):
        assert "is version 25, and Spark 4.0 names Java 17 to 21" in said(message, "4.0.5")
    given = {"packages": DELTA, "ivy": str(tmp_path)}
    assert re.search(
        r"Java 17 to 21: .+; or io.delta:.+ could not be", said(ENDED, "4.0.5", **given)
    )


def test_packages_that_were_not_fetched_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path, "17.0.1")))
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/org.example_x-1.jar").touch()
    given = {"packages": f"org.example:x:1, {DELTA}", "ivy": str(tmp_path)}
    text = said(ENDED, **given)
    assert f": {DELTA} could not be fetched into {tmp_path}/jars" in text
    assert "name a mirror by spark.jars.ivySettings, or the jars themselves" in text
    assert "delta=False" not in text, "only who added Delta can leave it out"


def test_other_failures_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path, "17.0.1")))
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar").touch()
    settings = {PACKAGES: DELTA, IVY: str(tmp_path)}
    for message in (ENDED, "Could not parse Master URL"):
        with (
            pytest.raises(RuntimeError, match=message[1:9]),
            explained_start(settings, "4.2.0"),
        ):
            raise RuntimeError(message)
