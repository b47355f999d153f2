"""Files of ``deploy/``: schemas hold, units verify, and every command line is one that runs."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from databricks.bundles.jobs import Job

from tests.harness.launch_lines import DEPLOY, REPOSITORY, SCHEDULED, entry_points, job_of

KUBERNETES = "1.34"
"""The newest version of Kubernetes whose schema the files are checked against."""
TIME = r"[\d*/,-]+"
CRON_LINE = re.compile(rf"^(?:# )?(?:{TIME} +){{5}}(/.*)$", re.MULTILINE)


def manifests() -> list[Any]:
    return [
        pytest.param(manifest, id=f"{file.stem}-{manifest['kind']}")
        for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        for manifest in yaml.safe_load_all(file.read_text())
    ]


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The specifications of pods in a manifest, at whatever depth."""
    template = manifest["spec"].get("template", {})
    if manifest["kind"] == "CronJob":
        template = manifest["spec"]["jobTemplate"]["spec"]["template"]
    return [template["spec"]] if template else []


def test_page_links_every_file() -> None:
    page = (REPOSITORY / "docs/deploy.md").read_text()
    folders = ("airflow", "cron", "databricks", "docker", "kubernetes", "spark", "systemd")
    files = [file for folder in folders for file in (DEPLOY / folder).iterdir()]
    links = set(re.findall(r"\(\.\./(deploy/[^)]+)\)", page))
    missing = {str(file.relative_to(REPOSITORY)) for file in files if file.is_file()} - links
    assert missing == {"deploy/docker/Dockerfile.dockerignore"}


# ----------------------------------------------------------------------------------------- cron


def test_crontab_has_a_line_for_each_job_and_for_the_command() -> None:
    lines = CRON_LINE.findall((DEPLOY / "cron/pravega-spark.crontab").read_text())
    found = [job_of(shlex.split(line.partition(" >> ")[0]))[0] for line in lines]
    assert sorted(found) == sorted([*SCHEDULED, "maintain"])
    assert found[0] == "maintenance", "the only line without a comment sign"


# --------------------------------------------------------------------------------------- systemd


def unit_lines(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def environment_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("job", SCHEDULED)
def test_unit_of_each_job_runs_it_on_the_root_of_the_environment(job: str) -> None:
    (line,) = unit_lines(DEPLOY / "systemd/pravega-spark@.service", "ExecStart")
    root = environment_of((DEPLOY / "systemd/environment").read_text())["PRAVEGA_SPARK_ROOT"]
    words = shlex.split(line.replace("%i", job).replace("${PRAVEGA_SPARK_ROOT}", root))
    found, arguments = job_of(words)
    assert (found, arguments.root, arguments.interval) == (job, "s3://bucket/streams", None)


@pytest.mark.parametrize("command", ["maintain", "serve"])
def test_unit_without_spark_keeps_running(command: str) -> None:
    unit = DEPLOY / f"systemd/pravega-spark-{command}.service"
    (line,) = unit_lines(unit, "ExecStart")
    assert job_of(shlex.split(line))[0] == command
    assert unit_lines(unit, "Type") == ["exec"]
    assert command == "serve" or line.endswith(" --interval")


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="systemd is not installed (apt install systemd)",
)
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in (DEPLOY / "systemd").glob("*.*"):
        text = unit.read_text()
        program = re.compile(r"/opt/pravega_spark/\.venv/bin/pravega-spark(-%i)?")
        (tmp_path / unit.name).write_text(program.sub(sys.executable, text))
    instances = [
        f"pravega-spark@{job}.{kind}" for job in SCHEDULED for kind in ("service", "timer")
    ]
    services = ["pravega-spark-maintain.service", "pravega-spark-serve.service"]
    done = subprocess.run(
        ["systemd-analyze", "verify", *services, *instances],
        cwd=tmp_path,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "pravega-spark" in line]
    assert (done.returncode, complaints) == (0, [])


# ------------------------------------------------------------------------------------ Kubernetes


@pytest.mark.parametrize("manifest", manifests())
def test_kubernetes_schema_accepts_the_manifest(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("manifest", manifests())
def test_container_runs_a_command_of_the_package_without_rights(manifest: dict[str, Any]) -> None:
    for pod in pods(manifest):
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            job_of([*container["command"], *container["args"]])
            rights = container["securityContext"]
            assert rights["capabilities"] == {"drop": ["ALL"]}
            assert rights["readOnlyRootFilesystem"]
            assert not rights["allowPrivilegeEscalation"]


def test_schema_refuses_a_misspelt_field() -> None:
    manifest = yaml.safe_load((DEPLOY / "kubernetes/maintenance.yaml").read_text())
    manifest["spec"]["concurencyPolicy"] = manifest["spec"].pop("concurrencyPolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


# --------------------------------------------------------------------------------------- Airflow

DAGS = sorted((DEPLOY / "airflow").glob("*.py"))


def operator(file: Path) -> dict[str, Any]:
    """The literal arguments of a file's only operator."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    (found,) = [c for c in calls if isinstance(c.func, ast.Name) and "Operator" in c.func.id]
    arguments = {}
    for keyword in found.keywords:
        try:
            arguments[str(keyword.arg)] = ast.literal_eval(keyword.value)
        except ValueError:  # a call, such as timedelta(hours=1)
            continue
    return arguments


@pytest.mark.parametrize("file", DAGS, ids=lambda file: file.stem)
def test_operator_runs_a_command_of_the_package(file: Path) -> None:
    found = operator(file)
    if "application" in found:
        words = [found["application"], *found["application_args"]]
    elif "cmds" in found:
        words = [*found["cmds"], *found["arguments"]]
    else:
        words = shlex.split(found["bash_command"])
    assert job_of(words)[0] == ("maintain" if "without_spark" in file.stem else "maintenance")


# ------------------------------------------------------------------------------------ Databricks


def bundle() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "databricks/databricks.yml").read_text())
    return found


def test_databricks_accepts_the_job_and_writes_it_back_unchanged() -> None:
    job = bundle()["resources"]["jobs"]["maintenance"]
    assert Job.from_dict(job).as_dict() == job


def test_databricks_refuses_a_misspelt_field() -> None:
    job = bundle()["resources"]["jobs"]["maintenance"]
    job["max_concurent_runs"] = job.pop("max_concurrent_runs")
    with pytest.raises(ValueError, match="max_concurent_runs"):
        Job.from_dict(job)


def test_wheel_task_names_an_entry_point_and_its_options() -> None:
    job = bundle()["resources"]["jobs"]["maintenance"]
    (task,) = job["tasks"]
    wheel = task["python_wheel_task"]
    assert wheel["package_name"].replace("_", "-") == "pravega-spark"
    assert wheel["entry_point"] in entry_points()
    name, arguments = job_of([wheel["entry_point"], *wheel["parameters"]])
    assert (name, arguments.root) == ("maintenance", "${var.root}")
    assert "root" in bundle()["variables"]


def test_wheel_task_installs_the_extras_that_the_runtime_lacks() -> None:
    (environment,) = bundle()["resources"]["jobs"]["maintenance"]["environments"]
    wheel, *installed = environment["spec"]["dependencies"]
    assert wheel == "../../dist/*.whl"
    text = (REPOSITORY / "pyproject.toml").read_text()
    extras = [line for line in text.splitlines() if line.startswith(("jobs = ", "s3 = "))]
    wanted = {word for line in extras for word in re.findall(r'"([^"]+)"', line)}
    assert set(installed) == wanted - {"pravega-spark[delta,spark]"}
