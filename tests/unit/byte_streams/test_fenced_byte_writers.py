"""A byte writer that failed, or that a newer one fenced, seals and truncates nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.byte_streams.writer import ByteStreamWriter
from pravega_spark.errors import (
    FencingTokenMismatch,
    InvalidInput,
    StoreFull,
    WriterFenced,
)
from pravega_spark.manager import StreamManager, manager_over, root_of
from tests.harness.failpoints import at_failpoint, held_at
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.spy_store import Spy

S = "s/bytes"
Verb = Callable[[ByteStreamWriter], Any]
SEALS: list[Verb] = [lambda writer: writer.seal(), lambda writer: writer.close_and_seal()]
VERBS: list[Verb] = [*SEALS, lambda writer: writer.truncate_before(5)]
"""A truncation inside a block, which is a commit of its own kind, is tried beside them."""


@pytest.fixture
def manager() -> StreamManager:
    made = manager_of(FakeRuntime())
    made.create_scope("s")
    made.create_stream(S)
    with made.create_byte_writer(S) as writer:
        writer.write(b"0123456789")
    return made


def check_unchanged(manager: StreamManager) -> None:
    """Check that the stream is open, with all of its bytes, and takes more."""
    with manager.create_byte_writer(S) as writer:
        assert writer.fetch_head_offset() == 0
        writer.write(b"more")
    with manager.create_byte_reader(S, follow=False) as reader:
        assert reader.read() == b"0123456789more"


def fenced_by_id(manager: StreamManager) -> tuple[ByteStreamWriter, type[Exception]]:
    older = manager.create_byte_writer(S, "upload")
    manager.create_byte_writer(S, "upload")
    return older, WriterFenced


def fenced_by_token(manager: StreamManager) -> tuple[ByteStreamWriter, type[Exception]]:
    manager.fence(S, "1")
    older = manager.create_byte_writer(S, fencing_token="1")
    manager.fence(S, "2")
    return older, FencingTokenMismatch


FENCES = [fenced_by_id, fenced_by_token]


@pytest.mark.parametrize("seal", SEALS)
@pytest.mark.parametrize("fenced", FENCES)
def test_no_seal_follows_a_flush_that_failed(
    manager: StreamManager, fenced: Callable[..., Any], seal: Verb
) -> None:
    writer, kind = fenced(manager)
    writer.write(b"lost")
    for call in (writer.flush, writer.flush, lambda: seal(writer)):
        with pytest.raises(kind):
            call()
    check_unchanged(manager)


@pytest.mark.parametrize("seal", SEALS)
def test_no_seal_follows_a_write_that_the_storage_refused(seal: Verb) -> None:
    runtime = FakeRuntime()
    plain = manager_of(runtime)
    plain.create_scope("s")
    plain.create_stream(S)
    spy = Spy(root_of(plain).store)
    manager = manager_over(spy, runtime)
    writer = manager.create_byte_writer(S)

    def full(name: str, first: Any) -> None:
        if name.startswith("put"):
            raise StoreFull("the disk is full.")

    spy.hook = full
    writer.write(b"lost")
    with pytest.raises(StoreFull):
        writer.flush()
    spy.hook = None  # there is room again
    with pytest.raises(StoreFull):
        seal(writer)
    assert plain.stream_info(S).state == "ACTIVE"


def test_a_closed_writer_seals_nothing_and_closes_again(manager: StreamManager) -> None:
    writer = manager.create_byte_writer(S)
    writer.close()
    writer.close()
    for seal in SEALS:
        with pytest.raises(ValueError, match="closed file"):
            seal(writer)
    failed, kind = fenced_by_id(manager)
    failed.write(b"lost")
    with pytest.raises(kind):
        failed.close()
    with pytest.raises(ValueError, match="closed file"):
        failed.close_and_seal()
    check_unchanged(manager)


def test_a_block_whose_write_failed_leaves_the_stream_open(manager: StreamManager) -> None:
    writer, kind = fenced_by_id(manager)
    writer.write(b"lost")
    with pytest.raises(kind), writer:
        writer.close_and_seal()
    assert writer.closed
    with pytest.raises(ValueError, match="closed file"):
        writer.close_and_seal()
    check_unchanged(manager)


@pytest.mark.parametrize("position", [0, 5, 10])
@pytest.mark.parametrize("has_failed", [False, True])
@pytest.mark.parametrize("fenced", FENCES)
def test_a_fenced_writer_with_nothing_pending_changes_nothing(
    manager: StreamManager, fenced: Callable[..., Any], has_failed: bool, position: int
) -> None:
    writer, kind = fenced(manager)
    if has_failed:
        writer.write(b"late")
        with pytest.raises(kind):
            writer.flush()
    for verb in (lambda w: w.truncate_before(position), *SEALS):
        with pytest.raises(kind):
            verb(writer)
    check_unchanged(manager)


@pytest.mark.parametrize("verb", [*VERBS, lambda writer: writer.truncate_before(10)])
@pytest.mark.parametrize("by_token", [False, True])
def test_a_fence_just_before_the_commit_counts(
    manager: StreamManager, verb: Verb, by_token: bool
) -> None:
    """The commit decides, so no check can be overtaken."""
    manager.fence(S, "1")
    writer = manager.create_byte_writer(S, "upload", fencing_token="1")
    other = StreamManager(root_of(manager).store.url, runtime=root_of(manager).runtime)

    def fence() -> None:
        if by_token:
            other.fence(S, "2")
        else:
            other.create_byte_writer(S, "upload")

    kind = FencingTokenMismatch if by_token else WriterFenced
    with at_failpoint("commit.before", fence), pytest.raises(kind):
        verb(writer)
    check_unchanged(manager)


def test_the_newest_writer_of_an_id_and_token_may_do_all(manager: StreamManager) -> None:
    manager.fence(S, "1")
    manager.create_byte_writer(S, "upload", fencing_token="1")
    writer = manager.create_byte_writer(S, "upload", fencing_token="1")
    writer.truncate_before(5)
    assert writer.fetch_head_offset() == 5
    assert writer.seal() is True
    writer.truncate_before(7)
    assert writer.fetch_head_offset() == 7
    assert writer.close_and_seal() is False


def test_a_truncation_of_bytes_that_are_not_durable_says_to_flush(
    manager: StreamManager,
) -> None:
    writer = manager.create_byte_writer(S)
    with held_at("commit.before"):
        writer.write(b"pending")
        with pytest.raises(InvalidInput, match=r"durable bytes end at 10\. Flush first"):
            writer.truncate_before(12)
    writer.flush()
    writer.truncate_before(12)
    assert writer.fetch_head_offset() == 12
