"""Commands maintain nothing unless told, say what nobody does, and turn it on and off."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from pravega_spark.cli import main
from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.engine.state.maintenance_table import JOB, MaintenanceTable, open_maintenance
from pravega_spark.engine.stream.overdue_maintenance import DEFAULT_KINDS
from pravega_spark.maintenance.auto import VARIABLE
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.serve import web_server

KEPT = StreamConfiguration(retention=RetentionPolicy.by_time("7 days"))


def finding(manager: StreamManager, capsys: Any) -> tuple[str, str]:
    capsys.readouterr()
    assert main(["doctor", "--root", manager.root, "--output", "json"]) == 0
    (found,) = (one for one in json.loads(capsys.readouterr().out) if one["check"] == "maintenance")
    return found["status"], found["detail"]


def ran(manager: StreamManager) -> None:
    store = root_of(manager).store
    for kind in DEFAULT_KINDS:
        open_maintenance(store).finish_now(kind, (None,), JOB, store.time_ms(), 1)


@pytest.fixture(autouse=True)
def no_python_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)  # the doctor starts it


@pytest.mark.medium
def test_the_doctor_says_whether_anybody_maintains_the_root(
    manager: StreamManager, capsys: Any
) -> None:
    status, detail = finding(manager, capsys)
    assert status == "note"
    assert "nothing maintains memory://" in detail
    assert "retention, scaling, transactions, sweeping, watermarks, folding never ran" in detail
    assert "update_settings(maintain='auto')" in detail
    manager.update_settings(maintain="auto")
    assert finding(manager, capsys)[1].endswith("a minute after they opened the root")
    ran(manager)
    assert finding(manager, capsys) == ("ok", "applications do it; no kind is overdue")
    manager.update_settings(maintain="off")
    assert finding(manager, capsys) == ("ok", "jobs do it; no kind is overdue")


def test_the_doctor_says_that_a_root_is_off_since_it_was_restored(
    manager: StreamManager, capsys: Any
) -> None:
    manager.update_settings(maintain="auto")
    manager.restore()
    status, detail = finding(StreamManager(manager.root), capsys)
    assert status == "note"
    assert "nothing maintains" in detail
    assert "; it was restored at 2" in detail


def test_a_stream_is_described_with_what_is_overdue(
    run: Any, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.create_stream("s/kept", KEPT)
    assert "OVERDUE" not in run("stream", "describe", "s/kept")[1]
    ran(manager)
    now_ms = root_of(manager).store.time_ms()
    monkeypatch.setattr(MaintenanceTable, "about_now_ms", lambda table: now_ms + 2 * 86_400_000)
    shown = run("stream", "describe", "s/kept")[1]
    (line,) = (line for line in shown.splitlines() if line.startswith("OVERDUE"))
    assert line.split(maxsplit=1)[1] == "retention has not run for 2.0 days"
    record = json.loads(run("stream", "describe", "s/kept", "--output", "json")[1])
    described = record[0] if isinstance(record, list) else record
    assert described["overdue"] == ["retention has not run for 2.0 days"]
    assert "retention has not run for 2.0 days" in run("check", "stream", "s/kept")[1]


def test_settings_of_a_root_are_given_and_taken_back(run: Any, manager: StreamManager) -> None:
    status, shown, _ = run("settings", "--setting", "maintain=off", "--setting", "grace=2 hours")
    assert status == 0
    assert manager.settings().summary() == "grace=2 hours (root), maintain=off (root)"
    (line,) = (line for line in shown.splitlines() if " maintain " in line)
    assert line.split() == ["-", "maintain", "off", "root", "off"]
    assert run("settings", "--setting", "grace=")[0] == 0
    assert manager.settings().summary() == "maintain=off (root)"
    status, _, error = run("settings", "--setting", "maintain")
    assert status == 2
    assert "--setting 'maintain' must be NAME=VALUE" in error
    status, _, error = run("settings", "--setting", "maintain=on")
    assert status != 0
    assert "the setting maintain must be 'off' or 'auto', got 'on'" in error


def test_a_command_maintains_nothing_by_the_setting_and_serve_only_if_told(
    run: Any, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    manager.update_settings(maintain="auto")
    manager.create_stream("s/t", KEPT)
    assert run("stream", "append", "s/t", stdin="event\n")[0] == 0
    served = list[StreamManager]()
    monkeypatch.setattr(web_server, "serve", lambda found, *_, **__: served.append(found))
    assert run("serve")[0] == 0
    assert not [t for t in threading.enumerate() if t.name.startswith("pravega-maintenance")]
    assert run("serve", "--maintain")[0] == 0
    assert [found._maintain for found in served] == ["off", "auto"]
    served[1].close()
    assert MaintenanceKind.COMPACTION not in DEFAULT_KINDS
