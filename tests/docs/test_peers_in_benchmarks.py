"""The part of docs/benchmarks.md about peers, and its picture, come from the kept run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.peers import __main__ as command
from bench.peers import page, picture, record
from bench.peers.record import Record
from bench.peers.registry import PEERS
from bench.peers.runner import Result


def kept() -> Record:
    found = record.load(record.KEPT)
    assert found is not None
    return found


def test_page_and_picture_are_made_from_the_kept_run() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.placed(text, kept()) == text
    assert page.PICTURE.read_text(encoding="utf-8") == picture.drawn(kept())


def test_command_writes_the_same_page_and_picture_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made, drawn = tmp_path / "page.md", tmp_path / "peers.svg"
    empty = re.sub(
        r"(<!-- benchmarks: peers -->\n).*?(<!-- end -->)",
        r"\1\2",
        page.PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    made.write_text(empty, encoding="utf-8")
    monkeypatch.setattr(page, "PAGE", made)
    monkeypatch.setattr(page, "PICTURE", drawn)
    assert command.main(["--page"]) == 0
    assert made.read_text(encoding="utf-8") != empty
    monkeypatch.undo()
    assert made.read_text(encoding="utf-8") == page.PAGE.read_text(encoding="utf-8")
    assert drawn.read_text(encoding="utf-8") == page.PICTURE.read_text(encoding="utf-8")


def test_kept_run_has_every_peer_measured_or_named_as_missing() -> None:
    run = kept()
    assert [peer.name for peer in run.peers] == [peer.name for peer in PEERS]
    measured = {result.peer for result in run.results}
    assert measured | set(run.absent) == {peer.name for peer in PEERS}
    assert measured.isdisjoint(run.absent)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run.about.day)
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", run.about.commit)


def test_what_is_missing_is_named_on_the_page_with_its_reason() -> None:
    run = kept()
    first = run.peers[0].name
    rows = [r for r in run.results if r.peer != first]
    changed = replace(
        run,
        absent={first: "no jar was fetched"},
        results=[*rows[1:], Result(rows[0].measure, rows[0].figure, rows[0].peer, reason="not so")],
    )
    text = page.placed(page.PAGE.read_text(encoding="utf-8"), changed)
    assert f"- **{first}**: no jar was fetched.\n" in text
    assert re.search(rf"- \*\*{re.escape(rows[0].peer)}\*\*, [^\n]*: not so\.\n", text)


def test_small_run_says_on_the_page_that_it_is_nothing_to_judge_by() -> None:
    for size, is_said in (("small", True), ("full", False)):
        run = kept()
        changed = replace(run, about=replace(run.about, size=size))
        text = page.placed(page.PAGE.read_text(encoding="utf-8"), changed)
        assert ("nothing to judge by" in text) == is_said


def test_picture_is_well_formed_and_has_colours_for_a_dark_page() -> None:
    drawn = picture.drawn(kept())
    root = ElementTree.fromstring(drawn)
    assert root.tag.endswith("svg")
    assert "@media (prefers-color-scheme: dark)" in drawn
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    dots = [each for each in root.iter() if each.tag.endswith("circle")]
    assert len(dots) > len(PEERS)
    assert all(0 < float(dot.attrib["cx"]) < width for dot in dots)
    assert all(0 < float(dot.attrib["cy"]) < height for dot in dots)


def test_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--peers", "Nobody"]) == 2
    printed = capsys.readouterr()
    assert "Nobody" in printed.err
    assert "pravega_spark" in printed.out
