"""``pravega-spark metrics``: the text, the file for node_exporter, and unusable input."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.cli import main
from pravega_spark.jobs.maintenance import parse as parse_job
from pravega_spark.manager import StreamManager
from pravega_spark.metrics import prometheus


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamManager:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/a")
    monkeypatch.setenv("PRAVEGA_SPARK_ROOT", manager.root)
    return manager


@pytest.mark.usefixtures("root")
def test_metrics_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics"]) == 0
    out, err = capsys.readouterr()
    assert 'pravega_stream_events{scope="s",stream="a"} 0.0\n' in out
    assert err == ""
    assert main(["metrics", "--scope", "other", "--max-streams", "1"]) == 0
    assert "pravega_stream_events{" not in capsys.readouterr().out


def test_textfile_is_replaced_as_a_whole_and_kept_if_the_root_cannot_be_read(
    root: StreamManager, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "node_exporter"
    folder.mkdir()
    target = folder / "streams.prom"
    assert main(["metrics", "--textfile", str(target)]) == 0
    assert capsys.readouterr().out == ""
    first = target.read_text()
    assert first.endswith("\n")
    with open(target) as opened:  # as node_exporter reads it meanwhile
        root.create_stream("s/b")
        assert main(["metrics", "--textfile", str(target)]) == 0
        assert opened.read() == first
    assert 'stream="b"' in target.read_text()
    kept = target.read_text()
    assert main(["metrics", "--textfile", str(target), "--root", str(tmp_path / "none")]) == 2
    assert target.read_text() == kept
    assert list(folder.iterdir()) == [target]


@pytest.mark.usefixtures("root")
def test_unusable_input_is_refused_with_the_way_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["metrics", "--textfile", "streams.txt"]) == 2
    assert "'streams.txt.prom'" in capsys.readouterr().err
    assert main(["metrics", "--textfile", str(tmp_path / "none/x.prom")]) == 1
    assert f"{tmp_path}/none/x.prom is not written: No such file" in capsys.readouterr().err
    assert main(["metrics", "--max-streams", "0"]) == 2
    assert "max_streams" in capsys.readouterr().err
    monkeypatch.setattr(prometheus, "Collector", object)  # as where there is no client
    assert main(["metrics"]) == 1
    assert "pip install 'pravega-spark[metrics]'" in capsys.readouterr().err


@pytest.mark.usefixtures("root")
def test_maintenance_writes_the_file_after_a_round_and_its_failure_fails_no_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "streams.prom"
    command = ["maintain", "--kinds", "transactions", "--metrics-textfile"]
    assert main([*command, str(target)]) == 0
    text = target.read_text()
    assert 'pravega_maintenance_overdue{kind="transactions",scope=""} 0.0' in text
    assert 'pravega_maintenance_age_seconds{kind="transactions",scope=""}' in text
    assert 'pravega_maintenance_age_seconds{kind="retention"' not in text, "only what ran"
    capsys.readouterr()
    assert main([*command, str(tmp_path / "none/x.prom")]) == 0
    assert "none/x.prom is not written: FileNotFoundError" in capsys.readouterr().err
    assert main([*command, "x"]) == 2
    assert "--metrics-textfile is 'x'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        parse_job(["--root", "r", "--metrics-textfile", "x"])
    assert ended.value.code == 2
    assert "'x.prom'" in capsys.readouterr().err
