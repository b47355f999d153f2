"""What a person and a shell expect of every command: pipes, exit statuses, help, counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark import StreamManager, errors
from pravega_spark.engine.store import open_store
from tests.unit.cli.conftest import Shell

COMMAND = [sys.executable, "-c", "from pravega_spark.cli import main; raise SystemExit(main())"]


@pytest.mark.medium
@pytest.mark.parametrize("command", [("stream", "read", "s/a"), ("stream", "ls")])
def test_reader_of_a_pipe_that_ends_first_is_no_failure(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/a")
    with manager.create_writer("s/a") as writer:
        for number in range(5_000):
            writer.write_event(b"%d" % number)
    argv = [*COMMAND, *command, "--root", str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    "misuse",
    [("check", "stream"), ("check", "none"), ("check", "stream", "s/a", "--silent-warn", "soon")],
)
def test_misuse_of_a_check_is_unknown_and_not_critical(
    shell: Shell, misuse: tuple[str, ...]
) -> None:
    assert shell(*misuse)[0] == 3
    assert shell("stream", "create")[0] == 2


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("stream", "append"), "  seq 5 | pravega-spark stream append nyc/numbers\n"),
        (("stream", "read"), "  pravega-spark stream read nyc/flights -n 10 -f '%k %v\\n'\n"),
        (("stream", "scale"), "  pravega-spark stream scale nyc/flights --merge 1,2\n"),
        (("apply",), "          flights: {scaling: "),
    ],
)
def test_examples_stand_in_the_help_as_they_are(
    shell: Shell, command: tuple[str, ...], line: str
) -> None:
    status, text, _ = shell(*command, "--help")
    assert (status, "\\b" in text) == (0, False)
    assert line in text


def test_created_again_with_another_configuration_is_said(shell: Shell) -> None:
    shell.ok("stream", "create", "s/a", "-p", "2")
    assert "it is as it was" in shell.ok("stream", "create", "s/a", "-p", "2")
    assert "another configuration" in shell.ok("stream", "create", "s/a", "-p", "3")


def test_one_event_is_an_event(shell: Shell) -> None:
    shell.ok("stream", "create", "s/a")
    assert shell.ok("stream", "append", "s/a", stdin=b"x\n") == "Wrote 1 event to stream s/a.\n"
    shell.manager.create_reader_group("s/g", ["s/a"])
    shell.ok("stream", "append", "s/a", stdin=b"y\n")
    assert "lag 2 events (" in shell.ok("check", "group", "s/g")


@pytest.mark.parametrize("command", [("apply", "--yes"), ("diff",)])
def test_file_that_declares_nothing_is_refused(
    shell: Shell, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("# soon\n")
    status, _, error = shell(*command, str(file))
    assert status == 2
    assert "empty.yaml declares nothing" in error


def test_compact_takes_the_newest_files_if_asked(shell: Shell) -> None:
    shell.ok("stream", "create", "s/a")
    for _ in range(40):
        shell.ok("stream", "append", "s/a", stdin=b"x\n")
    assert "files 40 -> 40" in shell.ok("stream", "compact", "s/a")
    assert "files 40 -> 1" in shell.ok("stream", "compact", "s/a", "--include-newest")


def test_no_error_shows_a_password() -> None:
    with pytest.raises(errors.InvalidInput) as caught:
        open_store("pravega://anna:se%20cret@host:9090/root")
    assert "se%20cret" not in str(caught.value)
    assert "pravega://***@host" in str(caught.value)


@pytest.mark.medium
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["stream", "--help"]])
def test_a_reader_that_is_gone_is_no_failure(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "pravega_spark.cli", *words]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


CLI = "pravega_spark.cli"
_INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from pravega_spark.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.medium
@pytest.mark.parametrize(
    "module", ["click", "pravega_spark.cli.commands", "pravega_spark.cli.kvt_commands"]
)
def test_interrupt_amid_the_imports_of_a_command_shows_no_traceback(module: str) -> None:
    words = [module, "kvt", "--help"]
    command = [sys.executable, "-c", _INTERRUPTED, *words]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, b"", b"")
