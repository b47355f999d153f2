"""A history is the same bytes whenever the same happened, and a checker reads what was recorded."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from tests.sim.history import History, SharedHistory, joined
from tests.sim.recorded import BadHistory, calls_of


def test_lines_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/histories.md").read_text()
    steps = iter([3, 3, 5, 9])
    history = History(lambda: next(steps), seed=7)
    write = history.invoke("p1", "write", stream="s/t", writer="w1", events=[("k1", "a")])
    read = history.invoke("p2", "read", stream="s/t")
    write.ok([[0, 0]])
    read.unknown()
    assert f"```json\n{history.text()}```" in page


def test_recorded_calls_come_back_in_their_order() -> None:
    history = History()
    first = history.invoke("p", "get", keys=["a"])
    second = history.invoke("p", "update", changes=[])
    first.ok([None])
    third = history.invoke("q", "get", keys=["ä"])
    second.failed(ValueError("not in the history"), value=4)
    one, two, three = calls_of(history.text())
    assert (one.outcome, one.value, two.outcome, two.error, two.value) == (
        *("ok", [None]),
        *("fail", "ValueError", 4),
    )
    assert three.ended is None
    assert three.may_have_happened
    assert three.arguments == {"keys": ["ä"]}
    assert one.before(three)
    assert not one.before(two)
    assert not two.before(three)
    third.unknown()
    assert calls_of(history.text())[2].ended is None


def test_outcome_is_given_once_and_steps_never_go_back() -> None:
    steps = iter([2, 3, 1])
    history = History(lambda: next(steps))
    call = history.invoke("p", "read")
    call.ok()
    with pytest.raises(ValueError, match="call 0 has an outcome already"):
        call.unknown()
    with pytest.raises(ValueError, match="step 1 after step 3"):
        history.invoke("p", "read")
    assert len(history.lines) == 3


@pytest.mark.parametrize("value", [b"bytes", float("nan"), {1, 2}])
def test_value_without_one_form_in_json_is_refused(value: object) -> None:
    history = History()
    with pytest.raises((TypeError, ValueError)):
        history.invoke("p", "write", events=value)
    history.invoke("p", "read").ok()
    assert [call.number for call in calls_of(history.text())] == [0]


HEAD = '{"history":1}'
SEAL = '{"arguments":{},"call":0,"operation":"seal","process":"p","step":1,"type":"invoke"}'
INFO = '{"call":0,"step":1,"type":"info"}'


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "line 1"),
        (['{"history":2}'], "line 1"),
        (['{"history":true}'], "line 1"),
        (['{"history":1.0}'], "line 1"),
        (['{"history":1}', "{"], "line 2 is no JSON"),
        (['{"history":1}', "7"], "line 2 is no JSON object"),
        ([HEAD, '{"call":0,"step":1,"type":"info"}'], "line 2: call 0 is not open"),
        ([HEAD, '{"call":0,"step":1}'], "line 2 lacks 'type'"),
        ([HEAD, '{"step":1,"call":0}'], "line 2 is not in the form"),
        ([HEAD, '{"call":0, "step":1}'], "line 2 is not in the form"),
        ([HEAD, '{"call":0,"step":1,"type":"info"}\r'], "line 2 is not in the form"),
        ([HEAD, '{"call":0,"step":1,"type":"é"}'], "line 2 is not in the form"),
        ([HEAD, '{"call":NaN}'], "line 2 is no JSON"),
        ([HEAD, SEAL, '{"call":0,"step":1,"type":"fail"}'], "line 3 lacks 'error'"),
        ([HEAD, SEAL, '{"call":0,"error":7,"step":1,"type":"fail"}'], "line 3: error 7 is no text"),
        ([HEAD, SEAL, '{"call":0,"error":"","step":1,"type":"fail"}'], "line 3: the error has no"),
        ([HEAD, SEAL, '{"call":0,"step":1,"type":"ok"}'], "line 3 lacks 'value'"),
        ([HEAD, SEAL, '{"call":0,"step":1,"type":"yes"}'], "line 3: no outcome is called 'yes'"),
        ([HEAD, SEAL, '{"call":0,"step":1,"type":"info","value":1}'], "line 3: .* has no 'value'"),
        ([HEAD, SEAL, INFO, INFO], "line 4: call 0 is not open"),
        ([HEAD, SEAL.replace('"type"', '"tip":1,"type"')], "line 2: .* has no 'tip'"),
    ],
)
def test_text_that_is_no_history_is_refused_with_its_line(lines: list[str], why: str) -> None:
    with pytest.raises(BadHistory, match=why):
        calls_of(lines)


def test_threads_record_into_one_history() -> None:
    history = History()

    def record(name: str) -> None:
        for number in range(200):
            history.invoke(name, "write", number=number).ok(number)

    threads = [threading.Thread(target=record, args=(f"p{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls = calls_of(history.text())
    assert [call.number for call in calls] == list(range(800))
    assert all(call.arguments["number"] == call.value for call in calls)


def _record(path: Path, name: str) -> None:
    history = SharedHistory(path)
    for number in range(50):
        history.invoke(name, "write", number=number).ok(number)
    history.invoke(name, "write", number=50)


@pytest.mark.medium
def test_processes_record_into_one_file_and_leave_their_calls_open(tmp_path: Path) -> None:
    path = tmp_path / "recorded"
    start = multiprocessing.get_context("forkserver")
    processes = [start.Process(target=_record, args=(path, f"p{n}")) for n in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    calls = calls_of(joined(path, seed=1))
    assert [call.number for call in calls] == list(range(102))
    for name in ("p0", "p1"):
        mine = [call for call in calls if call.process == name]
        assert [call.arguments["number"] for call in mine] == list(range(51))
        assert [call.outcome for call in mine] == ["ok"] * 50 + ["info"]
