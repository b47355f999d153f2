"""The command that checks kept histories ends with 1 for one that breaks a promise."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from tests.sim import check, porcupine_runs, shapes
from tests.sim.checkers.layouts import ENDLESS
from tests.sim.recorded import BadHistory, calls_of
from tests.sim.stories import Story

Asked = tuple[str, dict[str, Any]]


@pytest.fixture(params=["with Porcupine", "without"])
def porcupine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without":
        monkeypatch.setattr(porcupine_runs, "program", _missing)
        return "Porcupine did not look: Go is missing (apt install golang)"
    try:
        porcupine_runs.program()
    except porcupine_runs.NoPorcupine as missing:
        pytest.skip(str(missing))
    return "Porcupine: "


def _missing() -> Path:
    raise porcupine_runs.NoPorcupine("Go is missing (apt install golang)")


@pytest.mark.medium
def test_command_names_what_a_history_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], porcupine: str
) -> None:
    kept, broken = Story(), Story()
    for story, tokens in ((kept, ("one", "one")), (broken, ("one", "two"))):
        story.ok("fence", stream="s", token=tokens[0])
        story.ok("fencing_token", tokens[1], stream="s")
    kept.save(tmp_path / "kept")
    broken.save(tmp_path / "broken")
    assert check.main([str(tmp_path / "kept")]) == 0
    said = capsys.readouterr().out
    assert "kept: 2 calls break no promise" in said
    assert porcupine in said
    assert check.main([str(tmp_path / "kept"), str(tmp_path / "broken")]) == 1
    said = capsys.readouterr().out
    assert "broken: calls have one order: those of fence s have none" in said
    assert porcupine in said
    (tmp_path / "broken").write_text("{}")
    assert check.main([str(tmp_path / "broken")]) == 1
    assert "broken: line 1 is not" in capsys.readouterr().out


@pytest.mark.medium
def test_folder_of_pictures_is_made(tmp_path: Path) -> None:
    try:
        porcupine_runs.program()
    except porcupine_runs.NoPorcupine as missing:
        pytest.skip(str(missing))
    broken = Story()
    broken.ok("fence", stream="s", token="one")
    broken.ok("fencing_token", "two", stream="s")
    broken.save(tmp_path / "broken")
    folder = tmp_path / "new" / "pictures"
    assert check.main([str(tmp_path / "broken"), "--pictures", str(folder)]) == 1
    assert list(folder.glob("broken*.html"))


def test_pictures_into_a_file_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Story().save(tmp_path / "file")
    with pytest.raises(SystemExit) as refused:
        check.main([str(tmp_path / "file"), "--pictures", str(tmp_path / "file")])
    assert refused.value.code == 2
    assert "argument --pictures: " in capsys.readouterr().err


def test_histories_of_a_run_are_judged_and_summed_up(porcupine: str) -> None:
    kept, broken = Story(), Story()
    for story, told in ((kept, "one"), (broken, "two")):
        story.ok("fence", stream="s", token="one")
        story.ok("fencing_token", told, stream="s")
    refused, said = porcupine_runs.judged_texts({"seed 1": kept.text(), "seed 2": broken.text()})
    if porcupine == "Porcupine: ":
        assert refused == ["seed 2: Porcupine: fence s is illegal"]
        assert "judged 2 histories of 2 objects" in said
        assert "refuses 1" in said
    else:
        assert (refused, said) == ([], porcupine)


HEAD = '{"history":1}'
WRITE = (
    '{"arguments":{"events":[["k","a"]],"stream":"s","writer":"w"},'
    '"call":0,"operation":"write","process":"p","step":1,"type":"invoke"}'
)


GET = (
    '{"arguments":{"fresh":true,"keys":["a"],"table":"t"},'
    '"call":0,"operation":"get","process":"p","step":1,"type":"invoke"}'
)
RESET = (
    '{"arguments":{"group":"g","to":{"s":{"0":0}}},"call":0,"operation":"reset","process":"p",'
    '"step":1,"type":"invoke"}'
)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            (HEAD, WRITE.replace('"operation":"write"', '"operation":"wrote"')),
            "line 2: no operation",
        ),
        ((HEAD, WRITE.replace('"stream":"s",', "")), "line 2: write lacks the argument 'stream'"),
        ((HEAD, WRITE.replace('"w"', "7")), "line 2: write cannot have 'writer' 7"),
        ((HEAD, WRITE.replace('"step":1', '"step":"1"')), "line 2: step '1'"),
        ((HEAD, WRITE, '{"call":0,"step":2,"type":"ok","value":"x"}'), "line 3: write cannot"),
        ((HEAD, WRITE, '{"call":0,"step":2,"type":"ok","value":[]}'), "line 3: write cannot"),
        ((HEAD, WRITE, '{"call":0,"step":2,"type":"ok","value":null}'), "line 3: write cannot"),
        ((HEAD, WRITE.replace('"call":0', '"call":7')), "line 2: call 7 begins where call 0"),
        (
            (HEAD, WRITE.replace('"step":1', '"step":1,"step":1')),
            "line 2 is no JSON: the key 'step'",
        ),
        ((HEAD, "[" * 100_000), "line 2 has too many brackets"),
        ((HEAD, GET.replace("true", '"yes"')), "line 2: get cannot have 'fresh' 'yes'"),
        ((HEAD, RESET, '{"call":0,"step":2,"type":"ok","value":"1"}'), "line 3: reset cannot have"),
    ],
)
def test_line_that_no_checker_can_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: tuple[str, ...], told: str
) -> None:
    (tmp_path / "odd").write_text("\n".join(lines))
    assert check.main([str(tmp_path / "odd")]) == 1
    assert f"odd: {told}" in capsys.readouterr().out


def of(operation: str, **arguments: Any) -> Asked:
    return operation, arguments


STREAM = {"stream": "s"}
WRITES: dict[str, Any] = {**STREAM, "writer": "w", "events": [["k", "a"]]}
GROUP = {"group": "g", "reader": "r"}
FROM_HEAD = {"from": {"0": 0}, "to": {"0": 1}, "events": [["0", 0, "k", "a"]]}
COPIED: dict[str, Any] = {"from": {}, "events": []}
GOT = {"stream": "s", "position": [0, 0], "event": "a"}
EXPECTS: dict[str, Any] = {**WRITES, "expected": {"number": 0}}
PUT: dict[str, Any] = {"table": "t", "changes": [{"key": "k", "value": "v"}]}


@pytest.mark.parametrize(
    ("asked", "taken", "refused"),
    [
        (of("write", **WRITES), [[0, 0]], [[0, -1]]),
        (of("write", **WRITES), [["0", 0]], [[-1, 0]]),
        (of("write", **WRITES), [["10", 0]], [["01", 0]]),
        (of("write", **WRITES), [[0, 0]], [["a", 0]]),
        (of("write", **WRITES), [[0, 0]], [[0, True]]),
        (of("write", **WRITES), [[0, ENDLESS - 1]], [[0, ENDLESS]]),
        (of("truncate", **STREAM, cut={}), {"0": ENDLESS}, {"0": ENDLESS + 1}),
        (of("truncate", **STREAM, cut={}), {"0": 1}, {"0": -1}),
        (of("truncate", **STREAM, cut={}), {"0": 1}, {"a": 1}),
        (of("read", **STREAM), FROM_HEAD, {**FROM_HEAD, "more": 1}),
        (of("read_copy", copy="c", **STREAM), COPIED, {**COPIED, "to": {}}),
        (of("read_copy", copy="c", **STREAM), {**COPIED, "open": 0}, {**COPIED, "open": "0"}),
        (of("next", **GROUP), {"checkpoint": "c"}, {"checkpoint": "c", "event": "a"}),
        (of("next", **GROUP), GOT, {**GOT, "key": "k"}),
        (of("update", **PUT), [[0, 0]], [["0", 0]]),
        (of("open_writer", **STREAM, writer="w"), 0, -1),
        (of("read_bytes", stream="b"), {"from": 0, "text": ""}, {"from": -1, "text": ""}),
        (of("fencing_token", **STREAM), "", None),
        (of("scale", **STREAM, seal=["0"], sealed=[[0, 1]], ranges=[[0, 1]]), 1, None),
        (of("layout", **STREAM), {"0": [], "1": [0]}, {"a": []}),
    ],
)
def test_value_of_another_form_is_refused_with_its_line(
    asked: Asked, taken: object, refused: object
) -> None:
    operation, arguments = asked
    for value in (taken, refused):
        story = Story()
        story.ok(operation, value, **arguments)
        if value is taken:
            shapes.check(calls_of(story.text()))
        else:
            with pytest.raises(BadHistory, match=f"^line 3: {operation} cannot have the value"):
                shapes.check(calls_of(story.text()))


@pytest.mark.parametrize(
    ("asked", "name", "refused"),
    [
        (of("join", **GROUP, acknowledge="next", streams=["s"]), "acknowledge", "maybe"),
        (of("read", **STREAM, to={"0": 1}), "to", {"0": "1"}),
        (of("write", **WRITES, token="t"), "token", 7),
        (of("write_if", **WRITES, expected={"number": 0}), "expected", {"number": -1}),
        (of("write_if", **WRITES, expected={"position": [0, 0]}), "expected", {"position": [0]}),
        (of("update", **PUT), "changes", [{"key": "k", "value": "v", "more": 1}]),
        (of("update", **PUT), "changes", [{"key": "k", "value": "v", "expected": "none"}]),
        (of("commit", transaction="t", reads=[["s", "a"]]), "reads", ["a"]),
        (of("subscribe", **STREAM, subscriber="x", cut={"0": 0}), "cut", {"0": -1}),
        (of("write_bytes", stream="b", writer="w", text="a;"), "text", "a;b"),
        (of("write_bytes", stream="b", writer="w", text="a;"), "text", "\xe4;"),
        (of("truncate_bytes", stream="b", before=0), "before", -1),
    ],
)
def test_argument_of_another_form_is_refused_with_its_line(
    asked: Asked, name: str, refused: object
) -> None:
    operation, arguments = asked
    for given in (arguments, {**arguments, name: refused}):
        story = Story()
        story.unknown(operation, **given)
        if given is arguments:
            shapes.check(calls_of(story.text()))
        else:
            with pytest.raises(BadHistory, match=f"^line 2: {operation} cannot have '{name}'"):
                shapes.check(calls_of(story.text()))


def test_scale_that_names_what_it_seals_has_the_ranges() -> None:
    story = Story()
    story.unknown("scale", **STREAM)
    story.unknown("scale", **STREAM, seal=["0"])
    with pytest.raises(BadHistory, match=r"^line 4: scale lacks the argument 'sealed'"):
        shapes.check(calls_of(story.text()))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("FencingTokenMismatch", {"token": 7}),
        ("FencingTokenMismatch", {"position": [0, 0]}),
        ("ConditionFailed", {"token": "t"}),
        ("ConditionFailed", {"number": -1}),
        ("ConditionFailed", 3),
    ],
)
def test_refusal_that_tells_what_its_error_has_not_is_refused(error: str, told: object) -> None:
    story = Story()
    story.fail("write_if", "FencingTokenMismatch", {"token": "t"}, **EXPECTS)
    story.fail("write_if", "ConditionFailed", {"number": 0}, **EXPECTS)
    story.fail("write_if", "StreamSealed", **EXPECTS)
    shapes.check(calls_of(story.text()))
    story.fail("write_if", error, told, **EXPECTS)
    with pytest.raises(BadHistory, match=r"^line 9: write_if cannot have the value"):
        shapes.check(calls_of(story.text()))


@pytest.mark.parametrize("kind", ["missing", "a folder", "cut", "not compressed", "not a text"])
def test_file_that_cannot_be_read_is_named_and_the_others_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    bad, good = tmp_path / "bad.gz", tmp_path / "good"
    Story().save(good)
    if kind == "a folder":
        bad.mkdir()
    elif kind != "missing":
        whole = gzip.compress(good.read_bytes())
        texts = {"cut": whole[:-9], "not compressed": b"x", "not a text": gzip.compress(b"\xff")}
        bad.write_bytes(texts[kind])
    assert check.main([str(bad), str(good)]) == 1
    said = capsys.readouterr().out
    assert "bad.gz: it cannot be read: " in said
    assert "good: 0 calls break no promise" in said


def test_kept_histories_have_the_shape_that_the_page_describes() -> None:
    kept = sorted(Path("tests/fixtures/histories").glob("*.gz"))
    assert kept
    for path in kept:
        shapes.check(calls_of(check.text_of(path)))


def test_page_describes_each_operation() -> None:
    page = Path("docs/histories.md").read_text()
    table = page.partition("## The operations")[2].partition("\n## ")[0]
    first_columns = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", "".join(first_columns))) == set(shapes.OPERATIONS)
