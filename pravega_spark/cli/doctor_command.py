"""``pravega-spark doctor``: whether this machine and a root can work together."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pravega_spark.cli.doctor_spark import (
    BAD,
    GOOD,
    NOTE,
    Finding,
    installed_version,
    library,
    spark_findings,
)
from pravega_spark.cli.output import TABLE, output_option, show_table, show_value
from pravega_spark.cli.root_option import config_path, new_root, root_option, root_profile
from pravega_spark.errors import PravegaSparkError
from pravega_spark.values.package import install_extra
from pravega_spark.values.times import utc_text
from pravega_spark.values.units import time_text

if TYPE_CHECKING:
    from pravega_spark.engine.store import Store

_MOST_SKEW_SECONDS = 60
_CLIENTS = ("botocore", "s3fs", "gcsfs", "adlfs")
"""Clients of object stores; what a root needs and lacks, the root itself says."""


@click.command("doctor")
@root_option
@output_option
def doctor(root: str | None, output: str) -> int:
    """Look at this machine and the root: versions, Java, storage, clocks, rights.

    Without a root it checks only the machine. A root that does not exist yet is probed in a
    folder that is removed again; nothing is created. The exit status is 1 if something fails.
    """
    findings = [*_machine()]
    try:
        url = root_profile(root).root
    except click.UsageError:
        findings.append(Finding("root", NOTE, "none named: pass --root to have it looked at"))
    else:
        findings += _root(root, url)
    if output == TABLE:
        show_table(
            ("CHECK", "STATUS", "DETAIL"),
            [(found.check, found.status, found.detail) for found in findings],
        )
    else:
        rows = [{"check": f.check, "status": f.status, "detail": f.detail} for f in findings]
        show_value(rows, output)
    return 1 if any(found.status == BAD for found in findings) else 0


# --------------------------------------------------------------------------------------- machine


def _machine() -> Iterator[Finding]:
    from pravega_spark import __version__

    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("pravega-spark", GOOD, f"{__version__}, {python}")
    yield Finding("fsspec", GOOD, installed_version("fsspec") or "")
    yield library("pyarrow")
    for client in _CLIENTS:
        version = installed_version(client)
        if version is not None:
            yield Finding(client, GOOD, version)
        elif client == "botocore":
            yield Finding(client, NOTE, f"not installed: {install_extra('s3')} for s3:// roots")
    yield from spark_findings()
    path = config_path()
    yield Finding("profiles", GOOD, f"{path}{'' if path.exists() else ' (no such file)'}")


# ------------------------------------------------------------------------------------------ root


def _root(root: str | None, url: str) -> Iterator[Finding]:
    try:
        store = new_root(root).store
    except (PravegaSparkError, OSError) as error:
        yield Finding("root", BAD, f"{url}: {_line(error)}")
        return
    for check, look in (
        ("root", lambda: _marker(store)),
        ("exclusive creates", lambda: _creates(store)),
        ("clock", lambda: _clock(store)),
        ("maintenance", lambda: _maintenance(store)),
    ):
        yield _looked(check, look)


def _looked(check: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except (PravegaSparkError, OSError) as error:
        return Finding(check, BAD, _line(error))


def _marker(store: Store) -> Finding:
    """Look at the root's marker; a garbled one raises, and scopes without one have lost it."""
    from pravega_spark.engine.store.root_marker import missing_marker, read_root

    if read_root(store, refresh=True) is not None:
        return Finding("root", GOOD, f"{store.url} is a root")
    lost = str(missing_marker(store))
    if "holds scopes" in lost:
        return Finding("root", BAD, lost)
    return Finding("root", NOTE, f"{store.url} is not a root yet: the first scope makes it one")


def _creates(store: Store) -> Finding:
    """Race creates of the same names in a new folder, and delete it."""
    from pravega_spark.engine.store.probe import probe

    began = time.perf_counter()
    folder = Path(store.url.removeprefix("file://"))
    made = [path for path in (folder, *folder.parents) if store.is_local and not path.exists()]
    try:
        probe(store)
    finally:
        for path in made:  # only what the probe has made, and only if nobody uses it
            with contextlib.suppress(OSError):
                path.rmdir()
    took = time.perf_counter() - began
    detail = f"one winner in each race of threads; create, list and delete allowed ({took:.1f} s)"
    return Finding("exclusive creates", GOOD, detail)


def _clock(store: Store) -> Finding:
    if not store.has_clock:
        return Finding("clock", GOOD, "the storage has this machine's clock")
    skew = abs(store.time_ms() / 1_000 - time.time())
    if skew > _MOST_SKEW_SECONDS:
        text = f"differs from the storage's by {time_text(skew)}: set it; the storage's counts"
        return Finding("clock", NOTE, text)
    return Finding("clock", GOOD, f"within {skew:.1f} s of the storage's")


def _maintenance(store: Store) -> Finding:
    """Look whether anybody does the maintenance of the root, and which kinds are overdue."""
    from pravega_spark.config.root_settings import AUTO, decide_settings
    from pravega_spark.engine.runtime.system import SYSTEM
    from pravega_spark.engine.state.settings_table import open_settings
    from pravega_spark.engine.store.root_marker import read_root, root_restored_ms
    from pravega_spark.engine.stream.overdue_maintenance import (
        DEFAULT_KINDS,
        overdue_kinds,
        unmaintained,
    )

    if read_root(store) is None:
        return Finding("maintenance", NOTE, "applications will do it in a root that is set up now")
    settings = decide_settings(open_settings(store).read())
    late = unmaintained(store, SYSTEM, settings, DEFAULT_KINDS)
    if late is not None:
        restored_ms = root_restored_ms(store)
        since = "" if restored_ms is None else f"; it was restored at {utc_text(restored_ms)}"
        return Finding("maintenance", NOTE, late + since)
    late = overdue_kinds(store, SYSTEM, settings, DEFAULT_KINDS)
    if late:
        text = f"{late}: applications do it, a minute after they opened the root"
        return Finding("maintenance", NOTE, text)
    by = "applications do it" if settings.maintain == AUTO else "jobs do it"
    return Finding("maintenance", GOOD, f"{by}; no kind is overdue")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
