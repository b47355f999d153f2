"""Command lines of ``deploy/``: whether the program that a line names accepts its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

from pravega_spark.cli.commands import commands
from pravega_spark.jobs import (
    compaction,
    export_stream,
    import_stream,
    maintenance,
    retention,
    scaling,
    transactions,
)

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
SCHEDULED = {job.PROG: job for job in (compaction, maintenance, retention, scaling, transactions)}
JOBS = SCHEDULED | {job.PROG: job for job in (import_stream, export_stream)}


def entry_points() -> dict[str, str]:
    """Return the commands that the wheel installs, each with its function."""
    text = (REPOSITORY / "pyproject.toml").read_text()  # no TOML reader in Python 3.10
    section = text.partition("[project.scripts]\n")[2].partition("\n[")[0]
    return dict(re.findall(r'^([\w-]+) = "(.+)"$', section, re.MULTILINE))


def job_of(words: list[str]) -> tuple[str, SimpleNamespace]:
    """Return the job of a command line, and its options as the job's parser reads them.

    No options are returned for ``pravega-spark``, whose own parser accepts them. Raises ValueError
    for a program that is none of the package's, SystemExit or ClickException for refused options.
    """
    program, *arguments = words
    name = Path(program).name
    if name == "pravega-spark":
        assert name in entry_points()
        command, *options = arguments
        found = commands.get_command(None, command)  # type: ignore[arg-type]
        assert found is not None, command
        found.make_context(command, options)
        return command, SimpleNamespace()
    if name.startswith("python") and arguments[0] == "-m":
        job, options = arguments[1].removeprefix("pravega_spark.jobs."), arguments[2:]
    elif name in entry_points():
        module, _, function = entry_points()[name].partition(":")
        assert module == "pravega_spark.jobs.entry_points"
        assert name == f"pravega-spark-{function.replace('_', '-')}"
        job, options = function, arguments
    elif program.endswith(".py"):
        assert (REPOSITORY / "jobs" / name).is_file()
        job, options = name.removesuffix(".py"), arguments
    else:
        raise ValueError(f"{shlex.join(words)} is no command of the package")
    return job, JOBS[job].parse(options)
