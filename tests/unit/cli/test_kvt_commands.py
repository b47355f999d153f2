"""``pravega-spark kvt``: tables and their entries."""

from __future__ import annotations

import base64
import json
from typing import cast

import pytest

from pravega_spark.cli.exit_status import FAILED, MISUSED
from pravega_spark.key_value import fold
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import TableEntry
from tests.unit.cli.conftest import Shell


@pytest.fixture
def table(shell: Shell) -> str:
    """A table with keys of texts and four entries."""
    shell.manager.create_key_value_table("s/t", KeyValueTableConfiguration("string"))
    with shell.manager.key_value_table("s/t") as opened:
        for key in ("b", "a", "ab", "c"):
            opened.put(key, key.upper())
    return "s/t"


def entry(shell: Shell, key: bytes | str | int, secondary: bytes = b"") -> TableEntry:
    """Return an entry that exists."""
    found = shell.manager.key_value_table("s/t").get(key, secondary, fresh=True)
    return cast(TableEntry, found)


def value(shell: Shell, key: bytes | str | int, secondary: bytes = b"") -> bytes | None:
    found = shell.manager.key_value_table("s/t").get(key, secondary, fresh=True)
    return None if found is None else found.value


# ----------------------------------------------------------------------------------------- tables


def test_tables_are_created_listed_described_and_deleted(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("-p", "2", "--ttl", "1 day", "--tag", "gold", "--secondary-length", "2")
    assert shell.ok("kvt", "create", "s/t", "--key-type", "long", *options) == (
        "Created table s/t.\n"
    )
    assert shell.ok("kvt", "create", "s/t") == "Table s/t exists; it is as it was.\n"
    assert shell.json("kvt", "create", "other/u") == {"table": "other/u", "created": True}
    assert shell.manager.key_value_table("s/t").configuration == KeyValueTableConfiguration(
        "long", secondary_key_length=2, partitions=2, ttl="1 day"
    )
    lines = [line.split() for line in shell.ok("kvt", "ls").splitlines()]
    assert lines[0][:6] == ["TABLE", "STATE", "KEYS", "PARTITIONS", "VERSION", "UNFOLDED"]
    assert [line[:4] for line in lines[1:]] == [
        ["other/u", "ACTIVE", "bytes", "1"],
        ["s/t", "ACTIVE", "long", "2"],
    ]
    assert shell.ok("kvt", "ls", "-q", "--tag", "gold") == "s/t\n"
    assert shell.json("kvt", "ls", "other", "-q") == ["other/u"]
    with shell.manager.key_value_table("s/t") as opened:
        opened.put(1, b"x", b"ab")
    found = shell.json("kvt", "describe", "s/t")
    assert not found["fold_due"]
    assert found["fold"].startswith("is due at 2")
    assert (found["unfolded_changes"], found["folded_entries"], found["tags"]) == (1, 0, ["gold"])
    monkeypatch.setattr(fold, "FOLD_CHANGES", 1)
    assert shell.json("kvt", "describe", "s/t")["fold_due"]
    text = "is due: each process that opens the table reads 1 change"
    assert f"FOLD              {text}\n" in shell.ok("kvt", "describe", "s/t")
    assert "SECONDARY-LENGTH  2" in shell.ok("kvt", "describe", "s/t")
    assert "Pass --yes" in shell.failed("kvt", "delete", "s/t")
    assert "NoSuchTable" in shell.failed("kvt", "delete", "s/t", "s/none", "--yes")
    assert shell.ok("kvt", "delete", "s/t", "other/u", "-y") == "Deleted s/t, other/u.\n"
    assert shell.ok("kvt", "ls", "-q") == ""


@pytest.mark.parametrize(
    ("status", "argv"),
    [
        (MISUSED, ("create", "t")),
        (MISUSED, ("create", "s/u", "--key-type", "float")),
        (MISUSED, ("create", "s/u", "--ttl", "soon")),
        (MISUSED, ("create", "s/u", "--key-type", "string", "--primary-length", "4")),
        (FAILED, ("create", "none/u")),
        (FAILED, ("describe", "s/none")),
        (FAILED, ("get", "s/none", "a")),
        (MISUSED, ("get", "s/t")),
        (MISUSED, ("get", "s/t", "a", "b", "--raw")),
        (MISUSED, ("get", "s/t", "a", "--secondary", "b")),
        (FAILED, ("get", "s/t", "a", "none")),
        (MISUSED, ("get", "s/t", "a", "--values", "json")),
        (MISUSED, ("get", "s/t", "a", "--values", "xml")),
        (MISUSED, ("put", "s/t", "a")),
        (MISUSED, ("put", "s/t", "a", "x", "--insert", "--version", "1:0#0=1")),
        (MISUSED, ("put", "s/t", "--insert")),
        (FAILED, ("put", "s/t", "a", "x", "--insert")),
        (FAILED, ("put", "s/t", "a", "x", "--version", "1:0#0=99")),
        (MISUSED, ("put", "s/t", "a", "x", "--version", "1")),
        (MISUSED, ("put", "s/t", "a", "x", "--values", "hex")),
        (MISUSED, ("put", "s/t", "a", "{", "--values", "json")),
        (MISUSED, ("remove", "s/t", "a")),
        (FAILED, ("remove", "s/t", "none", "--version", "1:0#0=1", "--yes")),
        (MISUSED, ("remove", "s/t", "a", "b", "--version", "1:0#0=1", "--yes")),
        (MISUSED, ("scan", "s/t", "--prefix", "a", "--from", "b")),
        (MISUSED, ("scan", "s/t", "-n", "0")),
        (MISUSED, ("scan", "s/t", "--at", "99")),
    ],
)
def test_misuse_changes_nothing(
    shell: Shell, table: str, status: int, argv: tuple[str, ...]
) -> None:
    version = shell.manager.key_value_table(table).at().version
    found = shell("kvt", *argv)
    assert (found[0], found[1], found[2].count("\n")) == (status, "", 1), found
    assert shell.manager.key_value_table(table).at().version == version
    assert shell.ok("kvt", "ls", "-q") == "s/t\n"


# ---------------------------------------------------------------------------------------- entries


def test_a_value_is_put_and_got_in_each_form(shell: Shell, table: str) -> None:
    data = b"\x00\xff"
    for form, text in (("hex", "00ff"), ("base64", base64.b64encode(data).decode())):
        shell.ok("kvt", "put", table, form, text, "-v", form)
        assert value(shell, form) == data
        assert shell.ok("kvt", "get", table, form, "-v", form) == f"{text}\n"
    assert "is not valid UTF-8" in shell.failed("kvt", "get", table, "hex")
    shell.ok("kvt", "put", table, "j", '{"n": [1, "ä"]}', "--values", "json")
    assert value(shell, "j") == '{"n":[1,"ä"]}'.encode()
    assert shell.json("kvt", "get", table, "j", "-v", "json")["value"] == {"n": [1, "ä"]}
    shell.ok("kvt", "put", table, "k", "-", stdin=data)
    assert value(shell, "k") == data
    assert shell.ok("kvt", "get", table, "a") == "A\n"
    assert shell.ok("kvt", "get", table, "a", "--raw") == "A"
    found = shell.json("kvt", "get", table, "a")
    assert found == {
        "key": "a",
        "value": "A",
        "version": str(entry(shell, "a").version),
        "timestamp_ms": entry(shell, "a").timestamp_us // 1_000,
    }
    lines = [line.split() for line in shell.ok("kvt", "get", table, "c", "a").splitlines()]
    assert [line[:2] for line in lines] == [["KEY", "VALUE"], ["c", "C"], ["a", "A"]]


def test_puts_and_removals_on_a_condition_return_the_version(shell: Shell, table: str) -> None:
    version = str(entry(shell, "a").version)
    made = shell.json("kvt", "put", table, "a", "new", "--version", version)
    assert (made["version"], value(shell, "a")) == (str(entry(shell, "a").version), b"new")
    assert "BadKeyVersion" in shell.failed("kvt", "put", table, "a", "x", "--version", version)
    assert "BadKeyVersion" in shell.failed("kvt", "remove", table, "a", "--version", version, "-y")
    assert value(shell, "a") == b"new"
    shell.ok("kvt", "put", table, "d", "D", "--insert")
    assert value(shell, "d") == b"D"
    shell.ok("kvt", "remove", table, "a", "--version", made["version"], "--yes")
    assert shell.ok("kvt", "remove", table, "b", "none", "-y") == "Removed b, none from s/t.\n"
    assert [value(shell, key) for key in ("a", "b", "c")] == [None, None, b"C"]


def test_the_lines_of_the_input_are_put(shell: Shell, table: str) -> None:
    lines = b'{"key": "x", "value": "1"}\n\n{"key": "y", "value": "2", "more": 1}\n'
    assert shell.ok("kvt", "put", table, stdin=lines) == "Put 2 entries in s/t.\n"
    assert (value(shell, "x"), value(shell, "y")) == (b"1", b"2")
    shell.ok("kvt", "put", table, "--separator", ",", stdin=b"p,1,2\r\nq,\n")
    assert (value(shell, "p"), value(shell, "q")) == (b"1,2", b"")
    for wrong in (b"{", b"[]", b'{"key": "z"}', b'{"key": 1, "value": "x"}', b"\xff"):
        error = shell.failed("kvt", "put", table, stdin=b'{"key": "w", "value": "0"}\n' + wrong)
        assert "line 2 of the input" in error
        assert error.endswith(". 1 put of this run is durable.\n")
        assert value(shell, "w") == b"0"
    assert "no separator" in shell.failed("kvt", "put", table, "--separator", "\t", stdin=b"x\n")
    error = shell.failed("kvt", "put", table, stdin=b'{"key": "", "value": "x"}\n')
    assert "line 1 of the input: a primary key of table s/t must not be empty." in error
    assert (
        shell.ok("kvt", "put", table, "--separator", ",", stdin=b"p,3") == "Put 1 entry in s/t.\n"
    )


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_key(shell: Shell, table: str) -> None:
    mark = "\ufeff".encode()
    shell.ok("kvt", "put", table, "--separator", ",", stdin=mark + b"q,1\n" + mark + b"r,2\n")
    shell.ok("kvt", "put", table, stdin=mark + b'{"key": "x", "value": "3"}\n')
    shell.ok("kvt", "put", table, stdin=mark)
    kept = ("a", "ab", "b", "c", "q", "x", "\ufeffr")  # in the midst it is what the user wrote
    assert tuple(shell.manager.key_value_table(table).keys()) == kept


def test_a_key_of_a_table_of_numbers_is_digits(shell: Shell) -> None:
    shell.manager.create_key_value_table("s/t", KeyValueTableConfiguration("long"))
    shell.ok("kvt", "put", "s/t", "--separator", ",", stdin=b"007,a\n-3,b\n")
    assert (value(shell, 7), value(shell, -3)) == (b"a", b"b")
    for wrong in ("1_0", "+5", " 6", "6 ", "", "٣", "1.0", "9" * 500):
        error = shell.failed("kvt", "put", "s/t", "--separator", ",", stdin=f"{wrong},x".encode())
        assert "line 1 of the input: a key of table s/t is a whole number, got" in error
    error = shell.failed("kvt", "put", "s/t", "--separator", ",", stdin=b"1,x\n%d,x\n" % 2**63)
    assert f"line 2 of the input: the key {2**63} of table s/t does not fit 64 bits;" in error
    assert "1 put of this run is durable." in error


def test_value_with_two_equal_fields_is_shown_as_it_is_or_not_at_all(
    shell: Shell, table: str
) -> None:
    text = '{"x": 1, "x": 2}'
    shell.ok("kvt", "put", table, "a", text)
    assert text in shell.ok("kvt", "get", table, "a")
    error = shell.failed("kvt", "get", table, "a", "--values", "json")
    assert "it has the field 'x' twice" in error


def test_what_scan_prints_can_be_put_into_another_table(shell: Shell, table: str) -> None:
    lines = shell.ok("kvt", "scan", table)
    assert [json.loads(line)["key"] for line in lines.splitlines()] == ["a", "ab", "b", "c"]
    shell.manager.create_key_value_table("other/u", KeyValueTableConfiguration("string"))
    shell.ok("kvt", "put", "other/u", stdin=lines.encode())
    copied = {e.key: e.value for e in shell.manager.key_value_table("other/u").entries()}
    assert copied == {"a": b"A", "ab": b"AB", "b": b"B", "c": b"C"}


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (("--prefix", "a"), ["a", "ab"]),
        (("--from", "ab"), ["ab", "b", "c"]),
        (("--to", "ab"), ["a", "ab"]),
        (("--from", "ab", "--to", "b"), ["ab", "b"]),
        (("--from", "ab", "-n", "1"), ["ab"]),
        (("--key", "b"), ["b"]),
        (("--prefix", "z"), []),
    ],
)
def test_a_scan_is_of_a_range(
    shell: Shell, table: str, options: tuple[str, ...], keys: list[str]
) -> None:
    assert [record["key"] for record in shell.json("kvt", "scan", table, *options)] == keys


def test_a_scan_is_a_table_for_people_and_can_be_of_a_version(shell: Shell, table: str) -> None:
    version = str(shell.manager.key_value_table(table).at().version)
    shell.ok("kvt", "remove", table, "a", "ab", "-y")
    shown = shell.ok("kvt", "scan", table, "--output", "table")
    assert [line.split()[:2] for line in shown.splitlines()] == [
        ["KEY", "VALUE"],
        ["b", "B"],
        ["c", "C"],
    ]
    shown = shell.ok("kvt", "scan", table, "--at", version, "--keys-only", "--output", "table")
    assert [line.split()[0] for line in shown.splitlines()] == ["KEY", "a", "ab", "b", "c"]
    assert "VALUE" not in shown
    assert "value" not in json.loads(shell.ok("kvt", "scan", table, "--keys-only", "-n", "1"))


def test_keys_of_bytes_and_numbers_and_secondary_keys(shell: Shell) -> None:
    made = KeyValueTableConfiguration("bytes", secondary_key_length=1)
    shell.manager.create_key_value_table("s/t", made)
    shell.ok("kvt", "put", "s/t", "00ff", "x", "--secondary", "01", "--keys", "hex")
    assert value(shell, b"\x00\xff", b"\x01") == b"x"
    line = shell.ok("kvt", "scan", "s/t", "--keys", "hex", "--key", "00ff")
    assert {"key": "00ff", "secondary_key": "01", "value": "x"}.items() <= json.loads(line).items()
    shell.ok("kvt", "put", "s/t", "--keys", "hex", stdin=line.replace("01", "02").encode())
    assert value(shell, b"\x00\xff", b"\x02") == b"x"
    assert shell.ok("kvt", "get", "s/t", "00ff", "--secondary", "02", "-k", "hex") == "x\n"
    assert "is not valid UTF-8" in shell.failed("kvt", "scan", "s/t")
    shell.ok("kvt", "remove", "s/t", "00ff", "--secondary", "01", "-k", "hex", "-y")
    assert value(shell, b"\x00\xff", b"\x01") is None
    shell.manager.create_key_value_table("s/n", KeyValueTableConfiguration("long"))
    shell.ok("kvt", "put", "s/n", "42", "x")
    shell.ok("kvt", "put", "s/n", stdin=b'{"key": 7, "value": "y"}')
    assert [record["key"] for record in shell.json("kvt", "scan", "s/n")] == [7, 42]
    assert "is a whole number" in shell.failed("kvt", "get", "s/n", "x")
    assert "have no prefix" in shell.failed("kvt", "scan", "s/n", "--prefix", "4")


def test_numbers_of_json_values_keep_their_text_in_and_out(shell: Shell, table: str) -> None:
    number = "123456789012345678.91"
    shell.ok("kvt", "put", table, "a", f'{{"x": {number}}}', "--values", "json")
    line = f'{{"key": "b", "value": [{number}, 1e400, 19.90]}}\n'
    shell.ok("kvt", "put", table, "--values", "json", stdin=line.encode())
    assert value(shell, "a") == f'{{"x":{number}}}'.encode()
    assert value(shell, "b") == f"[{number},1e400,19.90]".encode()
    assert f'"x": {number}' in shell.ok("kvt", "get", table, "a", "--values", "json")
    for output in ("json", "yaml"):
        options = ("--values", "json", "--output", output)
        assert number in shell.ok("kvt", "get", table, "a", *options)
    scanned = shell.ok("kvt", "scan", table, "--values", "json", "--prefix", "b")
    assert f"[{number}, 1e400, 19.90]" in scanned
    twice = ("kvt", "put", table, "a", '{"x": 1, "x": 2}', "--values", "json")
    assert "'x' twice" in shell.failed(*twice)


def test_half_of_a_surrogate_pair_in_a_json_value_is_printed_as_it_was_given(
    shell: Shell, table: str
) -> None:
    for text in ('"\\ud800"', '{"\\ud800":1}'):
        shell.ok("kvt", "put", table, "a", text, "--values", "json")
        assert value(shell, "a") == text.encode()
        printed = shell.ok("kvt", "get", table, "a", "--values", "json")
        assert json.loads(printed) == json.loads(text)
