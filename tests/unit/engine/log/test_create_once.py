"""Unknown outcomes of the creation of one object."""

from __future__ import annotations

import pytest

from pravega_spark.engine.log.commit import create_once
from pravega_spark.engine.store.retrying_store import RetryingStore
from pravega_spark.errors import CommitUnknown, StoreError, StoreUnavailable
from pravega_spark.values.limits import COMMIT_DEADLINE_SECONDS
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.spy_store import Spy

KEY = "folder/object"


class Race:
    """One process creates an object on a store with faults."""

    def __init__(self, *rules: Rule) -> None:
        self.store, self.runtime = Spy(), FakeRuntime()
        self.store.rules.add(*rules)

    def run(self, data: bytes = b"ours") -> bool:
        return create_once(
            self.store,
            self.runtime,
            KEY,
            data,
            is_ours=lambda found: found == data,
            unknown=lambda: CommitUnknown("no answer"),
        )

    @property
    def calls(self) -> list[str]:
        return [operation for operation, _ in self.store.calls]


def test_clear_success_is_one_call() -> None:
    race = Race()
    assert race.run()
    assert race.calls == ["put_if_absent"]


def test_existing_object_of_another_process_is_read_once() -> None:
    race = Race()
    race.store.inner.put(KEY, b"theirs")
    assert not race.run()
    assert race.calls == ["put_if_absent", "get"]
    assert race.store.inner.get(KEY) == b"theirs"


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.RESEND])
def test_own_object_after_a_lost_answer_counts_once_it_is_durable(fault: Fault) -> None:
    race = Race(Rule(fault, "put_if_absent", nth=1))
    assert race.run()
    assert race.calls == ["put_if_absent", "get", "make_durable"]
    assert race.store.calls[-1] == ("make_durable", "folder")


def test_lost_request_is_sent_again_with_the_same_bytes() -> None:
    race = Race(Rule(Fault.LOSE_REQUEST, "put_if_absent", nth=1))
    assert race.run()
    assert [data for _, data in race.store.sent] == [b"ours", b"ours"]
    assert race.calls == ["put_if_absent", "get", "put_if_absent"]


def test_late_request_is_not_a_second_object() -> None:
    race = Race(Rule(Fault.DELAY, "put_if_absent", nth=1))
    assert race.run()
    race.store.deliver()
    assert race.store.inner.get(KEY) == b"ours"


def test_request_that_arrives_before_its_repetition_is_ours() -> None:
    race = Race(Rule(Fault.DELAY, "put_if_absent", nth=1))

    def arrive(operation: str, key: str) -> None:
        if operation == "put_if_absent" and race.calls.count(operation) == 2:
            race.store.deliver()

    race.store.hook = arrive
    assert race.run()
    assert race.calls == ["put_if_absent", "get", "put_if_absent", "get", "make_durable"]


def test_another_process_may_win_while_the_outcome_is_unknown() -> None:
    race = Race(Rule(Fault.LOSE_REQUEST, "put_if_absent", nth=1))

    def other(operation: str, key: str) -> None:
        if operation == "get":
            race.store.hook = None
            race.store.inner.put(KEY, b"theirs")

    race.store.hook = other
    assert not race.run()


def test_refused_first_attempt_is_an_error() -> None:
    race = Race(Rule(Fault.REFUSE, "put_if_absent"))
    with pytest.raises(StoreError, match="refused by the plan"):
        race.run()
    assert race.calls == ["put_if_absent"]


@pytest.mark.parametrize("after", ["get", "put_if_absent", "make_durable"])
def test_refusal_after_an_unknown_outcome_is_retried(after: str) -> None:
    first = Fault.LOSE_REQUEST if after == "put_if_absent" else Fault.LOSE_ANSWER
    nth = 2 if after == "put_if_absent" else 1
    race = Race(Rule(first, "put_if_absent", nth=1), Rule(StoreError("down"), after, nth=nth))
    assert race.run()
    assert race.store.inner.get(KEY) == b"ours"


@pytest.mark.parametrize("silent", ["get", "put_if_absent"])
def test_outcome_that_stays_unknown_is_an_error_at_the_deadline(silent: str) -> None:
    rules = [Rule(Fault.LOSE_REQUEST, "put_if_absent")]
    if silent == "get":
        rules.append(Rule(StoreError("down"), "get"))
    race = Race(*rules)
    start = race.runtime.monotonic()
    with pytest.raises(CommitUnknown, match="no answer"):
        race.run()
    waited = race.runtime.monotonic() - start
    assert COMMIT_DEADLINE_SECONDS < waited <= COMMIT_DEADLINE_SECONDS + 2
    assert len(race.calls) < 200, "the pauses grow"


def sitting_out(client: Spy, runtime: FakeRuntime, seconds: float) -> RetryingStore:
    """A store whose calls are repeated for so long."""
    options = {"retry_timeout": seconds}
    return RetryingStore(lambda url, options: client, "memory://", options, runtime=runtime)


@pytest.mark.parametrize("outage", [1.0, 59.0, 299.0])
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
def test_outage_that_the_store_sits_out_is_sat_out(fault: Fault, outage: float) -> None:
    race = Race(Rule(fault, "put_if_absent"), Rule(StoreUnavailable("down"), "get"))
    inner = race.store
    race.store = sitting_out(inner, race.runtime, 300.0)  # type: ignore[assignment]
    until = race.runtime.monotonic() + outage
    inner.hook = lambda *_: inner.rules.clear() if race.runtime.monotonic() >= until else None
    assert race.run()
    assert inner.inner.get(KEY) == b"ours"
    assert race.runtime.monotonic() < until + 3.0
    assert inner.count("put_if_absent") == (1 if fault is Fault.LOSE_ANSWER else 2)


def test_longer_outage_is_unknown_and_names_the_option() -> None:
    race = Race(Rule(Fault.LOSE_ANSWER, "put_if_absent"), Rule(StoreUnavailable("down"), "get"))
    inner, began = race.store, race.runtime.monotonic()
    race.store = sitting_out(inner, race.runtime, 10.0)  # type: ignore[assignment]
    with pytest.raises(CommitUnknown, match=r"no answer.* 10 s, as .* option retry_timeout says"):
        race.run()
    assert race.runtime.monotonic() - began == pytest.approx(10.0)


def test_store_that_answers_reads_alone_is_given_up_after_option_and_deadline() -> None:
    race = Race(Rule(Fault.LOSE_REQUEST, "put_if_absent"))
    inner, began = race.store, race.runtime.monotonic()
    race.store = sitting_out(inner, race.runtime, 200.0)  # type: ignore[assignment]
    with pytest.raises(CommitUnknown, match="no answer"):
        race.run()
    assert 200.0 + COMMIT_DEADLINE_SECONDS < race.runtime.monotonic() - began < 270.0
