"""Where a person reads it, no text that others gave moves the cursor, breaks or turns a line."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import yaml

from pravega_spark.cli.output import (
    TableColumn,
    say,
    say_lines,
    show_block,
    show_done,
    show_record,
    show_records,
    show_table,
    show_value,
)
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.errors import InvalidInput, StoreError
from pravega_spark.jobs.launcher_stderr import complain
from pravega_spark.jobs.report import progress_text
from pravega_spark.maintenance.rounds import print_table
from pravega_spark.primitives.printable import (
    is_printable,
    printable,
    printable_json,
    printable_lines,
)
from pravega_spark.serve.page_files import FOLDER
from pravega_spark.values.checks import shown

HOSTILE = "\x1b[2Ja\nb\r\u202e\x9b1m\u2028\ud800"
SHOWN = r"\x1b[2Ja\nb\r\u202e\x9b1m\u2028\ud800"
PLAIN = r"Zürich 東京 🛫 \n 50 % [red] <b>"
_COLUMNS = (TableColumn("NAME", "name"), TableColumn("TAGS", "tags", ",".join))


@pytest.mark.medium
def test_what_moves_turns_or_hides_is_escaped_and_nothing_else() -> None:
    escaped = {n for n in range(sys.maxunicode + 1) if not is_printable(chr(n))}
    controls = {n for n in range(sys.maxunicode + 1) if unicodedata.category(chr(n)) == "Cc"}
    kinds = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    turning = {n for n in range(0x3000) if unicodedata.bidirectional(chr(n)) in kinds}
    marks = {0x200E, 0x200F, 0x061C}
    surrogates = set(range(0xD800, 0xE000))
    unseen = {0xAD, 0x200B, *range(0x2060, 0x2065), 0xFEFF}
    assert escaped == controls | turning | marks | {0x2028, 0x2029} | surrogates | unseen
    assert printable("\ufeffq\xad") == r"\ufeffq\xad"
    assert printable(HOSTILE) == SHOWN
    assert printable(SHOWN) == SHOWN  # what was escaped stays
    assert printable(PLAIN) == PLAIN
    assert printable_lines("a\nb\tc\r\n") == "a\nb\\tc\\r\n"
    assert json.loads(printable_json(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE


def test_an_error_is_one_line_and_keeps_its_message() -> None:
    for kind in (InvalidInput, StoreError):
        error = kind(f"tag {HOSTILE}.")
        assert str(error) == f"{error}" == f"tag {SHOWN}."
        assert error.message == error.args[0] == f"tag {HOSTILE}."
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.message, str(copy)) == (error.message, str(error))


def test_a_given_value_is_shown_printable_whatever_its_repr() -> None:
    class Odd:
        def __repr__(self) -> str:
            return HOSTILE

    assert shown(Odd()) == SHOWN
    assert is_printable(shown(HOSTILE))


def test_a_line_of_the_log_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pravega_spark")
    logger = own_logger("pravega_spark.test_printable")
    assert own_logger(logger.name).filters == logger.filters
    assert len(logger.filters) == 1
    logger.info(
        "tag %s of %s: %d", HOSTILE, OSError(HOSTILE), 3, extra=log_fields("x", note=HOSTILE)
    )
    logger.info("tag %s", PLAIN, extra=log_fields("x"))
    hostile, plain = caplog.records
    assert hostile.getMessage() == f"tag {SHOWN} of {SHOWN}: 3"
    assert hostile.__dict__["note"] == HOSTILE  # a formatter of JSON escapes it
    assert (plain.msg, plain.args) == ("tag %s", (PLAIN,))  # what others group lines by


def test_tables_blocks_and_sentences_of_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = {"name": HOSTILE, "tags": ["x", HOSTILE]}
    show_records([record], _COLUMNS, "table")
    heading, row = capsys.readouterr().out.splitlines()
    assert row == f"{SHOWN}  x,{SHOWN}"
    assert heading.index("TAGS") == len(SHOWN) + 2
    show_records([record], _COLUMNS, "table", quiet=True)
    show_record(record, _COLUMNS, "table")
    show_table(("NAME",), [(HOSTILE,)])
    show_block([("NAME", HOSTILE)])
    show_done(record, f"Made {HOSTILE}.", "table")
    say(HOSTILE)
    say_lines(f"a\n{PLAIN}\x1b")
    lines = capsys.readouterr().out.split("\n")
    assert lines == [
        SHOWN,
        f"NAME  {SHOWN}",
        f"TAGS  x,{SHOWN}",
        "NAME",
        SHOWN,
        f"NAME  {SHOWN}",
        f"Made {SHOWN}.",
        SHOWN,
        "a",
        rf"{PLAIN}\x1b",
        "",
    ]


def test_documents_for_programs_have_the_escapes_of_their_formats(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {"tags": [HOSTILE[:-1], PLAIN, "a\tb", "x\n" * 60], HOSTILE[:-1]: "\u202e: #", "n": 1.5}
    for output, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        show_value(value, output)
        text = capsys.readouterr().out
        assert load(text) == value, output
        assert all(map(is_printable, text.split("\n"))), output


def test_output_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [(HOSTILE, HOSTILE), (PLAIN, "")])
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [[SHOWN, SHOWN], [*PLAIN.split(), "-"]]
    complain("job", InvalidInput(f"tag {HOSTILE}"))
    complain("job", "two\nlines\x1b")  # as Spark's errors have
    assert capsys.readouterr().err == f"job: tag {SHOWN}\njob: two\nlines\\x1b\n"
    assert progress_text("streams", 2, (1, HOSTILE), 1.0).endswith(f"last {SHOWN}, about 1 s left")


_NODES = """
globalThis.Node = class {};
const element = (tag) => Object.assign(new Node(), {
  tagName: tag.toUpperCase(), texts: [], named: {},
  append(child) { this.texts.push(child); },
  setAttribute(name, value) { this.named[name] = value; },
});
globalThis.document = { createElement: element, createTextNode: (text) => text };
const { h } = await import("./dom.mjs");
const text = JSON.parse(process.argv[1]);
const made = h("span", { title: text, "data-tag": text }, text);
console.log(JSON.stringify([made.texts, made.named, h("pre", {}, text).texts]));
"""


@pytest.mark.skipif(
    shutil.which("node") is None, reason="Node is not installed (apt install nodejs)"
)
def test_texts_of_the_page(tmp_path: Path) -> None:
    for name in ("dom", "format"):
        source = (FOLDER / f"{name}.js").read_text().replace("/format.js", "/format.mjs")
        (tmp_path / f"{name}.mjs").write_text(source)
    command = ["node", "--input-type=module", "--eval", _NODES, json.dumps(HOSTILE + PLAIN)]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    texts, named, shown_in_pre = json.loads(done.stdout)
    assert texts == [SHOWN + PLAIN]
    assert named == {"title": SHOWN + PLAIN, "data-tag": HOSTILE + PLAIN}  # a program reads it
    lines = SHOWN.replace(r"\n", "\n") + PLAIN
    assert shown_in_pre == [lines]


def test_the_page_makes_no_text_past_the_printable_one() -> None:
    """Texts come from h(), which escapes; what is set otherwise is escaped there, or the page's."""
    own = {"sign", "`Colours: ${name}`", "name", "STATES[shows]", '"copied"'}
    safe = ("printable", "format.printable", "text(child)")
    for path in FOLDER.glob("*.js"):
        for line in path.read_text().splitlines():
            for mark in (".textContent = ", "document.title = ", "createTextNode("):
                value = line.partition(mark)[2].rstrip(";")
                is_safe = not value or value.startswith(safe) or value in own
                assert is_safe, (path.name, line)
