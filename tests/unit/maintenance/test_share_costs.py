"""What an open process pays for the maintenance of its root, in storage calls, by skipped clocks.

At the default intervals. The counts differ by a few calls, since pauses are drawn at random.
"""

from __future__ import annotations

import pytest

from bench.cases.maintained_appends import TURN_SECONDS, appends_in_turn, idle_calls
from tests.harness.tiers import only_long


@pytest.mark.medium
def test_hour_of_an_idle_process_costs_a_call_a_minute_for_each_idle_stream() -> None:
    """3,600 calls, and 240 for each stream, while each kind asked for itself."""
    few, many = idle_calls(1), idle_calls(21)
    assert few < 1_200
    assert (many - few) / 20 < 120


@pytest.mark.medium
def test_process_in_a_root_that_another_one_maintains_makes_few_calls() -> None:
    assert idle_calls(1, is_alone=False) < 600


@pytest.mark.long
@only_long("the hours above count the calls of an idle process, `make bench` those beside appends")
def test_maintenance_beside_appends_costs_less_than_a_call_for_each_at_one_a_second() -> None:
    """About 0.4, by where the head is between two states; a sweep that reads each commit, 1.4."""
    (beside,), (alone,) = appends_in_turn(1, TURN_SECONDS, 1)
    assert (beside.calls - alone.calls) / beside.appends < 0.65
