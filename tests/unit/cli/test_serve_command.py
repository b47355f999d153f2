"""The command ``serve``: what it refuses, what it says, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from pravega_spark import StreamManager, cli


@pytest.fixture
def root(tmp_path: Path) -> str:
    folder = tmp_path / "root"
    StreamManager(folder).create_scope("nyc")
    return str(folder)


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.main(["serve", *argv]) == 2
    return capsys.readouterr().err


def test_an_address_beyond_this_machine_needs_a_token(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "--root", root, "--host", "0.0.0.0")
    assert "needs a token" in said
    assert "--token-file" in said


def test_changes_need_a_token(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--allow-changes needs a token" in refused(capsys, "--root", root, "--allow-changes")


def test_a_token_file_must_hold_a_long_token(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    for content, said in ((b"", "is empty"), (b"short\n", "at least 16"), (b"\xff", "be read")):
        file.write_bytes(content)
        assert said in refused(capsys, "--root", root, "--token-file", str(file))


def test_a_port_that_is_taken_is_named(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port}" in refused(capsys, "--root", root, "--port", port)


def test_a_root_that_does_not_exist_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "none" in refused(capsys, "--root", str(tmp_path / "none"))


@pytest.mark.medium
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_server_names_its_url_answers_and_ends_quietly_by_a_signal(
    root: str, ending: signal.Signals
) -> None:
    command = [sys.executable, "-m", "pravega_spark.cli", "serve", "--port", "0", "--root", root]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    url = line.split()[0]
    assert "read-only" in line
    with urllib.request.urlopen(f"{url}v1/scopes") as answer:
        assert answer.read() == b'{"scopes":[{"scopeName":"nyc"}]}'
    for size in (64_000, 200_000):
        request = urllib.request.Request(f"{url}v1/scopes", headers={"X-Long": "a" * size})
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request)
        refusal.value.close()
        assert refusal.value.code == 431
    with urllib.request.urlopen(urllib.request.Request(f"{url}ping", method="HEAD")) as answer:
        assert (answer.status, answer.read()) == (200, b"")
    with urllib.request.urlopen(f"{url}api/live") as updates:  # as an open page has it
        assert updates.readline() == b"event: hello\n"
        process.send_signal(ending)
        updates.read()
    _, said = process.communicate(timeout=30)
    assert said.strip() == ""
    assert process.returncode in (0, 130, -ending)
