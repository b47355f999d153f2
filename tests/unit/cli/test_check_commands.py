"""Checks for monitoring: statuses, and the forms of their output."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.cli.conftest import Shell


@pytest.fixture(autouse=True)
def lagging_group(shell: Shell) -> None:
    shell.ok("stream", "create", "s/a")
    shell.manager.create_reader_group("s/g", ["s/a"])
    shell.ok("stream", "append", "s/a", stdin=b"1\n2\n3\n")


@pytest.mark.parametrize(
    ("options", "status", "word"),
    [
        ((), 0, "OK"),
        (("--lag-warn", "3"), 0, "OK"),
        (("--lag-warn", "2"), 1, "WARNING"),
        (("--lag-warn", "1", "--lag-critical", "2"), 2, "CRITICAL"),
        (("--members-critical", "1"), 2, "CRITICAL"),
        (("--time-critical", "1h"), 0, "OK"),
    ],
)
def test_a_group_is_judged_by_its_limits(
    shell: Shell, options: tuple[str, ...], status: int, word: str
) -> None:
    found, text, error = shell("check", "group", "s/g", *options)
    assert (found, error) == (status, "")
    assert word in text
    assert "lag 3 events" in text


def test_what_cannot_be_read_is_unknown_and_the_rest_is_checked(shell: Shell) -> None:
    status, text, _ = shell("check", "group", "s/g", "s/none")
    assert status == 3
    assert text.startswith("OK        s/g: lag 3 events")
    assert "UNKNOWN   s/none: NoSuchReaderGroup" in text


@pytest.mark.parametrize("root", ["/no/such/root", "/etc/passwd"])
def test_a_root_that_cannot_be_read_is_unknown_in_every_form(shell: Shell, root: str) -> None:
    for form in ("text", "json", "nagios", "prometheus"):
        argv = ("check", "group", "s/g", "--root", root, "--format", form)
        status, text, error = shell(*argv)
        assert (status, error) == (3, "")
        assert "s/g" in text


def test_a_stream_is_judged_by_silence_size_and_files(shell: Shell) -> None:
    assert shell("check", "stream", "s/a", "--silent-critical", "1h", "--size-warn", "1g")[0] == 0
    assert shell("check", "stream", "s/a", "--files-critical", "0")[0] == 2
    assert shell("check", "stream", "s/a", "--size-warn", "10")[0] == 1
    assert "not a valid duration" in shell.failed("check", "stream", "s/a", "--silent-warn", "soon")


def test_nagios_gets_one_line_with_performance_data(shell: Shell) -> None:
    status, text, _ = shell("check", "group", "s/g", "--lag-warn", "2", "--format", "nagios")
    line, _, data = text.partition(" | ")
    assert (status, text.count("\n")) == (1, 1)
    assert line == "PRAVEGA-SPARK WARNING - s/g: lag 3 events (3 B)"
    assert data.startswith("'s/g lag_events'=3;2; ")


def test_prometheus_gets_its_text_format(shell: Shell) -> None:
    _, text, _ = shell("check", "group", "s/g", "--lag-warn", "2", "--format", "prometheus")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    values = {
        sample.labels["check"]: sample.value for sample in families["pravega_check_status"].samples
    }
    assert values == {"lag_events": 1, "lag_seconds": 0}
    assert families["pravega_check_value"].samples[0].labels["object"] == "s/g"


def test_json_has_limits_and_values(shell: Shell) -> None:
    _, text, _ = shell("check", "group", "s/g", "--lag-critical", "9", "--format", "json")
    first = json.loads(text)[0]
    assert (first["check"], first["value"], first["critical"]) == ("lag_events", 3, 9)
