"""Tags, names of checkpoints, keys and errors with escape sequences on the command line."""

from __future__ import annotations

import json

from pravega_spark.config.policies import StreamConfiguration
from tests.unit.cli.conftest import Shell

FORGED = "gold\nnyc/forged  ACTIVE\x1b[2J\u202e"
SHOWN = r"gold\nnyc/forged  ACTIVE\x1b[2J\u202e"


def test_a_tag_forges_no_row_and_programs_have_it_whole(shell: Shell) -> None:
    shell.manager.create_stream("s/a", StreamConfiguration(tags={FORGED}))
    _, row = shell.ok("stream", "ls").splitlines()
    assert row.startswith("s/a")
    assert row.endswith(SHOWN)
    assert f"TAGS       {SHOWN}\n" in shell.ok("stream", "describe", "s/a")
    assert shell.json("stream", "describe", "s/a")[0]["tags"] == [FORGED]
    declared = json.dumps({"scopes": {"s": {"streams": {"a": {"tags": ["b\nc"]}}}}}).encode()
    status, text, _ = shell("diff", "-", stdin=declared)
    assert (status, text.splitlines()) == (1, ["~ stream s/a", rf"    tags: {SHOWN} -> b\nc"])


def test_a_checkpoints_name_forges_no_line(shell: Shell) -> None:
    shell.manager.create_stream("s/a")
    group = shell.manager.create_reader_group("s/g", ["s/a"])
    with group.create_reader("r"):
        group.initiate_checkpoint(FORGED)
        text = shell.ok("reader-group", "describe", "s/g")
    assert f"{SHOWN} waits for reader r\n" in text


def test_errors_questions_and_misuse_are_one_line(shell: Shell) -> None:
    for argv in (
        ("stream", "create", f"s/{FORGED}"),
        ("stream", "describe", f"s/{FORGED}"),
        ("stream", f"--{FORGED}"),
        ("stream", "delete", "s/a", "--output", f"x{FORGED}"),
        ("apply", f"no such {FORGED}"),
        ("cut", "parse", f"{FORGED}"),
        ("kvt", "get", "s/t", FORGED),
    ):
        status, text, error = shell(*argv)
        assert (status in (1, 2), text, error.count("\n")) == (True, "", 1), argv
        assert not set(error) & {"\x1b", "\u202e"}, error


def test_events_are_bytes_in_a_format_and_escaped_in_json(shell: Shell) -> None:
    payload = "x\x9b\x7f\u202ey"
    shell.manager.create_stream("s/a")
    with shell.manager.create_writer("s/a") as writer:
        writer.write_event(payload.encode(), routing_key=payload).result()
    assert shell.ok("stream", "read", "s/a", "-f", "%k %v") == f"{payload} {payload}"
    assert shell.ok("stream", "read", "s/a", "-f", "raw") == f"{payload}\n"
    line = shell.ok("stream", "read", "s/a")
    assert line.isascii()
    assert json.loads(line)["event"] == json.loads(line)["routing_key"] == payload
    shell.manager.create_stream("s/parsed")
    with shell.manager.create_writer("s/parsed") as writer:
        writer.write_event(f'["{payload}"]'.encode()).result()
    line = shell.ok("stream", "read", "s/parsed", "--parse")
    assert line.isascii()
    assert json.loads(line)["event"] == [payload]
