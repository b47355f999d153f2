"""What a history has of events that are stored in other ways."""

from __future__ import annotations

import pytest

from tests.sim.checkers import everything
from tests.sim.checkers.violations import Violation
from tests.sim.history import History
from tests.sim.large_events import large_event, text_of
from tests.soak.kinds import KINDS, Kind, text_of_row

PAYLOAD = large_event("t-1", 1_000)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name))
def test_event_that_is_whole_has_its_text(kind: Kind) -> None:
    stored = kind.stored("t-1")
    assert kind.text(stored.encode() if isinstance(stored, str) else stored) == "t-1"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PAYLOAD[:-1],
        PAYLOAD[: -len(b"t-1 1000\n")],
        PAYLOAD + PAYLOAD[:9],
        PAYLOAD[:500] + bytes(9) + PAYLOAD[509:],
        PAYLOAD[:500] + large_event("t-2", 1_000)[500:],
    ],
    ids=["nothing", "cut", "a line less", "a line more", "zeros", "of two events"],
)
def test_large_event_that_is_not_whole_is_one_that_nobody_wrote(data: bytes) -> None:
    history = History()
    write = {"stream": "s", "writer": "w", "events": [["k", "t-1"]]}
    history.invoke("p", "write", **write).ok([["0", 0]])
    read = history.invoke("p", "read", stream="s")
    read.ok({"from": {}, "to": {"0": 1}, "events": [["0", 0, "k", text_of(data)]]})
    with pytest.raises(Violation):
        everything.check(history.text())


def test_row_whose_columns_are_of_two_rows_is_one_that_nobody_wrote() -> None:
    assert text_of_row({"item": "t-1", "number": 4}) == "t-1, not whole"
