"""What a job tells on stderr while its round runs."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from pravega_spark.jobs import report
from pravega_spark.jobs.report import RoundProgress, progress_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_has_count_last_stream_and_the_time_left() -> None:
    assert progress_text("streams", 200, (50, "s/x"), 30.0) == (
        "[#####...............] 50 of 200 streams, last s/x, about 90 s left"
    )
    assert progress_text("streams", 200, (0, ""), 30.0).endswith("0 of 200 streams, for 30 s")
    assert progress_text("streams", 1_000, None, 30.0) == "1,000 streams, for 30 s"
    assert "200 of 200" in progress_text("streams", 200, (225, "s/x"), 30.0)  # a repeated task


def shown(monkeypatch: pytest.MonkeyPatch, out: io.StringIO, prog: str) -> str:
    """Return what is on stderr after a block of three looks."""
    monkeypatch.setattr(report, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(report, "_BAR_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", out)
    looks = 0

    def look() -> tuple[int, str]:
        nonlocal looks
        looks += 1
        return looks, f"s/{looks}"

    told = RoundProgress(prog)
    with told.over("streams", 9, look):
        until = time.monotonic() + 10
        while prog and looks < 3 and time.monotonic() < until:
            time.sleep(0.01)
    return out.getvalue()


def test_logs_get_lines_and_a_terminal_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, io.StringIO(), "retention").splitlines()
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d retention: \[##\.+\] 1 of 9 streams, last s/1, .+", lines[0]
    )
    assert "2 of 9" in lines[1]
    bar = shown(monkeypatch, Terminal(), "retention")
    assert "\n" not in bar
    assert bar.startswith("\r\x1b[Kretention: [##")
    assert bar.endswith("\r\x1b[K"), "the bar is gone when the round has ended"
    assert shown(monkeypatch, io.StringIO(), "") == ""
