"""Which root a command line works on: options, variables and the file of profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from pravega_spark.cli import main
from pravega_spark.cli.root_option import root_option, root_profile
from pravega_spark.manager import StreamManager

CONFIG = """
default = "local"
[profiles.local]
root = "/data/streams"
[profiles.production]
root = "s3://bucket/streams"
[profiles.production.storage_options]
endpoint_url = "http://s3.test"
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ROOT", "PROFILE"):
        monkeypatch.delenv(f"PRAVEGA_SPARK_{name}", raising=False)
    path = tmp_path / "config.toml"
    monkeypatch.setenv("PRAVEGA_SPARK_CONFIG", str(path))
    path.write_text(CONFIG)
    return path


def chosen(*argv: str) -> tuple[str, dict[str, Any]]:
    """The root and the storage options that a command gets."""

    @click.command()
    @root_option
    def command(root: str | None) -> Any:
        found = root_profile(root)
        return found.root, dict(found.storage_options)

    return command.main(list(argv), standalone_mode=False)


def test_root_is_the_option_then_the_profile_then_the_variables_then_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"endpoint_url": "http://s3.test"}
    assert chosen() == ("/data/streams", {})
    monkeypatch.setenv("PRAVEGA_SPARK_PROFILE", "production")
    assert chosen() == ("s3://bucket/streams", options)
    monkeypatch.setenv("PRAVEGA_SPARK_ROOT", "/from/variable")
    assert chosen() == ("/from/variable", {})
    assert chosen("--profile", "production") == ("s3://bucket/streams", options)
    assert chosen("--root", "/given") == ("/given", {})
    assert chosen("--root", "s3://other", "--profile", "production") == ("s3://other", options)


def test_no_root_at_all_says_how_to_name_one(config: Path, capsys: Any) -> None:
    config.write_text("")
    assert main(["reader-group", "ls"]) == 2
    error = capsys.readouterr().err
    assert "--root" in error
    assert "PRAVEGA_SPARK_ROOT" in error


@pytest.mark.parametrize(
    ("text", "name", "part"),
    [
        ("profiles = 5\ndefault = 'a'", None, "`profiles` a table"),
        ("x = = 5", None, "is not valid TOML"),
        (CONFIG, "productoin", "Did you mean 'production'?"),
        (CONFIG, "zzz", "It has local, production."),
        ("", "any", "has no profile at all"),
        ("[profiles]\na = 5", "a", "must be a table"),
        ("[profiles.a]\nroot = 5", "a", "needs a `root`"),
        ("[profiles.a]\nroot = '/r'\nstorage_options = 5", "a", "must be a table"),
        (
            "[profiles.a]\nroot = '/r'\noptions = {}",
            "a",
            "has the unknown field 'options'; a profile has root",
        ),
    ],
)
def test_malformed_profiles_are_named_with_the_file(
    config: Path, capsys: Any, text: str, name: str | None, part: str
) -> None:
    config.write_text(text)
    argv = ["reader-group", "ls", *(["--profile", name] if name else [])]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert str(config) in error
    assert part in error
    assert error.count("\n") == 1


def test_a_named_file_that_is_missing_or_a_folder_is_an_error_and_the_default_one_may_be_missing(
    config: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.unlink()
    assert main(["reader-group", "ls"]) == 2
    assert f"PRAVEGA_SPARK_CONFIG names {config}, which does not exist" in capsys.readouterr().err
    config.mkdir()
    assert main(["reader-group", "ls"]) == 2
    assert f"{config} cannot be read as profiles: Is a directory" in capsys.readouterr().err
    monkeypatch.delenv("PRAVEGA_SPARK_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config / "none"))
    assert main(["reader-group", "ls"]) == 2
    assert "Missing option '--root'" in capsys.readouterr().err


def test_commands_work_on_the_root_of_a_profile(config: Path, tmp_path: Path, capsys: Any) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/a")
    manager.create_reader_group("s/g", ["s/a"])
    config.write_text(f"[profiles.here]\nroot = '{tmp_path / 'root'}'\n")
    assert main(["reader-group", "ls", "-q", "--profile", "here"]) == 0
    assert capsys.readouterr().out == "s/g\n"
