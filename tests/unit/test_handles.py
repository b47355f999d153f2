"""What handles have in common: blocks that close them, and no pickling."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import pravega_spark
from pravega_spark.errors import WriterFenced
from pravega_spark.values.handles import ClosedByBlock, CommittedByBlock, NotPicklable


class _Handle(ClosedByBlock):
    """Counts its closes, which may fail."""

    def __init__(self, failure: Exception | None = None) -> None:
        """Take what ``close`` raises."""
        self.closes = 0
        self._failure = failure

    def close(self) -> None:
        """Count."""
        self.closes += 1
        if self._failure is not None:
            raise self._failure


def test_the_end_of_a_block_closes_and_raises_the_failure_to_close() -> None:
    with _Handle() as handle:
        assert handle.closes == 0
    assert handle.closes == 1
    with pytest.raises(WriterFenced), _Handle(WriterFenced("fenced")):
        pass


def test_the_exception_of_a_block_hides_a_failure_to_close() -> None:
    handle = _Handle(WriterFenced("fenced"))
    with pytest.raises(KeyError), handle:
        raise KeyError("body")
    assert handle.closes == 1


class _Work(CommittedByBlock):
    """Records how it ended; an abort fails."""

    def __init__(self) -> None:
        """Begin."""
        self.calls: list[str] = []
        self._done = False

    def commit(self) -> None:
        """Record."""
        self.calls.append("commit")
        self._done = True

    def abort(self) -> None:
        """Record, and fail."""
        self.calls.append("abort")
        raise WriterFenced("fenced")


def test_the_end_of_a_block_commits_unless_the_block_has_done_so() -> None:
    with _Work() as work:
        assert work.calls == []
    with work:  # it is done
        pass
    with _Work() as other:
        other.commit()
    assert work.calls == other.calls == ["commit"]


def test_the_exception_of_a_block_aborts_and_hides_a_failure_to_abort() -> None:
    work = _Work()
    with pytest.raises(KeyError), work:
        raise KeyError("body")
    assert work.calls == ["abort"]


def _not_picklable() -> list[Any]:
    public = [getattr(pravega_spark, name) for name in pravega_spark.__all__]
    return [cls for cls in public if isinstance(cls, type) and issubclass(cls, NotPicklable)]


def test_handles_refuse_pickling_with_a_text_of_their_own() -> None:
    classes = _not_picklable()
    assert pravega_spark.EventStreamWriter in classes
    assert pravega_spark.ReaderGroup in classes
    for cls in classes:
        with pytest.raises(TypeError, match=r"^an? .* cannot be pickled; .*\.$") as refused:
            pickle.dumps(cls.__new__(cls))
        assert str(refused.value) == vars(cls)["_NOT_PICKLABLE"]
