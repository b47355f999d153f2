"""The SQL that puts streams into a catalog; ``tests/spark`` runs it."""

from __future__ import annotations

from tests.unit.cli.conftest import Shell


def test_each_matching_stream_is_a_table_and_a_view(shell: Shell) -> None:
    for name in ("s/a", "s/b", "other/c"):
        shell.ok("stream", "create", name)
    lines = shell.ok("register", "s/*").splitlines()
    assert lines[0] == "CREATE SCHEMA IF NOT EXISTS `s`;"
    assert [line.split(" USING")[0] for line in lines if "TABLE" in line] == [
        "CREATE TABLE IF NOT EXISTS `s`.`a`",
        "CREATE TABLE IF NOT EXISTS `s`.`b`",
    ]
    assert sum("VIEW" in line for line in lines) == 2
    (statement,) = [s for s in shell.json("register", "other/c") if "TABLE" in s]
    assert statement.endswith(f"LOCATION '{shell.manager.root.rstrip('/')}/other/c/events'")
    (statement,) = [s for s in shell.json("register", "s/a", "--scheme", "s3a") if "TABLE" in s]
    assert "LOCATION 's3a:" in statement
    schema, table, view = shell.json("register", "s/a", "--catalog", "main")
    assert schema == "CREATE SCHEMA IF NOT EXISTS `main`.`s`"
    assert "TABLE IF NOT EXISTS `main`.`s`.`a` USING delta" in table
    assert "VIEW `main`.`s`.`a_events` (" in view
    assert "FROM `main`.`s`.`a` WHERE" in view
    assert "'a.b' is not the name of a catalog" in shell.failed(
        "register", "s/a", "--catalog", "a.b"
    )


def test_patterns_without_a_stream_are_errors(shell: Shell) -> None:
    assert "no stream matches 's/nope*'" in shell.failed("register", "s/nope*")
    assert "names no streams" in shell.failed("register", "nyc")


def test_names_are_those_that_a_catalog_allows_and_are_distinct(shell: Shell) -> None:
    for name in ("s/a-b.c", "s/other"):
        shell.ok("stream", "create", name)
    assert "`s`.`a_b_c` USING delta" in shell.ok("register", "s/a*")
    shell.ok("stream", "create", "s/A.b-c")
    error = shell.failed("register", "s/*")
    assert "s/A.b-c and s/a-b.c would both be s.a_b_c" in error
    shell.ok("register", "s/other", "s/A*")
