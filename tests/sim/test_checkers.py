"""Each checker refuses a history that breaks its promise, and takes the same one that keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sim import shapes
from tests.sim.checkers import everything
from tests.sim.checkers.layouts import ENDLESS
from tests.sim.checkers.violations import Violation
from tests.sim.history import Call
from tests.sim.recorded import calls_of
from tests.sim.stories import Story

Case = Callable[[Story, bool], None]
CASES: list[tuple[str, str, Case]] = []


def breaks(checker: str, promise: str) -> Callable[[Case], Case]:
    """Say by which checker, and as which promise, the bad form of a story is refused."""

    def note(case: Case) -> Case:
        CASES.append((checker, promise, case))
        return case

    return note


# ------------------------------------------------------------------------------------ events


@breaks("presence", "acknowledged is there")
def acknowledged_event_is_lost(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([0, 1], "b")
    story.read("a", *([] if bad else ["b"]))


@breaks("presence", "acknowledged is there")
def acknowledged_event_above_the_head_is_lost(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.write([0, 2], "c")
    story.ok("truncate", {"0": 2}, stream="s", cut={"0": 2})
    story.read(*([] if bad else ["c"]), start={"0": 2})


@breaks("presence", "acknowledged is there")
def event_that_a_reader_saw_is_gone(story: Story, bad: bool) -> None:
    story.unknown("write", stream="s", writer="w", events=[["k", "a"]])
    story.read("a")
    story.read(*([] if bad else ["a"]))


@breaks("presence", "acknowledged is there")
def event_before_a_given_end_is_lost(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    story.read(end={"1": 0, "2": 0} if bad else {"0": 0})


@breaks("presence", "acknowledged is there")
def event_of_a_segment_that_was_split_is_lost(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([1, 0], "b")
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    first = [] if bad else [(0, 0, "k", "a")]
    end = {"1": 1, "2": 0}
    events = [list(event) for event in [*first, (1, 0, "k", "b")]]
    story.ok("read", {"from": {"0": 0}, "to": end, "events": events}, stream="s")


@breaks("once", "exists exactly once")
def event_is_there_twice(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.unknown("write", stream="s", writer="w", events=[["k", "b"]])
    story.read("a", "a" if bad else "b")


@breaks("once", "exists exactly once")
def event_lies_elsewhere_than_was_answered(story: Story, bad: bool) -> None:
    story.unknown("write", stream="s", writer="w", events=[["k", "b"]])
    story.write([0, 1], "a")
    story.read(*(["a", "b"] if bad else ["b", "a"]))


@breaks("once", "a place has one event")
def two_events_are_answered_with_one_place(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([0, 0 if bad else 1], "b")


@breaks("once", "offsets have no gap")
def offset_is_passed_over(story: Story, bad: bool) -> None:
    for event in ("a", "b"):
        story.unknown("write", stream="s", writer="w", events=[["k", event]])
    story.read((0, 0, "k", "a"), (0, 2 if bad else 1, "k", "b"))


@breaks("once", "offsets have no gap")
def read_ends_before_its_cut(story: Story, bad: bool) -> None:
    story.unknown("write", stream="s", writer="w", events=[["k", "a"]])
    events = [] if bad else [[0, 0, "k", "a"]]
    story.ok("read", {"from": {"0": 0}, "to": {"0": 1}, "events": events}, stream="s")


@breaks("refused", "refused never appears")
def refused_event_appears(story: Story, bad: bool) -> None:
    events = [["k", "a"]]
    if bad:
        story.fail("write", "StreamSealed", stream="s", writer="w", events=events)
    else:
        story.unknown("write", stream="s", writer="w", events=events)
    story.read("a")


@breaks("refused", "refused never appears")
def reader_of_a_group_sees_a_refused_event(story: Story, bad: bool) -> None:
    events = [["k", "a"]]
    if bad:
        story.fail("write", "StreamSealed", stream="s", writer="w", events=events)
    else:
        story.unknown("write", stream="s", writer="w", events=events)
    story.join("r")
    story.got("r", [0, 0], "a")


@breaks("refused", "nothing from nowhere")
def event_that_nobody_wrote_appears(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.read("a", *(["b"] if bad else []))


@breaks("refused", "nothing from nowhere")
def event_has_another_key(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", key="other" if bad else "k")
    story.read("a")


@breaks("refused", "nothing before it is written")
def event_is_seen_before_it_is_written(story: Story, bad: bool) -> None:
    if not bad:
        story.write([0, 0], "a")
    story.read("a")
    if bad:
        story.write([0, 0], "a")


@breaks("order", "events of a key are in write order")
def later_event_of_a_key_is_first(story: Story, bad: bool) -> None:
    names = ["b", "a"] if bad else ["a", "b"]
    for event in ("a", "b"):
        story.unknown("write", stream="s", writer="w", events=[["k", event]])
    story.read(*names)


@breaks("order", "events of a key are in write order")
def batch_is_in_another_order(story: Story, bad: bool) -> None:
    story.unknown("write", stream="s", writer="w", events=[["k", "a"], ["k", "b"]])
    story.read(*(["b", "a"] if bad else ["a", "b"]))


@breaks("batches", "all or none")
def part_of_a_batch_is_there(story: Story, bad: bool) -> None:
    story.unknown("write", stream="s", writer="w", events=[["k", "a"], ["k", "b"]])
    story.read("a", *([] if bad else ["b"]))


# ------------------------------------------------------------------------------ transactions


@breaks("batches", "all or none")
def part_of_a_transaction_is_visible(story: Story, bad: bool) -> None:
    story.stage("t", s=["a", "b"])
    commit = story.begin("commit", transaction="t")
    story.read("a", *([] if bad else ["b"]))
    commit.ok()


@breaks("refused", "refused never appears")
def event_of_an_open_transaction_is_visible(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"])
    if not bad:
        story.commit("t")
    story.read("a")


@breaks("refused", "nothing before it is written")
def transaction_is_visible_before_its_commit(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"])
    if not bad:
        story.commit("t")
    story.read("a")
    if bad:
        story.commit("t")


@breaks("transactions", "refused never appears")
def aborted_transaction_appears(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"])
    story.unknown("commit", transaction="t")
    if bad:
        story.ok("abort", transaction="t")
    else:
        story.fail("abort", "TxnFailed", transaction="t")
    story.read("a")


@breaks("transactions", "a transaction is decided once")
def transaction_is_committed_and_aborted(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"])
    story.commit("t")
    if bad:
        story.ok("abort", transaction="t")
    else:
        story.fail("abort", "TxnFailed", transaction="t")


@breaks("presence", "acknowledged is there")
def committed_transaction_is_not_visible(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"])
    story.commit("t", wait=not bad)
    story.commit("t")
    story.read(*([] if bad else ["a"]))


@breaks("transactions", "a decided transaction is in all of its streams")
def settled_transaction_lacks_a_part(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"], u=["b"])
    story.unknown("commit", transaction="t")
    story.read("a")
    story.ok("settle")
    story.read(*([] if bad else ["b"]), stream="u")


@breaks("transactions", "a decided transaction is in all of its streams")
def decided_transaction_is_nowhere_after_a_round(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"])
    story.commit("t", wait=False)
    story.read()
    if bad:
        story.ok("settle")
    story.read()


@breaks("joint", "joint transactions have one order")
def two_streams_have_joint_transactions_in_two_orders(story: Story, bad: bool) -> None:
    for name, events in (("t", ("a", "x")), ("u", ("b", "y"))):
        story.stage(name, s=[events[0]], u=[events[1]])
        story.unknown("commit", transaction=name)
    story.read("a", "b")
    story.read(*(["y", "x"] if bad else ["x", "y"]), stream="u")


@breaks("joint", "joint transactions have one order")
def reader_sees_only_the_later_joint_transaction(story: Story, bad: bool) -> None:
    for name, events in (("t", ("a", "x")), ("u", ("b", "y"))):
        story.stage(name, s=[events[0]], u=[events[1]])
        story.unknown("commit", transaction=name)
    story.read("a", "b")
    story.read("y" if bad else "x", stream="u")


# ------------------------------------------------------------------------- heads and retention


@breaks("heads", "the head never moves back")
def head_moves_back(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("truncate", {"0": 2}, stream="s", cut={"0": 2})
    story.ok("truncate", {"0": 1 if bad else 2}, stream="s", cut={"0": 1})


@breaks("heads", "the head never moves back")
def truncated_event_is_read_again(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("truncate", {"0": 2}, stream="s", cut={"0": 2})
    if bad:
        story.read("a", "b")
    else:
        story.read(start={"0": 2})


@breaks("heads", "retention takes nothing that a subscriber holds")
def retention_takes_what_a_subscriber_holds(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("subscribe", stream="s", subscriber="g", cut={"0": 0})
    story.ok("release", stream="s", subscriber="g", cut={"0": 1})
    story.ok("retain", {"0": 2 if bad else 1}, stream="s")


@breaks("heads", "retention takes nothing that a subscriber holds")
def retention_takes_a_segment_before_the_one_that_is_held(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    story.ok("subscribe", stream="s", subscriber="g", cut={"0": 0} if bad else {"1": 0, "2": 0})
    story.ok("retain", {"1": 0, "2": 0}, stream="s")


@breaks("heads", "retention takes nothing that a subscriber holds")
def retention_forgets_the_slower_of_two_subscribers(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    for name, offset in (("g", 2), ("h", 0)):
        story.ok("subscribe", stream="s", subscriber=name, cut={"0": offset})
    if not bad:
        story.ok("unsubscribe", stream="s", subscriber="h")
    story.ok("retain", {"0": 2}, stream="s")


@breaks("heads", "retention takes nothing that a group holds")
def retention_takes_what_lies_behind_the_start_of_a_group(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("create_group", group="g", streams={"s": {"0": 1}})
    who: dict[str, Any] = {"group": "g", "reader": "r", "acknowledge": "next", "streams": ["s"]}
    story.ok("join", retention="automatic", **who)
    story.ok("retain", {"0": 2 if bad else 1}, stream="s")


@breaks("heads", "retention takes nothing that a subscriber holds")
def retention_takes_more_than_one_by_size_took(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("subscribe", stream="s", subscriber="g", cut={})
    story.ok("retain", {"0": 1}, stream="s", policy="size")
    story.ok("retain", {"0": 2 if bad else 1}, stream="s")


@breaks("heads", "a round of retention decides again where somebody has subscribed")
def retention_is_refused_for_who_came_after_its_decision(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok("subscribe", stream="s", subscriber="g", cut={"0": 0})
    if bad:
        story.fail("retain", "HeldBySubscriber", stream="s")
    else:
        story.ok("retain", {"0": 0}, stream="s")


@breaks("heads", "retention takes nothing that a subscriber holds")
def retention_takes_what_a_second_subscribe_passes_over(story: Story, bad: bool) -> None:
    """A subscriber that is subscribed stays where it is."""
    story.write([0, 0], "a", "b")
    for offset in (0, 2):
        story.ok("subscribe", stream="s", subscriber="g", cut={"0": offset})
    story.ok("retain", {"0": 2 if bad else 0}, stream="s")


@breaks("heads", "a truncation is refused for a subscriber that holds")
def truncation_is_refused_and_nobody_is_subscribed(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("subscribe", stream="other" if bad else "s", subscriber="g", cut={"0": 0})
    story.fail("truncate", "HeldBySubscriber", stream="s", cut={"0": 2})


@breaks("heads", "a truncation is refused for a subscriber that holds")
def truncation_is_refused_for_who_has_released(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("subscribe", stream="s", subscriber="g", cut={"0": 0})
    story.ok("release", stream="s", subscriber="g", cut={"0": 2 if bad else 1})
    story.fail("truncate", "HeldBySubscriber", stream="s", cut={"0": 2})


@breaks("heads", "a truncation is refused for a subscriber that holds")
def truncation_is_refused_for_who_has_unsubscribed(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    who = {"stream": "s", "subscriber": "g"}
    story.ok("subscribe", **who, cut={"0": 0})
    story.ok("unsubscribe", **who)
    if not bad:
        story.unknown("subscribe", **who, cut={"0": 0})
    story.fail("truncate", "HeldBySubscriber", stream="s", cut={"0": 2})


@breaks("heads", "a truncation is refused for a subscriber that holds")
def truncation_is_refused_and_no_group_reads_the_stream(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("create_group", group="g", streams={"other" if bad else "s": {}})
    story.fail("truncate", "HeldBySubscriber", stream="s", cut={"0": 2})


# ------------------------------------------------------------------------------ reader groups


def three_events(story: Story) -> None:
    story.write([0, 0], "a", "b", "c")


@breaks("readers", "a reader reads a segment in order")
def reader_goes_back(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    story.got("r", [0, 1], "b")
    if bad:
        story.got("r", [0, 0], "a")


@breaks("readers", "only who is in a group is handed anything")
def reader_that_never_joined_is_handed_an_event(story: Story, bad: bool) -> None:
    three_events(story)
    if not bad:
        story.join("r")
    story.got("r", [0, 0], "a")


@breaks("readers", "only who is in a group is handed anything")
def reader_that_has_left_is_handed_an_event(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    if bad:
        story.leave("r")
    story.got("r", [0, 1], "b")


@breaks("readers", "only who is in a group is handed anything")
def reader_that_has_expired_is_handed_a_marker(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    expire = story.begin("expire", group="g", reader="r")
    if bad:
        expire.ok()
    story.marker("r", "c")
    if not bad:
        expire.ok()
    story.unknown("checkpoint", group="g", name="c")


@breaks("readers", "only who is in a group is handed anything")
def reader_whose_id_has_joined_elsewhere_is_handed_an_event(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    if not bad:
        story.ok("update_group", group="g")  # it ends all readers, who learn so later
    story.ok("join", by="q", group="g", reader="r", acknowledge="next", streams=["s"])
    story.got("r", [0, 0], "a")


@breaks("readers", "only who is in a group is handed anything")
def reader_whose_id_joined_elsewhere_after_it_is_handed_an_event(story: Story, bad: bool) -> None:
    three_events(story)
    who = {"group": "g", "reader": "r", "acknowledge": "next", "streams": ["s"]}
    joins = story.begin("join", by="r", **who)
    if bad:
        joins.ok()
    story.ok("join", by="q", **who)
    if not bad:  # this one may have joined later
        joins.ok()
    story.got("r", [0, 0], "a")


@breaks("checkpoints", "a checkpoint is shown to every reader")
def reader_that_a_change_did_not_end_reads_on_without_a_marker(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    if not bad:
        story.ok("update_group", group="g")  # it ends all readers, who learn so later
    story.ok("checkpoint", {"s": {"0": 0}}, group="g", name="c")
    story.got("r", [0, 0], "a")


@breaks("readers", "each event is read at least once")
def group_passes_over_an_event(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    story.leave("r")
    story.join("q")
    if not bad:
        story.got("q", [0, 1], "b")
    story.got("q", [0, 2], "c")


@breaks("readers", "a reader goes on after a deletion")
def reader_is_told_of_a_deletion_again(story: Story, bad: bool) -> None:
    """It is if another reader has ended that has perhaps not been told."""
    story.join("r")
    story.join("q")
    story.fail("next", "NoSuchStream", by="r", group="g", reader="r")
    if not bad:
        story.expire("q")
    story.fail("next", "NoSuchStream", by="r", group="g", reader="r")
    if bad:
        story.expire("q")


@breaks("readers", "each event is read at least once")
def group_passes_over_an_event_of_a_stream_that_is_there(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    story.got("r", [0, 2], "c")
    if not bad:
        story.unknown("delete_stream", stream="s")


@breaks("readers", "each event is read at least once")
def group_begins_behind_its_start(story: Story, bad: bool) -> None:
    three_events(story)
    story.ok("create_group", group="g", streams={"s": {"0": 0 if bad else 1}})
    story.join("r")
    story.got("r", [0, 1], "b")


@breaks("readers", "a group begins where it was told")
def group_begins_before_its_start(story: Story, bad: bool) -> None:
    three_events(story)
    story.ok("create_group", group="g", streams={"s": {"0": 1 if bad else 0}})
    story.join("r")
    story.got("r", [0, 0], "a")


@breaks("readers", "a group ends where it was told")
def group_reads_behind_its_end(story: Story, bad: bool) -> None:
    three_events(story)
    end = {"s": {"0": 1 if bad else 2}}
    story.ok("create_group", group="g", streams={"s": {}}, ends=end)
    story.join("r")
    story.got("r", [0, 0], "a")
    story.got("r", [0, 1], "b")
    story.ok("next", by="r", group="g", reader="r")
    story.ok("drain", by="r", group="g", reader="r")


@breaks("readers", "a group ends where it was told")
def group_reads_a_segment_that_came_after_its_end(story: Story, bad: bool) -> None:
    three_events(story)
    story.write([1, 0], "d")
    story.ok("layout", {"0": [], "1": ["0"]}, stream="s")
    end = {"0": 3} if bad else {"1": 1}
    story.ok("create_group", group="g", streams={"s": {}}, ends={"s": end})
    story.join("r")
    for position, event in (([0, 0], "a"), ([0, 1], "b"), ([0, 2], "c"), ([1, 0], "d")):
        story.got("r", position, event)


@breaks("readers", "a group ends where it was told")
def group_reads_behind_its_end_after_a_reset(story: Story, bad: bool) -> None:
    three_events(story)
    story.ok("create_group", group="g", streams={"s": {}}, ends={"s": {"0": 1}})
    story.join("r")
    story.got("r", [0, 0], "a")
    story.ok("reset", group="g", to={"s": {"0": 0}})
    story.join("r")
    story.got("r", [0, 0], "a")
    if bad:
        story.got("r", [0, 1], "b")


@breaks("readers", "each event is read at least once")
def group_that_ends_in_a_sealed_segment_lacks_an_event(story: Story, bad: bool) -> None:
    """No layout says that the other segment came after it."""
    three_events(story)
    story.scale(["0"], [[0.0, 1.0]])
    story.write([1, 0], "d")
    _drained_up_to_an_end(story, bad)


@breaks("readers", "each event is read at least once")
def group_does_not_reach_its_end(story: Story, bad: bool) -> None:
    three_events(story)
    _drained_up_to_an_end(story, bad)


def _drained_up_to_an_end(story: Story, bad: bool) -> None:
    story.ok("create_group", group="g", streams={"s": {}}, ends={"s": {"0": 2}})
    story.join("r")
    story.got("r", [0, 0], "a")
    if not bad:
        story.got("r", [0, 1], "b")
    story.ok("next", by="r", group="g", reader="r")
    story.ok("drain", by="r", group="g", reader="r")


@breaks("readers", "each event is read at least once")
def group_passes_over_an_event_after_a_reset(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    story.ok("reset", group="g", to={"s": {"0": 0}})
    story.join("r")
    if not bad:
        story.got("r", [0, 0], "a")
    story.got("r", [0, 1], "b")


@breaks("readers", "each event is read at least once")
def reader_that_joined_after_a_reset_passes_over_an_event(story: Story, bad: bool) -> None:
    """One that joined while the group was reset may read as it was before."""
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    reset = story.begin("reset", group="g", to={"s": {"0": 0}})
    if bad:
        reset.ok(1)
    story.join("q")
    if not bad:
        reset.ok(1)
    story.got("q", [0, 1], "b")


@breaks("checkpoints", "each event is read at least once")
def checkpoint_after_a_reset_has_what_nobody_got(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("q")
    story.ok("reset", group="g", to={"s": {"0": 0}})
    later = None if bad else story.begin("reset", group="g", to={"s": {"0": 1}})
    story.join("r")
    story.ok("checkpoint", {"s": {"0": 1}}, group="g", name="c")
    if later is not None:
        later.ok()


def segment_with_a_successor(story: Story, acknowledge: str = "next") -> None:
    """Write an event before a split and one after it, for two readers."""
    story.write([0, 0], "a")
    story.write([1, 0], "b")
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    events = [[0, 0, "k", "a"], [1, 0, "k", "b"]]
    story.ok("read", {"from": {"0": 0}, "to": {"1": 1, "2": 0}, "events": events}, stream="s")
    story.join("r", acknowledge)
    story.join("q", acknowledge)


@breaks("readers", "events of a key reach the readers in order")
def successor_is_read_before_its_segment(story: Story, bad: bool) -> None:
    segment_with_a_successor(story)
    for reader, segment, event in [("q", 1, "b"), ("r", 0, "a")][:: 1 if bad else -1]:
        story.got(reader, [segment, 0], event)


@breaks("readers", "events of a key reach the readers in order")
def fetched_event_comes_after_the_successor_and_is_not_truncated(story: Story, bad: bool) -> None:
    segment_with_a_successor(story)
    head = {"0": 0} if bad else {"1": 0, "2": 0}
    story.ok("truncate", head, stream="s", cut=head)
    story.got("q", [1, 0], "b")
    story.got("r", [0, 0], "a")


@breaks("readers", "events of a key reach the readers in order")
def one_reader_gets_a_truncated_event_after_one_of_the_successor(story: Story, bad: bool) -> None:
    segment_with_a_successor(story)
    story.ok("truncate", {"1": 0, "2": 0}, stream="s", cut={"1": 0, "2": 0})
    story.got("q", [1, 0], "b")
    story.got("q" if bad else "r", [0, 0], "a")


@breaks("readers", "an acknowledged event is not read again")
def event_comes_again_after_its_reader_has_left(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    if bad:
        story.leave("r")
    else:
        story.expire("r")
    story.join("q")
    story.got("q", [0, 0], "a")


@breaks("readers", "an acknowledged event is not read again")
def event_comes_again_while_its_reader_reads_on(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    story.join("q")
    story.got("q", [0, 0], "a")
    if bad:
        story.got("r", [0, 1], "b")


@breaks("readers", "an acknowledged event is not read again")
def event_comes_again_before_its_reader_has_left(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    story.join("q")
    story.got("q", [0, 0], "a")
    if bad:
        story.leave("r")
    else:
        story.expire("r")


@breaks("readers", "an acknowledged event is not read again")
def event_comes_again_from_a_reader_that_an_update_has_ended(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("q")
    if not bad:
        story.ok("update_group", group="g")
    story.join("r")
    story.got("r", [0, 0], "a")
    story.got("q", [0, 0], "a")
    story.leave("r")


@breaks("readers", "where checkpoints acknowledge, events of a key are acknowledged in order")
def reader_gets_a_successor_before_another_one_has_stored_its_segment(
    story: Story, bad: bool
) -> None:
    segment_with_a_successor(story, "checkpoint")
    story.got("r", [0, 0], "a")
    story.marker("r", "automatic-1")
    if not bad:
        story.ok("next", by="r", group="g", reader="r")
    story.got("q", [1, 0], "b")
    story.leave("r")


@breaks("readers", "where checkpoints acknowledge, events of a key are acknowledged in order")
def reader_gets_a_successor_while_the_one_of_its_segment_reads_on(story: Story, bad: bool) -> None:
    segment_with_a_successor(story, "checkpoint")
    story.write([2, 0], "z", key="other")
    story.got("r", [0, 0], "a")
    if not bad:
        story.ok("update_group", group="g")
    story.got("q", [1, 0], "b")
    story.got("r", [2, 0], "z")


@breaks("readers", "an acknowledged event is not read again")
def event_before_a_completed_checkpoint_comes_again(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r", "checkpoint")
    story.got("r", [0, 0], "a")
    pending = story.begin("checkpoint", group="g", name="c")
    story.marker("r", "c")
    story.got("r", [0, 1], "b")
    if bad:
        pending.ok({"s": {"0": 1}})
    else:
        pending.unknown()
    story.expire("r")
    story.join("q", "checkpoint")
    story.got("q", [0, 0], "a")


@breaks("readers", "an acknowledged event is not read again")
def event_of_a_committed_transaction_comes_again(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r", "transaction")
    story.got("r", [0, 0], "a")
    if bad:
        story.commit("t", reads=[["s", "a"]])
    else:
        story.fail("commit", "TxnFailed", transaction="t", reads=[["s", "a"]])
    story.expire("r")
    story.join("q", "transaction")
    story.got("q", [0, 0], "a")


@breaks("readers", "an acknowledged event is not read again")
def event_of_a_transaction_comes_again_after_a_reset_and_another_one(
    story: Story, bad: bool
) -> None:
    three_events(story)
    story.join("r", "transaction")
    story.got("r", [0, 0], "a")
    story.commit("t", reads=[["s", "a"]])
    story.ok("reset", group="g", to={"s": {"0": 0}})
    for reader in ("q", "p"):
        story.join(reader, "transaction")
        story.got(reader, [0, 0], "a")
        if bad and reader == "q":
            story.commit("u", reads=[["s", "a"]])
        story.expire(reader)


@breaks("readers", "a group begins where it was told")
def group_begins_before_a_reset_that_no_unknown_one_follows(story: Story, bad: bool) -> None:
    three_events(story)
    story.ok("create_group", group="g", streams={"s": {}})
    if not bad:
        story.unknown("reset", group="g", to={"s": {"0": 0}})  # and it comes after the other one
    story.ok("reset", group="g", to={"s": {"0": 1}})
    story.join("r")
    story.got("r", [0, 0], "a")


@breaks("readers", "a transaction acknowledges what a reader got")
def transaction_acknowledges_what_nobody_got(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r", "transaction")
    if not bad:
        story.got("r", [0, 0], "a")
    story.commit("t", reads=[["s", "a"]])


@breaks("checkpoints", "a checkpoint lies where its markers were")
def cut_lies_before_what_came_before_the_marker(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    pending = story.begin("checkpoint", group="g", name="c")
    story.got("r", [0, 0], "a")
    story.marker("r", "c")
    pending.ok({"s": {"0": 0 if bad else 1}})
    story.got("r", [0, 1], "b")


@breaks("checkpoints", "a checkpoint lies where its markers were")
def cut_lies_before_what_came_before_the_marker_and_is_not_truncated(
    story: Story, bad: bool
) -> None:
    three_events(story)
    story.join("r")
    pending = story.begin("checkpoint", group="g", name="c")
    story.got("r", [0, 0], "a")
    story.marker("r", "c")
    head = {"0": 0 if bad else 1}
    story.ok("truncate", head, stream="s", cut=head)
    pending.ok({"s": {"0": 0}})
    story.got("r", [0, 1], "b")


@breaks("checkpoints", "a checkpoint lies where its markers were")
def cut_lies_before_what_a_reader_answered_that_ended_later(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    pending = story.begin("checkpoint", group="g", name="c")
    story.got("r", [0, 0], "a")
    story.marker("r", "c")
    if not bad:  # this one may have been cut off from the group, and its lease have ended
        story.got("r", [0, 1], "b")
    pending.ok({"s": {"0": 0}})
    if bad:
        story.got("r", [0, 1], "b")
    story.expire("r")


@breaks("checkpoints", "a checkpoint lies where its markers were")
def cut_lies_before_what_a_reader_had_that_was_killed_at_its_marker(
    story: Story, bad: bool
) -> None:
    three_events(story)
    story.join("r")
    pending = story.begin("checkpoint", group="g", name="c")
    story.got("r", [0, 0], "a")
    story.marker("r", "c")
    if not bad:
        story.begin("next", by="r", group="g", reader="r")
    pending.ok({"s": {"0": 0}})
    if bad:
        story.got("r", [0, 1], "b")
    story.begin("next", by="r", group="g", reader="r")


@breaks("checkpoints", "a checkpoint lies where its markers were")
def cut_lies_behind_what_came_after_the_marker(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    pending = story.begin("checkpoint", group="g", name="c")
    story.got("r", [0, 0], "a")
    story.marker("r", "c")
    story.got("r", [0, 1], "b")
    pending.ok({"s": {"0": 2 if bad else 1}})


@breaks("checkpoints", "each event is read at least once")
def positions_of_the_readers_lie_behind_what_nobody_got(story: Story, bad: bool) -> None:
    three_events(story)
    story.ok("create_group", group="g", streams={"s": {}})
    story.join("r")
    story.got("r", [0, 0], "a")
    story.ok("stream_cuts", {"s": {"0": 2 if bad else 1}}, group="g")


@breaks("checkpoints", "a checkpoint has a cut of each stream")
def checkpoint_lacks_a_stream(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    story.ok("checkpoint", {} if bad else {"s": {"0": 1}}, group="g", name="c")


@breaks("checkpoints", "each event is read at least once")
def checkpoint_passes_over_a_segment(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([1, 0], "b", key="l")
    story.ok("create_group", group="g", streams={"s": {"0": 0, "1": 0}})
    story.join("r")
    story.got("r", [0, 0], "a")
    if not bad:
        story.got("r", [1, 0], "b")
    story.ok("checkpoint", {"s": {"0": 1, "1": 1}}, group="g", name="c")


# --------------------------------------------------------------------------- key-value tables


@breaks("key_values", "a table has each change, folded or not")
def table_lacks_changes_that_no_fold_has(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    asked: dict[str, Any] = {"table": "t", "keys": ["a"], "fresh": True}
    if bad:
        story.fail("get", "TruncatedData", **asked)
    else:
        story.fail("get", "StoreFull", **asked)


@breaks("key_values", "a version is of one value")
def version_has_two_values(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    story.put(1, a="2")
    story.get({"a": ("1" if bad else "2", 1)})


@breaks("key_values", "refused never appears")
def refused_value_appears(story: Story, bad: bool) -> None:
    changes = [{"key": "a", "value": "1", "expected": "absent"}]
    if bad:
        story.fail("update", "BadKeyVersion", table="t", changes=changes)
    else:
        story.unknown("update", table="t", changes=changes)
    story.get({"a": ("1", 0)})


@breaks("key_values", "a get never goes back")
def fresh_get_is_old(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    story.put(1, a="2")
    story.get({"a": ("1", 0)}, by="q", fresh=bad)


@breaks("key_values", "a get never goes back")
def get_misses_what_its_process_has_put(story: Story, bad: bool) -> None:
    story.put(0, a="1", by="q" if bad else "p")
    story.get({"a": None}, by="q", fresh=False)


@breaks("key_values", "no reader sees a part of an update")
def get_shows_a_part_of_an_update(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    story.put(1, b="1")
    story.ok(
        "update",
        [[0, 2], [1, 3]],
        table="t",
        changes=[{"key": "a", "value": "2"}, {"key": "b", "value": "2"}],
    )
    story.get({"a": ("2", 2), "b": ("1", 1) if bad else ("2", 3)}, by="q", fresh=False)


@breaks("key_values", "a version is of one key")
def two_keys_have_one_version(story: Story, bad: bool) -> None:
    for offset, key in enumerate(("a", "b")):
        version = [0, 0 if bad else offset]
        story.ok("update", [version], table="t", changes=[{"key": key, "value": "1"}])


@breaks("key_values", "a get never goes back")
def scan_lacks_what_its_process_has_put(story: Story, bad: bool) -> None:
    story.put(0, a="1", by="q")
    story.scan(by="q", **({} if bad else {"a": ("1", 0)}))


@breaks("key_values", "a get never goes back")
def scan_lacks_what_its_process_has_put_after_a_removal(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    story.put(1, a=None)
    if bad:
        story.put(2, a="2")
    story.scan()


@breaks("key_values", "a get never goes back")
def scan_lacks_what_another_process_has_put(story: Story, bad: bool) -> None:
    story.put(0, by="p", a="1")
    story.scan(by="q", **({} if bad else {"a": ("1", 0)}))


@breaks("key_values", "a get never goes back")
def scan_lacks_what_its_process_has_seen(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    story.scan(by="q", a=("1", 0))
    if not bad:
        story.unknown("update", table="t", changes=[{"key": "a", "value": None}])
    story.scan(by="q")


@breaks("key_values", "a get never goes back")
def removal_of_an_older_version_takes_a_newer_one(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    story.put(1, a="2")
    removal = {"key": "a", "value": None, "expected": [0, 0 if bad else 1]}
    story.unknown("update", table="t", changes=[removal])
    story.scan()


@breaks("key_values", "a get never goes back")
def scan_shows_a_change_and_lacks_what_was_there_before_it(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    story.put(0, b="1")
    story.scan(by="q", **({} if bad else {"a": ("1", 0)}), b=("1", 0))


@breaks("key_values", "no reader sees a part of an update")
def scan_shows_a_part_of_an_update(story: Story, bad: bool) -> None:
    changes = [{"key": key, "value": "1"} for key in ("a", "b")]
    update = story.begin("update", table="t", changes=changes)
    story.scan(by="q", a=("1", 0), **({} if bad else {"b": ("1", 0)}))
    update.ok([[0, 0], [1, 0]])


@breaks("key_values", "no reader sees a part of an update")
def scan_shows_a_part_of_an_unknown_update(story: Story, bad: bool) -> None:
    changes = [{"key": key, "value": "1"} for key in ("a", "b")]
    story.unknown("update", table="t", changes=changes)
    story.scan(by="q", a=("1", 0), **({} if bad else {"b": ("1", 0)}))


# ---------------------------------------------------- conditions, fences, watermarks, states


@breaks("conditions", "a conditional append lands where expected")
def conditional_append_lands_elsewhere(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok(
        "write_if",
        [[0, 1]],
        stream="s",
        writer="w",
        expected={"position": [0, 0 if bad else 1]},
        events=[["k", "b"]],
    )


@breaks("conditions", "a conditional append lands where expected")
def conditional_append_comes_although_another_segment_has_moved_on(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([1, 0], "x", key="l")
    expected = {"cut": {"0": 1, "1": 0 if bad else 1}}
    who: dict[str, Any] = {"stream": "s", "writer": "w", "events": [["k", "b"]]}
    story.ok("write_if", [[0, 1]], expected=expected, **who)


@breaks("conditions", "a refusal names a position of that moment")
def refusal_names_an_old_position(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.fail(
        "write_if",
        "ConditionFailed",
        {"position": [0, 1 if bad else 2]},
        stream="s",
        writer="w",
        expected={"position": [0, 0]},
        events=[["k", "c"]],
    )


@breaks("conditions", "a refusal names a position of that moment")
def refusal_names_a_position_of_the_future(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.fail(
        "write_if",
        "ConditionFailed",
        {"position": [0, 2 if bad else 1]},
        stream="s",
        writer="w",
        expected={"position": [0, 0]},
        events=[["k", "c"]],
    )
    story.write([0, 1], "b")


@breaks("conditions", "a refusal has another position")
def refusal_names_what_was_expected(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.fail(
        "write_if",
        "ConditionFailed",
        {"position": [0, 1]},
        stream="s",
        writer="w",
        expected={"position": [0, 1 if bad else 0]},
        events=[["k", "c"]],
    )


@breaks("conditions", "a conditional append lands where expected")
def conditional_append_on_a_cut_lands_elsewhere(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok(
        "write_if",
        [[0, 1]],
        stream="s",
        writer="w",
        expected={"cut": {"0": 0 if bad else 1}},
        events=[["k", "b"]],
    )


@breaks("conditions", "a refusal has another position")
def refusal_names_the_cut_that_was_expected(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    more: dict[str, Any] = {"writer": "w", "events": [["k", "b"]]}
    expected = {"cut": {"0": 1 if bad else 0}}
    refused = {"cut": {"0": 1}}
    story.fail("write_if", "ConditionFailed", refused, stream="s", expected=expected, **more)


def numbered(story: Story, number: int, at: int, event: str) -> None:
    """Acknowledge an append on a number of handle ``one``."""
    more: dict[str, Any] = {"writer": "w", "session": "one", "events": [["k", event]]}
    story.ok("write_if", [[0, at]], stream="s", expected={"number": number}, **more)


def refused_number(story: Story, number: int, actual: int | None = None) -> None:
    """Refuse an append on a number of handle ``one``."""
    more: dict[str, Any] = {"writer": "w", "session": "one", "events": [["k", "late"]]}
    told = None if actual is None else {"number": actual}
    story.fail("write_if", "ConditionFailed", told, stream="s", expected={"number": number}, **more)


@breaks("conditions", "a conditional append lands where expected")
def two_appends_land_on_one_number(story: Story, bad: bool) -> None:
    numbered(story, 0, 0, "a")
    numbered(story, 0 if bad else 1, 1, "b")


@breaks("conditions", "a conditional append lands where expected")
def append_lands_on_a_number_that_no_handle_had(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    more: dict[str, Any] = {"writer": "w", "events": [["k", "b"]]}
    story.ok("write_if", [[0, 1]], stream="s", expected={"number": 2 if bad else 1}, **more)


@breaks("conditions", "a conditional append lands where expected")
def append_of_an_id_forgets_what_it_had(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok("open_writer", 1, stream="s", writer="w", session="one")
    numbered(story, 0 if bad else 1, 1, "b")


@breaks("conditions", "a refusal has another position")
def append_on_the_right_number_is_refused(story: Story, bad: bool) -> None:
    numbered(story, 0, 0, "a")
    refused_number(story, 1 if bad else 2)


@breaks("conditions", "a refusal names a position of that moment")
def refusal_names_a_number_that_was_never_there(story: Story, bad: bool) -> None:
    numbered(story, 0, 0, "a")
    refused_number(story, 2, 0 if bad else 1)


@breaks("once", "offsets have no gap")
def answer_names_an_offset_beyond_all_events(story: Story, bad: bool) -> None:
    story.unknown("write", stream="s", writer="v", events=[["l", "a"]])
    story.write([0, 2 if bad else 1], "b")


@breaks("once", "a key has one segment at a time")
def call_has_a_key_in_two_segments(story: Story, bad: bool) -> None:
    pairs = [["k", "a"], ["l" if not bad else "k", "b"]]
    story.ok("write", [[0, 0], [1, 0]], stream="s", writer="w", events=pairs)


@breaks("once", "a key has one segment at a time")
def key_is_in_two_segments_that_are_beside_one_another(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([1, 0], "b")
    story.ok("layout", {"0": [], "1": [] if bad else ["0"]}, stream="s")


@breaks("order", "an append comes behind what is there")
def later_append_lies_before_what_was_acknowledged(story: Story, bad: bool) -> None:
    story.unknown("write", stream="s", writer="v", events=[["l", "x"]])
    story.write([0, 1], "a")
    if bad:
        story.write([0, 0], "b", key="m", writer="u")
    else:
        story.write([0, 2], "b", key="m", writer="u")


@breaks("fencing", "a write without a token is not compared with one")
def write_without_a_token_is_refused_for_one(story: Story, bad: bool) -> None:
    write: dict[str, Any] = {"stream": "s", "writer": "w", "events": [["k", "a"]]}
    story.ok("fence", stream="s", token="a")
    story.fail("write", "FencingTokenMismatch", **write, **({} if bad else {"token": "b"}))


@breaks("linearizable", "calls have one order")
def write_with_a_token_that_nobody_set_is_acknowledged(story: Story, bad: bool) -> None:
    write: dict[str, Any] = {"stream": "s", "writer": "w", "events": [["k", "a"]], "token": "a"}
    if bad:
        story.ok("write", [[0, 0]], **write)
    else:
        story.fail("write", "FencingTokenMismatch", {"token": ""}, **write)


@breaks("linearizable", "calls have one order")
def refusal_names_a_token_that_nobody_set(story: Story, bad: bool) -> None:
    write: dict[str, Any] = {"stream": "s", "writer": "w", "events": [["k", "a"]], "token": "a"}
    story.fail("write", "FencingTokenMismatch", {"token": "b" if bad else ""}, **write)


@breaks("fencing", "a fenced writer writes nothing")
def writer_with_an_old_token_writes(story: Story, bad: bool) -> None:
    story.ok("fence", stream="s", token="one")
    story.ok("fence", stream="s", token="two")
    story.write([0, 0], "a", token="one" if bad else "two")


@breaks("fencing", "a fenced writer writes nothing")
def session_that_was_fenced_writes(story: Story, bad: bool) -> None:
    story.ok("open_writer", 0, stream="s", writer="w", session="one")
    story.ok("open_writer", 0, stream="s", writer="w", session="two")
    story.write([0, 0], "a", session="one" if bad else "two")


@breaks("watermarks", "a watermark never goes back")
def watermark_goes_back(story: Story, bad: bool) -> None:
    for time in (10, 20):
        story.ok("note_time", stream="s", writer="w", time=time)
    story.ok("watermark", {"lower": 20, "upper": 20, "cut": {"0": 0}}, stream="s")
    lower = 10 if bad else 20
    story.ok("watermark", {"lower": lower, "upper": 20, "cut": {"0": 0}}, stream="s")


@breaks("watermarks", "a watermark waits for its writers")
def watermark_does_not_wait(story: Story, bad: bool) -> None:
    story.ok("note_time", stream="s", writer="w", time=10)
    story.ok("note_time", stream="s", writer="v", time=20)
    if not bad:
        story.ok("forget", stream="s", writer="w")
    story.ok("watermark", {"lower": 20, "upper": 20, "cut": {"0": 0}}, stream="s")


@breaks("watermarks", "a watermark is of noted times")
def watermark_is_of_a_time_that_nobody_noted(story: Story, bad: bool) -> None:
    story.ok("note_time", stream="s", writer="w", time=10)
    story.ok("watermark", {"lower": 11 if bad else 10, "upper": 10, "cut": {"0": 0}}, stream="s")


@breaks("states", "updates have one order")
def two_processes_know_two_orders(story: Story, bad: bool) -> None:
    for update in ("a", "b"):
        story.unknown("update_state", state="s", update=update)
    story.ok("fetch_updates", ["a", "b"], by="p", state="s")
    story.ok("fetch_updates", ["b", "a"] if bad else ["a", "b"], by="q", state="s")


@breaks("states", "an update is applied once")
def update_is_applied_twice(story: Story, bad: bool) -> None:
    story.ok("update_state", [], state="s", update="a")
    story.ok("fetch_updates", ["a", "a"] if bad else ["a"], state="s")


@breaks("states", "fetch_updates has all that was acknowledged")
def fetch_misses_an_update(story: Story, bad: bool) -> None:
    story.ok("update_state", [], by="p", state="s", update="a")
    story.ok("fetch_updates", [] if bad else ["a"], by="q", state="s")


@breaks("states", "refused never appears")
def refused_update_is_applied(story: Story, bad: bool) -> None:
    if bad:
        story.fail("update_state", "StreamSealed", state="s", update="a")
    else:
        story.unknown("update_state", state="s", update="a")
    story.ok("fetch_updates", ["a"], state="s")


# --------------------------------------------------------------------------- one order of calls


def change(key: str, value: str | None, expected: object) -> dict[str, object]:
    return {"key": key, "value": value, "expected": expected}


@breaks("linearizable", "calls have one order")
def two_updates_of_one_version_are_accepted(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    for number, by in ((1, "p"), (2, "q")):
        expected = [0, 0 if bad else number - 1]
        changes = [change("a", f"{by}", expected)]
        story.ok("update", [[0, number]], by=by, table="t", changes=changes)


@breaks("linearizable", "calls have one order")
def update_is_refused_although_its_condition_held(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    expected = [0, 0 if bad else 7]
    story.fail("update", "BadKeyVersion", table="t", changes=[change("a", "2", expected)])


@breaks("linearizable", "calls have one order")
def key_is_inserted_that_exists(story: Story, bad: bool) -> None:
    story.put(0, a="1")
    if not bad:
        story.put(1, a=None)
    story.ok("update", [[0, 2]], table="t", changes=[change("a", "2", "absent")])


@breaks("linearizable", "calls have one order")
def two_readers_see_two_unknown_updates_in_two_orders(story: Story, bad: bool) -> None:
    story.unknown("update", table="t", changes=[change("a", "1", None)])
    story.unknown("update", table="t", changes=[change("b", "2", None)])
    first = story.begin("get", by="q", table="t", keys=["a", "b"], fresh=True)
    second = story.begin("get", by="r", table="t", keys=["a", "b"], fresh=True)
    first.ok([["1", [0, 0]], None])
    second.ok([None, ["2", [1, 0]]] if bad else [["1", [0, 0]], ["2", [1, 0]]])


@breaks("linearizable", "calls have one order")
def conditional_append_is_refused_at_a_later_position(story: Story, bad: bool) -> None:
    more: dict[str, Any] = {"stream": "s", "writer": "w", "expected": {"position": [0, 0]}}
    first = story.begin("write", stream="s", writer="w", events=[["k", "a"]])
    second = story.begin("write", stream="s", writer="v", events=[["k", "b"]])
    refused = {"position": [0, 2]}
    story.fail("write_if", "ConditionFailed", refused, events=[["k", "c"]], **more)
    late = {"position": [0, 1 if bad else 2]}
    story.fail("write_if", "ConditionFailed", late, events=[["k", "d"]], **more)
    first.ok([[0, 0]])
    second.ok([[0, 1]])


@breaks("linearizable", "calls have one order")
def conditional_append_is_refused_at_its_position(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    more: dict[str, Any] = {"writer": "w", "events": [["k", "b"]]}
    expected = {"position": [0, 1 if bad else 0]}
    story.fail("write_if", "ConditionFailed", stream="s", expected=expected, **more)


@breaks("linearizable", "calls have one order")
def scans_see_two_updates_in_two_orders(story: Story, bad: bool) -> None:
    writes = [
        story.begin("update", by=by, table="t", changes=[change(key, "1", None)])
        for by, key in (("p", "a"), ("o", "b"))
    ]
    first, second = (story.begin("scan", by=by, table="t") for by in ("q", "r"))
    first.ok({"a": ["1", [0, 0]]})
    second.ok({"b": ["1", [1, 0]], **({} if bad else {"a": ["1", [0, 0]]})})
    for write, segment in zip(writes, (0, 1), strict=True):
        write.ok([[segment, 0]])


@breaks("linearizable", "calls have one order")
def unknown_joint_transaction_lies_before_one_that_was_decided_before(
    story: Story, bad: bool
) -> None:
    story.stage("t1", s=["a"], u=["x"])
    story.stage("t2", s=["b"], u=["y"])
    if bad:
        story.commit("t2")
    story.unknown("commit", transaction="t1")
    if not bad:
        story.commit("t2")
    story.read("a", "b", end={"0": 2})  # a part of the stream: no read shows all that is there


@breaks("linearizable", "calls have one order")
def write_is_refused_with_the_newest_token(story: Story, bad: bool) -> None:
    story.ok("fence", stream="s", token="one")
    story.fail(
        "write",
        "FencingTokenMismatch",
        {"token": "one"},
        stream="s",
        writer="w",
        token="one" if bad else "zero",
        events=[["k", "a"]],
    )


@breaks("linearizable", "calls have one order")
def fence_is_set_on_a_token_that_was_replaced(story: Story, bad: bool) -> None:
    story.ok("fence", stream="s", token="one")
    story.ok("fence", stream="s", token="two", expected="" if bad else "one")


@breaks("linearizable", "calls have one order")
def update_of_a_state_is_decided_on_an_old_state(story: Story, bad: bool) -> None:
    story.ok("update_state", [], by="p", state="s", update="a")
    waiting = story.begin("update_state", by="q", state="s", update="b")
    story.ok("fetch_updates", ["a", "b"], state="s")
    story.ok("update_state", ["a", "b"], by="p", state="s", update="c")
    story.ok("fetch_updates", ["a", "b"] if bad else ["a", "b", "c"], by="r", state="s")
    waiting.ok(["a"])


@breaks("linearizable", "calls have one order")
def two_keys_have_two_transactions_in_two_orders(story: Story, bad: bool) -> None:
    for name in ("t", "u"):
        pairs = [["k", f"{name}1"], ["l", f"{name}2"]]
        story.ok("stage", transaction=name, streams={"s": pairs})
        story.unknown("commit", transaction=name)
    events = [[0, 0, "k", "t1"], [0, 1, "k", "u1"], [1, 0, "l", "u2"], [1, 1, "l", "t2"]]
    if not bad:
        events[2:] = [[1, 0, "l", "t2"], [1, 1, "l", "u2"]]
    cuts = {"from": {"0": 0, "1": 0}, "to": {"0": 2, "1": 2}}
    story.ok("read", {**cuts, "events": events}, stream="s")


@breaks("linearizable", "calls have one order")
def joint_transaction_is_shown_while_an_earlier_one_is_not(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"], u=["x"])
    story.commit("t", wait=False)
    story.stage("v", s=["b"], u=["y"])
    story.commit("v", wait=False)
    story.read(*(["y"] if bad else ["x", "y"]), stream="u")
    story.read("a", "b")


@breaks("order", "an append comes behind what is there")
def append_lies_in_a_segment_before_what_was_acknowledged(story: Story, bad: bool) -> None:
    """No read shows it, and the history lacks the scale."""
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    story.write([1, 0], "a")
    story.write([0, 0] if bad else [1, 1], "b", writer="v")


@breaks("order", "an append comes behind what is there")
def append_lies_in_a_segment_before_what_a_reader_saw(story: Story, bad: bool) -> None:
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    story.unknown("write", stream="s", writer="w", events=[["k", "a"]])
    story.join("r")
    story.got("r", [1, 0], "a")
    story.write([0, 0] if bad else [2, 0], "b", key="other")


@breaks("order", "events of a key are in write order")
def positions_of_a_writer_are_disordered(story: Story, bad: bool) -> None:
    """No read shows it; both calls were open at once."""
    first, second = _two_writes(story)
    first.ok([[0, 1 if bad else 0]])
    second.ok([[0, 0 if bad else 1]])


@breaks("order", "events of a key are in write order")
def positions_of_a_writer_are_disordered_over_a_scale(story: Story, bad: bool) -> None:
    first, second = _two_writes(story)
    first.ok([[1 if bad else 0, 0]])
    second.ok([[0 if bad else 1, 0]])
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")


def _two_writes(story: Story) -> list[Call]:
    return [
        story.begin("write", stream="s", writer="w", events=[["k", event]]) for event in ("a", "b")
    ]


@breaks("order", "events of a key are in write order")
def positions_of_a_call_are_disordered(story: Story, bad: bool) -> None:
    events = [["k", "a"], ["k", "b"]]
    places = [[0, 1], [0, 0]] if bad else [[0, 0], [0, 1]]
    story.ok("write", places, stream="s", writer="w", events=events)


# --------------------------------------------------------------------- seals, bytes and copies


@breaks("seals", "no event enters what is sealed")
def event_enters_a_segment_that_was_read_to_its_end(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    value = {"from": {"0": 0}, "to": {"0": ENDLESS}, "events": [[0, 0, "k", "a"]]}
    story.ok("read", value, stream="s")
    story.write([0, 1] if bad else [1, 0], "b")


@breaks("seals", "no event enters what is sealed")
def event_enters_a_segment_that_has_a_successor(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok("layout", {"0": [], "1": ["0"]}, stream="s")
    story.write([0 if bad else 1, 1 if bad else 0], "b")


@breaks("linearizable", "calls have one order")
def conditional_append_is_elsewhere_behind_a_sealed_segment(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.scale(["0"], [[0.0, 1.0]])
    who: dict[str, Any] = {"stream": "s", "writer": "v", "events": [["k", "b"]]}
    story.ok("write_if", [[1, 0]], expected={"position": [1, 1 if bad else 0]}, **who)
    events = [[0, 0, "k", "a"], [1, 0, "k", "b"]]
    value = {"from": {}, "to": {"0": ENDLESS, "1": 1}, "events": events}
    story.ok("read", value, stream="s")


@breaks("linearizable", "calls have one order")
def refusal_tells_a_cut_with_a_segment_that_was_read_to_its_end(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.scale(["0"], [[0.0, 0.5], [0.5, 1.0]])
    who: dict[str, Any] = {"stream": "s", "writer": "v", "events": [["k", "b"]]}
    story.write([1, 0], "x")
    told = {"cut": {"0": ENDLESS, "1": 0 if bad else 1, "2": 0}}
    story.fail("write_if", "ConditionFailed", told, expected={"cut": {"0": 0}}, **who)


@breaks("linearizable", "calls have one order")
def fence_is_refused_although_its_condition_held(story: Story, bad: bool) -> None:
    story.ok("fence", stream="s", token="a")
    expected = "a" if bad else "b"
    story.fail("fence", "FencingTokenMismatch", stream="s", token="c", expected=expected)


@breaks("seals", "no event enters what is sealed")
def write_lands_after_the_seal_of_the_stream(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok("seal", stream="s")
    if bad:
        story.write([0, 1], "b")
    else:
        story.fail("write", "StreamSealed", stream="s", writer="w", events=[["k", "b"]])


@breaks("seals", "no event enters what is sealed")
def event_lands_in_a_segment_after_its_scale(story: Story, bad: bool) -> None:
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    story.scale(["0"], [(0.0, 0.5), (0.5, 1.0)])
    story.write([0 if bad else 1, 0], "a")


@breaks("seals", "a scale leaves no keys without a segment")
def scale_leaves_a_hole(story: Story, bad: bool) -> None:
    story.scale(["0"], [(0.0, 0.5)] if bad else [(0.0, 0.5), (0.5, 1.0)])


@breaks("seals", "a scale that is repeated makes no second epoch")
def repeated_scale_makes_another_epoch(story: Story, bad: bool) -> None:
    story.scale(["0"], [(0.0, 0.5), (0.5, 1.0)])
    story.scale(["0"], [(0.0, 0.5), (0.5, 1.0)], epoch=2 if bad else 1)


@breaks("seals", "automatic scaling leaves the minimum of segments")
def automatic_scaling_merges_too_much(story: Story, bad: bool) -> None:
    story.ok("autoscale", 1 if bad else 2, stream="s", minimum=2)


@breaks("byte_streams", "a place has one byte")
def byte_becomes_another(story: Story, bad: bool) -> None:
    story.bytes_written("a;b;")
    story.bytes_read("a;b;")
    story.bytes_read("a;;;" if bad else "a;b;")


@breaks("byte_streams", "acknowledged is there")
def acknowledged_bytes_are_lost(story: Story, bad: bool) -> None:
    story.bytes_written("a;")
    story.bytes_written("b;")
    story.bytes_read("a;" if bad else "a;b;")


@breaks("byte_streams", "acknowledged is there")
def bytes_are_lost_behind_a_head_between_two_tokens(story: Story, bad: bool) -> None:
    story.bytes_written("a;b;")
    story.ok("truncate_bytes", stream="b", before=4)
    story.bytes_written("c;")
    story.bytes_read("" if bad else "c;", start=4)


@breaks("byte_streams", "exists exactly once")
def bytes_are_there_twice(story: Story, bad: bool) -> None:
    story.unknown("write_bytes", stream="b", writer="w", text="a;")
    story.bytes_written("a;")
    story.bytes_read("a;a;" if bad else "a;")


@breaks("byte_streams", "nothing from nowhere")
def bytes_come_from_nowhere(story: Story, bad: bool) -> None:
    story.fail("write_bytes", "StoreFull", stream="b", writer="w", text="a;")
    story.bytes_read("a;" if bad else "")


@breaks("byte_streams", "bytes of a writer are in order")
def bytes_of_a_writer_are_disordered(story: Story, bad: bool) -> None:
    story.bytes_written("a;")
    story.bytes_written("b;")
    story.bytes_read("b;a;" if bad else "a;b;")


@breaks("byte_streams", "no part of a write is visible")
def part_of_a_write_is_visible(story: Story, bad: bool) -> None:
    story.unknown("write_bytes", stream="b", writer="w", text="abc;")
    story.bytes_read("ab" if bad else "abc;")


@breaks("byte_streams", "nothing from nowhere")
def byte_amid_the_first_token_is_another(story: Story, bad: bool) -> None:
    story.bytes_written("abc;")
    story.ok("truncate_bytes", stream="b", before=1)
    story.bytes_read("bx;" if bad else "bc;", start=1)


@breaks("byte_streams", "nothing from nowhere")
def what_a_read_begins_with_is_of_a_token_elsewhere(story: Story, bad: bool) -> None:
    story.bytes_written("ab;")
    story.bytes_read("ab;")
    story.bytes_written("cd;")
    story.ok("truncate_bytes", stream="b", before=4)
    story.bytes_read("b;" if bad else "d;", start=4)


@breaks("byte_streams", "the end lies behind all bytes")
def byte_amid_the_first_token_is_lost(story: Story, bad: bool) -> None:
    story.bytes_written("a;bbb;")
    story.ok("truncate_bytes", stream="b", before=3)
    story.bytes_read("b;" if bad else "bb;", start=3)


@breaks("byte_streams", "the end lies behind all bytes")
def bytes_behind_the_head_are_more_than_were_written(story: Story, bad: bool) -> None:
    story.bytes_written("abbb;")
    story.ok("truncate_bytes", stream="b", before=3)
    story.bytes_read("bbb;" if bad else "b;", start=3)


@breaks("byte_streams", "no part of a write is visible")
def read_ends_amid_its_first_token(story: Story, bad: bool) -> None:
    story.unknown("write_bytes", stream="b", writer="w", text="abc;")
    story.unknown("truncate_bytes", stream="b", before=1)
    story.bytes_read("b" if bad else "bc;", start=1)


@breaks("byte_streams", "the head never moves back")
def head_of_bytes_moves_back(story: Story, bad: bool) -> None:
    story.bytes_written("a;b;")
    story.unknown("truncate_bytes", stream="b", before=2)
    story.bytes_read("b;", start=2)
    story.bytes_read(*(("a;b;", 0) if bad else ("b;", 2)))


@breaks("byte_streams", "the head never moves back")
def truncation_of_bytes_does_nothing(story: Story, bad: bool) -> None:
    story.bytes_written("a;b;")
    story.ok("truncate_bytes", stream="b", before=3)
    story.bytes_read(*(("a;b;", 0) if bad else (";", 3)))


@breaks("byte_streams", "the head moves only for a reason")
def bytes_are_gone_that_nobody_truncated(story: Story, bad: bool) -> None:
    story.bytes_written("a;b;")
    story.ok("truncate_bytes", stream="b", before=1)
    story.bytes_read(*(("b;", 2) if bad else (";b;", 1)))


@breaks("presence", "acknowledged is there")
def transaction_is_lost_behind_a_head_of_before(story: Story, bad: bool) -> None:
    three_events(story)
    story.ok("truncate", {"0": 1}, stream="s", cut={"0": 1})
    story.stage("t", s=["d"])
    story.commit("t")
    story.read("b", "c", *([] if bad else ["d"]), start={"0": 1})


@breaks("batches", "all or none")
def transaction_is_in_part_behind_a_head_of_before(story: Story, bad: bool) -> None:
    three_events(story)
    story.ok("truncate", {"0": 1}, stream="s", cut={"0": 1})
    story.stage("t", s=["d", "e"])
    story.unknown("commit", transaction="t")
    story.read("b", "c", "d", *([] if bad else ["e"]), start={"0": 1})


@breaks("transactions", "a decided transaction is in all of its streams")
def decided_transaction_is_lost_behind_a_head_of_before(story: Story, bad: bool) -> None:
    three_events(story)
    story.ok("truncate", {"0": 1}, stream="s", cut={"0": 1})
    story.stage("t", s=["d"])
    story.commit("t", wait=False)
    story.ok("settle", stream="s")
    story.read("b", "c", *([] if bad else ["d"]), start={"0": 1})


@breaks("copies", "a copy lacks nothing that was acknowledged")
def copy_lacks_a_transaction_that_no_read_shows(story: Story, bad: bool) -> None:
    story.stage("t", s=["a", "b"])
    story.commit("t")
    story.ok("backup", copy="c")
    story.copied(*([] if bad else [(0, 0, "k", "a"), (0, 1, "k", "b")]))


@breaks("copies", "a copy has no part of a call")
def copy_has_a_part_of_a_transaction_that_no_read_shows(story: Story, bad: bool) -> None:
    story.stage("t", s=["a", "b"])
    story.unknown("commit", transaction="t")
    story.ok("backup", copy="c")
    story.copied((0, 0, "k", "a"), *([] if bad else [(0, 1, "k", "b")]))


@breaks("copies", "a copy has nothing from nowhere")
def copy_has_an_event_of_a_stream_that_nobody_wrote_to(story: Story, bad: bool) -> None:
    story.ok("backup", copy="c")
    story.copied(*([(0, 0, "k", "a")] if bad else []))


@breaks("copies", "a copy has each event where it was")
def copy_has_an_event_with_another_key(story: Story, bad: bool) -> None:
    story.write((0, 0), "a")
    story.ok("backup", copy="c")
    story.copied((0, 0, "other" if bad else "k", "a"))


@breaks("seals", "no event enters what is sealed")
def event_lies_behind_the_tail_of_a_sealed_stream(story: Story, bad: bool) -> None:
    pending = story.begin("write", by="q", stream="s", writer="w", events=[["k", "a"]])
    story.ok("seal", stream="s")
    story.read(*([] if bad else ["a"]))
    pending.ok([[0, 0]])


@breaks("byte_streams", "acknowledged is there")
def bytes_are_lost_that_were_written_behind_the_head(story: Story, bad: bool) -> None:
    story.bytes_written("a;b;")
    story.ok("truncate_bytes", stream="b", before=2)
    story.bytes_written("c;d;", writer="v")
    story.bytes_read("b;" if bad else "b;c;d;", start=2)


@breaks("byte_streams", "acknowledged is there")
def bytes_are_lost_behind_others_of_their_writer(story: Story, bad: bool) -> None:
    story.bytes_written("a;b;c;d;")
    story.ok("truncate_bytes", stream="b", before=2)
    story.bytes_read("b;c;" if bad else "b;c;d;", start=2)


@breaks("copies", "a copy lacks nothing that was acknowledged")
def copy_lacks_an_event(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([0, 1], "b")
    story.ok("backup", copy="c")
    story.copied([0, 0, "k", "a"], *([] if bad else [[0, 1, "k", "b"]]))


@breaks("copies", "a copy has nothing from nowhere")
def copy_has_an_event_that_was_refused(story: Story, bad: bool) -> None:
    story.fail("write", "StoreFull", stream="s", writer="w", events=[["k", "a"]])
    story.ok("backup", copy="c")
    story.copied(*([[0, 0, "k", "a"]] if bad else []))


@breaks("copies", "a copy has each event where it was")
def copy_has_an_event_elsewhere(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok("backup", copy="c")
    story.copied([0, 1 if bad else 0, "k", "a"])


@breaks("copies", "a copy has no part of a call")
def copy_has_a_part_of_a_call(story: Story, bad: bool) -> None:
    backup = story.begin("backup", copy="c")
    story.write([0, 0], "a", "b")
    backup.ok()
    story.copied(*([[0, 0, "k", "a"]] if bad else []))


@breaks("heads", "retention takes nothing that a group holds")
def retention_takes_what_no_reader_got(story: Story, bad: bool) -> None:
    story.join("r", retention="automatic")
    story.write([0, 0], "a", "b")
    story.got("r", [0, 0], "a")
    story.ok("retain", {"0": 2 if bad else 1}, stream="s")
    story.read(*([] if bad else ["b"]), start={"0": 2 if bad else 1})


def group_that_has_read_all(story: Story) -> None:
    """A group that holds its stream has got two events, and left."""
    story.join("r", retention="automatic")
    story.write([0, 0], "a", "b")
    story.got("r", [0, 0], "a")
    story.got("r", [0, 1], "b")
    story.leave("r")


@breaks("heads", "a stream keeps what a group reads again after its reset")
def stream_loses_what_its_group_was_reset_to(story: Story, bad: bool) -> None:
    group_that_has_read_all(story)
    story.ok("reset", 1, group="g", to={"s": {"0": 0}})
    story.read("a", "b")
    if not bad:
        story.join("q")
        story.got("q", [0, 0], "a")
    story.ok("retain", {"0": 1}, stream="s")


@breaks("heads", "a stream keeps what a group reads again after its reset")
def reader_gets_what_it_fetched_before_its_stream_lost_that(story: Story, bad: bool) -> None:
    group_that_has_read_all(story)
    story.ok("reset", 1, group="g", to={"s": {"0": 0}})
    story.read("a", "b")
    story.join("q")
    if not bad:
        story.got("q", [0, 0], "a")
    story.read("b", start={"0": 1})
    if bad:
        story.got("q", [0, 0], "a")


@breaks("heads", "a stream keeps what a group reads again after its reset")
def reset_that_another_one_overtook_frees_what_that_holds(story: Story, bad: bool) -> None:
    """Their generations tell which of them was the later one."""
    group_that_has_read_all(story)
    slow = story.begin("reset", group="g", to={"s": {"0": 2}})
    story.ok("reset", 2 if bad else 1, group="g", to={"s": {"0": 0}})
    slow.ok(1 if bad else 2)
    story.read("a", "b")
    story.ok("retain", {"0": 2}, stream="s")


@breaks("heads", "a stream keeps what a group reads again after its reset")
def reset_that_may_never_have_been_frees_nothing_but_what_it_passes(
    story: Story, bad: bool
) -> None:
    group_that_has_read_all(story)
    story.ok("reset", group="g", to={"s": {"0": 0}})
    story.unknown("reset", group="g", to={"s": {"0": 1}})
    story.read("a", "b")
    story.ok("retain", {"0": 2 if bad else 1}, stream="s")


@breaks("heads", "retention takes nothing that a group holds")
def retention_takes_what_a_group_was_reset_behind(story: Story, bad: bool) -> None:
    story.join("r", retention="automatic")
    story.write([0, 0], "a", "b")
    story.ok("reset", 1, group="g", to={"s": {"0": 1 if bad else 2}})
    story.ok("retain", {"0": 2}, stream="s")


@breaks("heads", "a subscriber's position does not go back")
def release_goes_back(story: Story, bad: bool) -> None:
    who = {"stream": "s", "subscriber": "x"}
    story.write([0, 0], "a", "b")
    story.ok("subscribe", **who)
    story.ok("release", **who, cut={"0": 2})
    story.ok("release", **who, cut={"0": 1 if bad else 2})


@breaks("order", "events of a writer have no gap")
def event_of_an_id_is_there_without_the_one_before(story: Story, bad: bool) -> None:
    story.ok("open_writer", 0, stream="s", writer="w")
    story.unknown("write", stream="s", writer="w", events=[["k", "a"]])
    story.unknown("write", stream="s", writer="w", events=[["k", "b"]])
    story.read(*(["b"] if bad else ["a", "b"]))


@breaks("order", "events of a writer have no gap")
def read_up_to_a_cut_lacks_an_event_of_an_id_before_it(story: Story, bad: bool) -> None:
    story.ok("open_writer", 0, stream="s", writer="w")
    story.ok("write", [[0, 0]], stream="s", writer="w", events=[["k", "a"]])
    story.ok("write", [[1, 0]], stream="s", writer="w", events=[["l", "b"]])
    cut = {"0": 1 if bad else 0, "1": 1}
    story.read((1, 0, "l", "b"), end=cut)


@breaks("checkpoints", "a checkpoint is shown to every reader")
def reader_is_not_shown_a_marker(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([0, 1], "b")
    story.join("r")
    story.got("r", [0, 0], "a")
    checkpoint = story.begin("checkpoint", group="g", name="c")
    if not bad:
        story.marker("r", "c")
    checkpoint.ok({"s": {"0": 1}})
    story.got("r", [0, 1], "b")


@breaks("checkpoints", "a checkpoint is shown to every reader")
def reader_without_transactions_is_not_shown_a_marker(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([0, 1], "b")
    story.join("r", "next" if bad else "transaction")
    story.got("r", [0, 0], "a")
    story.ok("checkpoint", {"s": {"0": 1}}, group="g", name="c")
    story.got("r", [0, 1], "b")


@breaks("damage", "nothing is damaged")
def somebody_finds_a_damaged_log(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    if bad:
        story.ok("find_damage", error="CorruptLog", what="s: version 3 is missing")


@breaks("damage", "a retained version keeps its files")
def file_of_a_young_version_is_gone(story: Story, bad: bool) -> None:
    story.ok("keep_version", ["data/a.parquet"] if bad else [], stream="s", version=3)


@breaks("transactions", "transactions come in the order of their decisions")
def batch_of_spark_comes_before_what_was_visible(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"])
    story.commit("t", wait=bad)
    story.stage("u", s=["b"])
    story.commit("u", append=True)
    story.read("b", "a")


@breaks("transactions", "transactions come in the order of their decisions")
def later_decision_comes_first(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"])
    story.stage("u", s=["b"])
    story.commit("t", wait=False)
    story.commit("u")
    story.read(*(["b", "a"] if bad else ["a", "b"]))


@breaks("transactions", "transactions come in the order of their decisions")
def later_decision_is_there_alone(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"])
    story.stage("u", s=["b"])
    story.commit("t", wait=False)
    story.unknown("commit", transaction="u")
    story.read(*(["b"] if bad else ["a", "b"]))


@breaks("checkpoints", "a checkpoint covers all keys")
def checkpoint_lacks_a_segment(story: Story, bad: bool) -> None:
    story.ok("layout", {"0": [], "1": [], "2": ["1"]}, stream="s")
    story.join("r")
    story.marker("r", "c")
    cut = {"0": 0} if bad else {"0": 0, "2": 0}
    story.ok("checkpoint", {"s": cut}, group="g", name="c")


@breaks("checkpoints", "a checkpoint has each key once")
def checkpoint_is_amid_a_segment_and_has_its_successor(story: Story, bad: bool) -> None:
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    cut = {"0": 1 if bad else ENDLESS, "1": 0, "2": 0}
    story.ok("checkpoint", {"s": cut}, group="g", name="c")


@breaks("checkpoints", "a checkpoint has each key once")
def successor_of_a_segment_that_is_not_truncated_is_in_a_checkpoint(
    story: Story, bad: bool
) -> None:
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    head = {"0": 1} if bad else {"1": 0, "2": 0}
    story.ok("truncate", head, stream="s", cut=head)
    story.ok("checkpoint", {"s": {"0": 1, "1": 0, "2": 0}}, group="g", name="c")


@breaks("seals", "only a scale changes the ranges of segments")
def segments_change_without_a_scale(story: Story, bad: bool) -> None:
    story.ok("segments", [[0.0, 1.0]], stream="s")
    if not bad:
        story.scale(["0"], [(0.0, 0.5), (0.5, 1.0)])
    story.ok("segments", [[0.0, 0.5], [0.5, 1.0]], stream="s")


@breaks("readers", "a reader reads a segment in order")
def id_that_joins_in_another_process_is_another_reader(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.join("r")
    story.got("r", [0, 0], "a")
    story.got("r", [0, 1], "b")
    story.ok(
        "join", by="q", group="g", reader="r", acknowledge="next", streams=["s"]
    )  # it has expired, and does not know it yet
    story.got("r", [0, 0], "a", by="r" if bad else "q")


@breaks("readers", "each event is read at least once")
def drained_group_has_left_an_event_out(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([1, 0], "b")
    drain = story.begin("drain", group="g", reader="r")
    story.join("r")
    story.got("r", [0, 0], "a")
    if not bad:
        story.got("r", [1, 0], "b")
    drain.ok()
    story.read([0, 0, "k", "a"], [1, 0, "k", "b"])


@breaks("readers", "what no checkpoint acknowledged is read again")
def what_a_killed_reader_has_buffered_is_lost(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r", "checkpoint")
    story.got("r", [0, 0], "a")
    story.marker("r", "automatic-1")
    story.got("r", [0, 1], "b")
    story.expire("r")
    story.join("q", "checkpoint")
    if not bad:
        story.got("q", [0, 1], "b")
    story.got("q", [0, 2], "c")
    story.leave("q")
    story.ok("drain", by="d", group="g", reader="d")


@breaks("readers", "what no checkpoint acknowledged is read again")
def what_a_reader_has_buffered_that_does_not_drain_is_lost(story: Story, bad: bool) -> None:
    """The reader that drains has what it got before."""
    three_events(story)
    story.join("r", "checkpoint")
    story.got("r", [0, 0], "a")
    drain = story.begin("drain", by="r", group="g", reader="r")
    if not bad:
        story.got("r", [0, 1], "b")
        story.got("r", [0, 2], "c")
        story.ok("next", by="r", group="g", reader="r")
    else:
        story.join("q", "checkpoint")
        story.got("q", [0, 1], "b")
        story.got("q", [0, 2], "c")
    drain.ok()


@breaks("readers", "what no checkpoint acknowledged is read again")
def event_comes_again_while_the_call_for_it_is_open(story: Story, bad: bool) -> None:
    """Then another reader may have got it later, and acknowledged it."""
    three_events(story)
    story.join("r", "checkpoint")
    late = None if bad else story.begin("next", by="r", group="g", reader="r")
    story.join("q", "checkpoint")
    story.got("q", [0, 0], "a")
    value = {"stream": "s", "position": [0, 0], "event": "a"}
    late = late or story.begin("next", by="r", group="g", reader="r")
    late.ok(value)
    story.got("q", [0, 1], "b")
    story.got("q", [0, 2], "c")
    story.leave("q")
    story.ok("drain", by="d", group="g", reader="d")


@breaks("readers", "what no checkpoint acknowledged is read again")
def event_was_read_before_a_reader_got_it_that_a_change_ended(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r", "checkpoint")
    if not bad:
        story.ok("update_group", group="g")  # it ends all readers, who learn so later
    story.join("q", "checkpoint")
    story.got("q", [0, 0], "a")
    if bad:
        story.ok("update_group", group="g")
    story.got("r", [0, 0], "a")
    story.got("q", [0, 1], "b")
    story.got("q", [0, 2], "c")
    story.leave("q")
    story.ok("drain", by="d", group="g", reader="d")


@breaks("readers", "what no next call acknowledged is read again")
def event_in_hand_of_a_killed_reader_is_lost(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    story.join("q")
    if not bad:
        story.got("q", [0, 0], "a")
    for offset, event in ((1, "b"), (2, "c")):
        story.got("q", [0, offset], event)
    story.leave("q")
    story.ok("drain", by="d", group="g", reader="d")


@breaks("readers", "events of a key reach the readers in order")
def successor_is_read_before_its_segment_and_nobody_read_the_stream(
    story: Story, bad: bool
) -> None:
    story.write([0, 0], "a")
    story.write([1, 0], "b")
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    story.join("r")
    for segment, event in [(1, "b"), (0, "a")][:: 1 if bad else -1]:
        story.got("r", [segment, 0], event)


@breaks("readers", "each event is read at least once")
def what_an_aborted_transaction_read_is_not_read_again(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.join("r", "transaction")
    story.got("r", [0, 0], "a")
    story.stage("t", out=["of a"])
    story.unknown("commit", transaction="t", reads=[["s", "a"]])
    story.ok("drain", by="d", group="g", reader="d")
    story.read(*([] if bad else [(0, 0, "k", "of a")]), stream="out")


@breaks("readers", "a reader is shown the markers that somebody asked for")
def reader_is_shown_an_automatic_marker(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r")
    story.got("r", [0, 0], "a")
    asked = story.begin("checkpoint", group="g", name="mine")
    story.marker("r", "automatic-1" if bad else "mine")
    story.got("r", [0, 1], "b")
    asked.ok({"s": {"0": 1}})


@breaks("readers", "a reader is shown the markers that somebody asked for")
def reader_that_stores_is_shown_a_marker_that_nobody_asked_for(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r", "checkpoint")
    story.marker("r", "mine" if bad else "automatic-1")


@breaks("readers", "a reader is shown the markers that somebody asked for")
def reader_in_transactions_is_shown_a_marker(story: Story, bad: bool) -> None:
    three_events(story)
    story.join("r", "transaction" if bad else "checkpoint")
    story.ok("checkpoint", {"s": {"0": 0}}, group="g", name="mine")
    story.marker("r", "mine")


@breaks("heads", "retention takes nothing that a group holds")
def retention_takes_what_no_checkpoint_acknowledged(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    who: dict[str, Any] = {"group": "g", "reader": "r", "acknowledge": "checkpoint"}
    story.ok("join", by="r", **who, streams=["s"], retention="automatic")
    story.got("r", [0, 0], "a")
    if not bad:
        story.marker("r", "automatic-1")
    story.ok("retain", {"0": 1}, stream="s")


@breaks("seals", "a scale that is repeated finds its own epoch")
def scale_that_is_repeated_is_refused(story: Story, bad: bool) -> None:
    halves = [[0.0, 0.5], [0.5, 1.0]]
    story.scale(["0"], halves)
    if not bad:  # who comes after another one may be too late
        story.scale(["1"], [[0.0, 0.25], [0.25, 0.5]], 2, [[0.0, 0.5]])
    again: dict[str, Any] = {"seal": ["0"], "sealed": [[0.0, 1.0]], "ranges": halves}
    story.fail("scale", "ScaleConflict", stream="s", **again)


@breaks("copies", "no transaction of the root is open in a copy")
def transaction_is_open_in_a_copy(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok("backup", copy="c")
    value = {"from": {"0": 0}, "events": [[0, 0, "k", "a"]], "open": int(bad)}
    story.ok("read_copy", value, copy="c", stream="s")


@breaks("readers", "each input event has its output once")
def event_has_the_outputs_of_two_transactions(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    for reader, transaction, key in (("r", "t", "x"), ("q", "u", "y")):
        story.join(reader, acknowledge="transaction")
        story.got(reader, [0, 0], "a")
        story.ok("stage", transaction=transaction, streams={"out": [["k", key]]})
        story.unknown("commit", transaction=transaction, reads=[["s", "a"]])
        story.expire(reader)
    story.read(*(("x", "y") if bad else ("y",)), stream="out")


@breaks("presence", "a writer is told how many of its events are there")
def writer_that_opens_again_is_told_too_few(story: Story, bad: bool) -> None:
    story.ok("open_writer", 0, stream="s", writer="w")
    story.write([0, 0], "a")
    story.ok("open_writer", 0 if bad else 1, stream="s", writer="w")


@breaks("presence", "a writer is told how many of its events are there")
def writer_that_opens_again_is_told_too_many(story: Story, bad: bool) -> None:
    story.unknown("write", stream="s", writer="w", events=[["k", "a"]])
    story.ok("open_writer", 2 if bad else 1, stream="s", writer="w")


@breaks("heads", "the head moves only for a reason")
def event_is_gone_that_nobody_truncated(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.unknown("truncate", stream="s", cut={"0": 1})
    story.ok("retain", {"0": 0}, stream="s")
    story.read(*([] if bad else ["b"]), start={"0": 2 if bad else 1})


@breaks("heads", "the head moves only for a reason")
def head_moves_past_what_the_subscriber_has_released(story: Story, bad: bool) -> None:
    who = {"stream": "s", "subscriber": "x"}
    story.write([0, 0], "a", "b")
    story.ok("subscribe", **who, cut={"0": 0})
    story.unknown("release", **who, cut={"0": 1 if bad else 2})
    story.read(start={"0": 2})


@breaks("heads", "the head moves only for a reason")
def head_moves_past_what_a_group_has_read(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    of: dict[str, Any] = {"group": "g", "reader": "r", "acknowledge": "next", "streams": ["s"]}
    story.ok("join", by="r", retention="automatic", **of)
    story.got("r", [0, 0], "a")
    if not bad:
        story.got("r", [0, 1], "b")
    story.read(start={"0": 2})


@breaks("heads", "the head moves only for a reason")
def head_moves_for_a_group_that_does_not_hold_the_stream(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    of: dict[str, Any] = {"group": "g", "reader": "r", "acknowledge": "next", "streams": ["s"]}
    story.ok("join", by="r", retention="none" if bad else "automatic", **of)
    story.got("r", [0, 0], "a")
    story.read(start={"0": 1})


@breaks("heads", "a truncation takes what lies before its cut")
def truncation_does_nothing(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("truncate", {"0": 0 if bad else 2}, stream="s", cut={"0": 2})


@breaks("heads", "a truncation takes what lies before its cut")
def read_shows_what_was_truncated(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("truncate", stream="s", cut={"0": 1})
    story.read(*(["a", "b"] if bad else ["b"]), start={"0": 0 if bad else 1})


@breaks("seals", "no event enters what is sealed")
def transaction_enters_a_sealed_stream(story: Story, bad: bool) -> None:
    commit = None
    if not bad:
        commit = story.begin("commit", transaction="t")
    story.ok("seal", stream="s")
    story.ok("stage", transaction="t", streams={"s": [["k", "a"]]})
    (commit or story.begin("commit", transaction="t")).unknown()
    story.read("a")


@breaks("seals", "no transaction is committed to what is sealed")
def commit_is_acknowledged_after_the_seal(story: Story, bad: bool) -> None:
    story.stage("t", s=["a"])
    decided = story.begin("commit", transaction="t") if not bad else None
    story.ok("seal", stream="s")
    if decided is not None:
        decided.unknown()
    story.commit("t")


@breaks("seals", "segments are those of the last scale")
def segments_are_those_before_the_scale(story: Story, bad: bool) -> None:
    halves = [[0.0, 0.5], [0.5, 1.0]]
    story.ok("segments", [[0.0, 1.0]], stream="s")
    story.scale(["0"], halves)
    story.scale(["0"], halves)
    story.ok("segments", [[0.0, 1.0]] if bad else halves, stream="s")


@breaks("seals", "segments have each key once")
def stream_that_is_not_sealed_has_no_segments(story: Story, bad: bool) -> None:
    if not bad:
        story.unknown("seal", stream="s")
    story.ok("segments", [], stream="s")


@breaks("presence", "a read has what it was asked for")
def read_begins_before_its_start(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    found = {"from": {"0": 0}, "to": {"0": 2}, "events": [[0, 0, "k", "a"], [0, 1, "k", "b"]]}
    asked: dict[str, Any] = {"from": {"0": 1 if bad else 0}}
    story.ok("read", found, stream="s", **asked)


@breaks("presence", "a read has what it was asked for")
def read_begins_behind_its_start(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    if not bad:
        story.ok("truncate", {"0": 1}, stream="s", cut={"0": 1})
    found = {"from": {"0": 1}, "to": {"0": 2}, "events": [[0, 1, "k", "b"]]}
    asked: dict[str, Any] = {"from": {"0": 0}}
    story.ok("read", found, stream="s", **asked)


@breaks("presence", "a read has what it was asked for")
def read_ends_before_its_end(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    found = {"from": {"0": 0}, "to": {"0": 1}, "events": [[0, 0, "k", "a"]]}
    story.ok("read", found, stream="s", to={"0": 2 if bad else 1})


@breaks("presence", "a read has what it was asked for")
def read_ends_behind_its_end(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    found = {"from": {"0": 0}, "to": {"0": 2}, "events": [[0, 0, "k", "a"], [0, 1, "k", "b"]]}
    story.ok("read", found, stream="s", to={"0": 1 if bad else 2})


@breaks("key_values", "versions of a key rise")
def later_update_has_an_earlier_version(story: Story, bad: bool) -> None:
    story.put(5, a="1")
    story.put(4 if bad else 6, a="2")


@breaks("copies", "a copy has its events in order")
def events_of_a_copy_are_disordered(story: Story, bad: bool) -> None:
    story.write([0, 0], "a", "b")
    story.ok("backup", copy="c")
    found = [[0, 0, "k", "a"], [0, 1, "k", "b"]]
    story.copied(*(found[::-1] if bad else found))


@breaks("copies", "a copy has its events in order")
def copy_has_a_successor_before_its_segment(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.write([1, 0], "b", key="l")
    story.ok("layout", {"0": [], "1": ["0"], "2": ["0"]}, stream="s")
    story.ok("backup", copy="c")
    found = [[0, 0, "k", "a"], [1, 0, "l", "b"]]
    story.copied(*(found[::-1] if bad else found))


@breaks("copies", "a copy begins where its stream did")
def head_of_a_copy_is_none_of_the_stream(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.ok("backup", copy="c")
    value = {"from": {"0": 1 if bad else 0}, "events": [] if bad else [[0, 0, "k", "a"]]}
    story.ok("read_copy", value, copy="c", stream="s")
    story.read("a")


@breaks("copies", "a copy begins where its stream did")
def head_of_a_copy_is_of_no_truncation_that_may_have_come(story: Story, bad: bool) -> None:
    three_events(story)
    story.begin("truncate", stream="s", cut={"0": 2 if bad else 1})
    story.read("a", "b", "c")
    story.ok("backup", copy="c")
    value = {"from": {"0": 1}, "events": [[0, 1, "k", "b"], [0, 2, "k", "c"]]}
    if bad:
        value = {"from": {"0": 3}, "events": []}
    story.ok("read_copy", value, copy="c", stream="s")


@breaks("copies", "a copy has nothing from nowhere")
def copy_has_what_was_written_after_its_backup(story: Story, bad: bool) -> None:
    backup = story.begin("backup", copy="c")
    if bad:
        backup.ok()
    story.write([0, 0], "a")
    if not bad:
        backup.unknown()
    story.copied([0, 0, "k", "a"])


@breaks("seals", "segments have each key once")
def segments_leave_keys_out(story: Story, bad: bool) -> None:
    story.ok("segments", [[0.0, 0.5], [0.6 if bad else 0.5, 1.0]], stream="s")


@breaks("seals", "two scales make two epochs")
def two_scales_have_one_epoch(story: Story, bad: bool) -> None:
    story.scale(["0"], [[0.0, 0.5], [0.5, 1.0]], epoch=1)
    story.scale(["1"], [[0.0, 0.2], [0.2, 0.5]], 1 if bad else 2, [[0.0, 0.5]])


@breaks("seals", "two scales make two epochs")
def later_scale_has_an_earlier_epoch(story: Story, bad: bool) -> None:
    story.scale(["0"], [[0.0, 0.5], [0.5, 1.0]], epoch=3)
    story.scale(["1"], [[0.0, 0.2], [0.2, 0.5]], 2 if bad else 4, [[0.0, 0.5]])


@breaks("watermarks", "a watermark is of the newest notes")
def watermark_is_older_than_the_notes(story: Story, bad: bool) -> None:
    for time in (10, 20):
        story.ok("note_time", stream="s", writer="w", time=time)
    time = 10 if bad else 20
    story.ok("watermark", {"lower": time, "upper": 20, "cut": {"0": 0}}, stream="s")


@breaks("watermarks", "a watermark is of the newest notes")
def watermark_is_not_there_yet(story: Story, bad: bool) -> None:
    note = story.begin("note_time", stream="s", writer="w", time=10)
    if bad:
        note.ok()
    story.ok("watermark", None, stream="s")


@breaks("watermarks", "a watermark never goes back")
def cut_of_a_watermark_goes_back(story: Story, bad: bool) -> None:
    story.ok("note_time", stream="s", writer="w", time=10)
    for end in (2, 1 if bad else 2):
        story.ok("watermark", {"lower": 10, "upper": 10, "cut": {"0": end}}, stream="s")


@breaks("watermarks", "noted times of a writer rise")
def earlier_time_is_noted(story: Story, bad: bool) -> None:
    story.ok("note_time", stream="s", writer="w", time=10)
    if bad:
        story.ok("note_time", stream="s", writer="w", time=5)
    else:
        story.fail("note_time", "InvalidTime", stream="s", writer="w", time=5)


@breaks("watermarks", "the cut of a watermark is in its stream")
def cut_of_a_watermark_lies_behind_the_tail(story: Story, bad: bool) -> None:
    story.write([0, 0], "a")
    story.unknown("write", stream="s", writer="v", events=[["k", "b"]])
    story.ok("note_time", stream="s", writer="w", time=10)
    cut = {"0": 3 if bad else 2}
    story.ok("watermark", {"lower": 10, "upper": 10, "cut": cut}, stream="s")


@breaks("watermarks", "the cut of a watermark has what was there when its times were noted")
def cut_of_a_watermark_lacks_what_its_writer_wrote(story: Story, bad: bool) -> None:
    write = story.begin("write", stream="s", writer="w", events=[["k", "a"]])
    story.ok("note_time", stream="s", writer="w", time=10)
    write.ok([[0, 0]])
    cut = {"0": 0 if bad else 1}
    story.ok("watermark", {"lower": 10, "upper": 10, "cut": cut}, stream="s")


@breaks("watermarks", "the cut of a watermark has what was there when its times were noted")
def cut_of_a_watermark_lacks_what_was_acknowledged(story: Story, bad: bool) -> None:
    if bad:
        story.write([0, 0], "a", writer="v")
    story.ok("note_time", stream="s", writer="w", time=10)
    if not bad:
        story.write([0, 0], "a", writer="v")
    story.ok("watermark", {"lower": 10, "upper": 10, "cut": {"0": 0}}, stream="s")


# ----------------------------------------------------------------------------------- the tests


def names(case: tuple[str, str, Case]) -> str:
    return f"{case[0]}-{case[2].__name__}"


@pytest.mark.parametrize("case", CASES, ids=names)
def test_history_that_breaks_a_promise_is_refused(case: tuple[str, str, Case]) -> None:
    checker, promise, tell = case
    kept, broken = Story(), Story()
    tell(kept, False)
    shapes.check(calls_of(kept.text()))
    everything.check(kept.text())
    tell(broken, True)
    with pytest.raises(Violation):
        everything.check(broken.text())
    with pytest.raises(Violation) as refused:
        everything.CHECKERS[checker](calls_of(broken.text()))
    assert refused.value.promise == promise


def test_every_checker_has_a_history_that_it_refuses() -> None:
    assert {checker for checker, _, _ in CASES} == set(everything.CHECKERS)
