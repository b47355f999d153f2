"""The lives of a stream as commits of its log: claim, create, update, seal and delete.

A log is never deleted. The commit of a deletion removes all files and all domains except the
stream's record. Creating the name again is the next commit of the same log, with the next life.

Which number a new life of a name gets, and the row of the scope that claims it. Cuts, pointers,
versions and archives know a life by its number alone, and copies of one root live on without
knowing each other. So the number is drawn: the clock is its high part, and the rest is random. Only
the first life of a name in a root that is not a copy is 1, and that alone if its creator ends the
creation. A row without a log may also be of a stream that was lost with all its objects; so a
process that ends the creation of another one draws, too.

A draw is a commit. The record of the deleted stream gets the number before the drawn one, so the
life that begins is again the next of its log. All creators, also those of earlier releases, find
the same number there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from pravega_spark.config.policies import ScalingPolicy, ScalingType, StreamConfiguration
from pravega_spark.engine.chunks.columns import bounded_names
from pravega_spark.engine.chunks.format import format_of
from pravega_spark.engine.kinds import log_title, put_back_advice
from pravega_spark.engine.layout.epoch_changes import first_epoch, scale
from pravega_spark.engine.layout.epochs import split
from pravega_spark.engine.log.actions import Body, Remove
from pravega_spark.engine.log.commit import Proposal, check_not_lost
from pravega_spark.engine.log.files import OFFSET_COLUMN, SEGMENT_COLUMN
from pravega_spark.engine.log.retained import encode_log_domain
from pravega_spark.engine.log.snapshot import (
    COLUMNS_PROTOCOL,
    LOG_DOMAIN,
    PROTOCOL,
    Snapshot,
    new_table,
    with_bounds,
)
from pravega_spark.engine.log.sweep import delete_unreferenced_files
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.state.scopes import Scope
from pravega_spark.engine.state.state_table import Row
from pravega_spark.engine.store.root_marker import is_copy
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.configuration import (
    ConfigurationUpdate,
    check_expected,
    check_scalable,
    updated,
)
from pravega_spark.engine.stream.layout_rows import note_layout
from pravega_spark.engine.stream.records import (
    EPOCH_PREFIX,
    SEGMENT_PREFIX,
    STREAM_DOMAIN,
    SegmentRecord,
    StreamRecord,
    StreamState,
    encode_epoch,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.table_schema import EVENT_COLUMNS, schema_domain, with_schema
from pravega_spark.engine.stream.view import StreamView, ViewCheck
from pravega_spark.errors import IllegalState, StoreReadOnly, StreamNotSealed
from pravega_spark.values.names import split_log
from pravega_spark.values.segments import KeyRange

logger = own_logger(__name__)

NOTHING: Mapping[str, str] = {}
DELETION = "DELETE STREAM"
"""The operation of the commit that ends a life."""


def create(
    stream: StreamLog,
    life: int,
    configuration: StreamConfiguration,
    domains: Mapping[str, str] = NOTHING,
) -> bool:
    """Begin a life of the stream; return False if it is not the next one of its log (any more).

    The history tells of it at once where it may tell of an earlier life, else with the first sweep.
    ``domains`` are what a log of this kind has beside those of every stream.
    """

    def decide(snapshot: Snapshot | None) -> Proposal[bool]:
        before = None if snapshot is None else StreamView(snapshot).record
        if life != (1 if before is None else before.life + 1):
            return None, False
        body = _creation(stream, snapshot, before, configuration)
        body.domains = {**body.domains, **domains}
        return body, True

    done = stream.log.commit(decide)
    if done.value and StreamView(done.snapshot).record.active_epoch > 0:
        note_layout(stream, stream.view_of(done.snapshot))
    return done.value


def _creation(
    stream: StreamLog,
    snapshot: Snapshot | None,
    before: StreamRecord | None,
    configuration: StreamConfiguration,
) -> Body:
    now_ms = stream.now_ms()
    number = 0 if before is None else before.active_epoch + 1
    first = 0 if before is None else before.next_segment_number
    count = configuration.scaling.minimum
    epoch = first_epoch(count, first, number, now_ms)
    record = StreamRecord(
        stream.name,
        stream.runtime.token() if before is None else before.stream_id,
        1 if before is None else before.life + 1,
        StreamState.ACTIVE,
        configuration,
        active_epoch=number,
        oldest_epoch=number,
        next_segment_number=first + count,
        head=dict.fromkeys(epoch.segment_ids, 0),
        created_ms=now_ms,
        configuration_version=0 if snapshot is None else snapshot.version + 1,
    )
    domains: dict[str, str | None] = {
        STREAM_DOMAIN: record.encode(),
        f"{EPOCH_PREFIX}{number}": encode_epoch(epoch),
    }
    for segment_id in epoch.segment_ids:
        domains[f"{SEGMENT_PREFIX}{segment_id}"] = SegmentRecord(segment_id).encode()
    body = Body(
        "CREATE STREAM",
        parameters={
            "stream": stream.name,
            "life": record.life,
            "segments": count,
            "configuration": configuration.to_json(),
        },
        domains=domains,
    )
    declare(body, snapshot, record)
    return body


def declare(body: Body, snapshot: Snapshot | None, record: StreamRecord) -> None:
    """Declare a life's columns to Delta, unless the table has them; the table itself at first."""
    schema, now_ms = record.configuration.schema, record.created_ms
    if snapshot is None:
        body.protocol = PROTOCOL
        body.metadata = new_table(
            EVENT_COLUMNS,
            [SEGMENT_COLUMN, OFFSET_COLUMN],
            record.stream_id,
            record.stream,
            now_ms,
            bounded=["timestamp"],
        )
    known = body.metadata or (snapshot.metadata if snapshot else {})
    # Bounds of the life's first schema: of columns that are added, earlier files have none.
    has_bounds = schema is not None and record.configuration.encryption is None
    own = bounded_names(format_of(schema).events) if has_bounds else []
    metadata = with_bounds(with_schema(known, schema), ["timestamp", *own])
    if metadata != known:
        body.metadata = metadata
    if schema is not None:
        if snapshot is None or snapshot.protocol != COLUMNS_PROTOCOL:
            body.protocol = COLUMNS_PROTOCOL
        recorded = schema_domain(record.configuration_version, now_ms, schema)
        body.domains = {**body.domains, **recorded}


def update(
    stream: StreamLog,
    change: StreamConfiguration | ConfigurationUpdate,
    *,
    expected_version: int | None = None,
    life: int | None = None,
) -> bool:
    """Replace the configuration, or some of its fields; return False if it does not change.

    The commit decides on the newest configuration, so updates of different fields lose nothing.
    With ``expected_version`` a change is made only to the configuration of this version. A new
    schema is declared to Delta in the same commit.

    A fixed number of segments other than the present one, or a minimum above it, also scales the
    stream to equal ranges in the same commit; a lower minimum merges nothing (as in Pravega). On a
    sealed stream only retention and tags can change. ``life`` is the life that the call is made
    for, by default the present one. Raises ConfigurationConflict, StreamSealed if a sealed stream's
    scaling would change, and IllegalState while the stream is being sealed.
    """

    def decide(view: StreamView) -> Proposal[tuple[bool, bool]]:
        view.check_not_sealing("updated")
        old, is_sealed = view.record.configuration, view.record.state is StreamState.SEALED
        configuration = updated(stream.name, old, change)
        if old == configuration and old.tags == configuration.tags:
            return None, (False, False)
        check_expected(view.record, configuration, expected_version)
        check_scalable(stream.name, old, configuration, is_sealed=is_sealed)
        now_ms = stream.now_ms()
        builder = CommitBuilder(view, now_ms)
        builder.record = replace(
            view.record, configuration=configuration, configuration_version=view.version + 1
        )
        segments = len(view.active.segments)
        if not is_sealed and _wants_layout(configuration.scaling, segments):
            whole = split(KeyRange(0.0, 1.0), configuration.scaling.minimum)
            number = view.record.next_segment_number
            builder.switch(scale(builder, view.active.segment_ids, whole, now_ms, number))
        body = builder.body("UPDATE STREAM", {"configuration": configuration.to_json()})
        if configuration.schema != old.schema:
            assert configuration.schema is not None  # a typed stream stays so
            body.metadata = with_schema(view.snapshot.metadata, configuration.schema)
            known = schema_domain(view.version + 1, now_ms, configuration.schema)
            body.domains = {**body.domains, **known}
        return body, (True, builder.active is not view.active)

    done = stream.commit(decide, life=stream.life_of(life))
    changed, scaled = done.value
    if scaled:
        note_layout(stream, stream.view_of(done.snapshot))
    return changed


def _wants_layout(policy: ScalingPolicy, segments: int) -> bool:
    if policy.type is ScalingType.FIXED:
        return segments != policy.minimum
    return segments < policy.minimum


EndTransactions = Callable[[StreamLog, int], object]
"""Ends all open transactions of one life of a stream."""


def _refuse_open(stream: StreamLog, life: int) -> None:
    raise IllegalState(
        f"stream {stream.name} has open transactions. Seal it by StreamManager.seal_stream, which "
        "ends them."
    )


def _no_check(view: StreamView) -> None:
    pass


def seal(
    stream: StreamLog,
    end_transactions: EndTransactions = _refuse_open,
    *,
    life: int | None = None,
    check: ViewCheck = _no_check,
) -> bool:
    """Stop all writes forever, in one commit; return False if the stream was sealed already.

    A stream with open transactions is SEALING first: no transaction begins and no event is
    written, while ``end_transactions`` commits the decided ones and aborts the others. ``life`` is
    the life that the call is made for, by default the present one. ``check`` raises for a view on
    which the caller may not seal.
    """
    life = stream.life_of(life)
    state, changed = _seal(stream, life, check)
    while state is not StreamState.SEALED:
        failpoint("seal.sealing")
        end_transactions(stream, life)
        state, again = _seal(stream, life, check)
        changed = changed or again
    return changed


def _seal(stream: StreamLog, life: int, check: ViewCheck) -> tuple[StreamState, bool]:
    """Seal as far as one commit can; return the state, and whether this call set it."""

    def decide(view: StreamView) -> Proposal[tuple[StreamState, bool]]:
        check(view)
        state = view.record.state
        if state is StreamState.SEALED or (state is StreamState.SEALING and view.transactions):
            return None, (state, False)
        now_ms = stream.now_ms()
        if view.transactions:
            record = replace(view.record, state=StreamState.SEALING, sealed_ms=now_ms)
            body = Body(
                "BEGIN SEAL STREAM",
                parameters={"stream": stream.name, "openTransactions": len(view.transactions)},
                domains={STREAM_DOMAIN: record.encode()},
            )
            return body, (StreamState.SEALING, True)
        record = replace(view.record, state=StreamState.SEALED, sealed_ms=now_ms)
        domains: dict[str, str | None] = {STREAM_DOMAIN: record.encode()}
        for segment_id in view.active.segment_ids:
            sealed = replace(view.segment(segment_id), sealed_epoch=view.active.number)
            domains[f"{SEGMENT_PREFIX}{segment_id}"] = sealed.encode()
        body = Body("SEAL STREAM", parameters={"stream": stream.name}, domains=domains)
        return body, (StreamState.SEALED, True)

    return stream.commit(decide, life=life).value


def delete(stream: StreamLog, *, life: int | None = None) -> bool:
    """End the life of a sealed stream and delete its data; return False if it has ended already.

    ``life`` is the life that the call is made for, by default the present one. Without the right to
    delete files the life ends all the same, and a sweep deletes them later.
    """
    known = stream.current_view()
    if known is None:
        return False
    doomed = known.life if life is None else life

    def decide(snapshot: Snapshot | None) -> Proposal[bool]:
        assert snapshot is not None
        view = StreamView(snapshot)
        if view.life != doomed or view.record.state is StreamState.DELETED:
            return None, False
        if view.record.state is not StreamState.SEALED:
            raise StreamNotSealed(
                f"stream {stream.name} is {view.record.state.value}: only a sealed stream can be "
                "deleted; seal it first.",
                stream=stream.name,
            )
        return _deletion(stream, view), True

    deleted = stream.log.commit(decide).value
    failpoint("delete.committed")
    try:
        delete_unreferenced_files(stream.log)
    except StoreReadOnly as error:  # the right to commit is another one
        logger.warning(
            "stream %s is deleted; its files stay for a sweep by someone who may delete them: %s",
            stream.name,
            error,
            extra=log_fields("delete stream", stream.name),
        )
    return deleted


def _deletion(stream: StreamLog, view: StreamView) -> Body:
    now_ms = stream.now_ms()
    version = view.version + 1
    record = replace(view.record, state=StreamState.DELETED, head={})
    domains: dict[str, str | None] = dict.fromkeys(view.snapshot.domains)
    domains[STREAM_DOMAIN] = record.encode()
    domains[LOG_DOMAIN] = encode_log_domain(version, version, version, version)
    with stream.log.files() as files:
        removes = [Remove.of(add, now_ms) for add in files.all()]
    return Body(
        DELETION,
        parameters={"stream": stream.name, "life": view.life},
        domains=domains,
        removes=removes,
    )


DRAW = "DRAW LIFE"
"""The operation of the commit that draws the number of the next life."""
_RANDOM_BITS = 21
_CLOCK_BITS = 32
"""Of the seconds since 1970. With the random bits a number stays below 2^53, as JavaScript asks."""

_PAUSES_S = (0.05, 0.1, 0.2, 0.4)
"""Before another one's creation is ended: one that goes on ends within them."""

Claim = Callable[[int], tuple[bool, Row]]
"""Writes the row of a life; returns whether it did, and the row that is there."""


def draw_life(runtime: Runtime, above: int) -> int:
    """Return the number of a new life, higher than ``above``, that no copy of the root draws."""
    seconds = min(max(runtime.now_ms() // 1_000, 0), (1 << _CLOCK_BITS) - 1)
    lowest = max(above + 1, seconds << _RANDOM_BITS)
    return lowest + int(runtime.random() * (1 << _RANDOM_BITS))


def claim_life(stream: StreamLog, index: Scope, claim: Claim) -> tuple[bool, Row] | None:
    """Write the row of a stream's next life, and return what the claim did; None if it exists.

    A row of somebody else whose life has not begun is moved to a new life, as it is. Raises what
    ``claim`` raises, and CorruptLog if the stream has lost its log.
    """
    listed = 0
    while True:
        view = stream.current_view()
        if view is not None and view.record.state is not StreamState.DELETED:
            return None
        row = None
        if view is not None and not view.record.has_lived:  # somebody drew, and did not go on
            row = index.log_row(split_log(stream.name)[1])
        if row is None or view is None or row["life"] > view.life:
            life = _next_life(stream, view, listed)
            if life is None:
                return None
            claimed, row = claim(life)
            if row["life"] == life and (claimed or stream.newest() is not None):
                failpoint("create.row")
                return claimed, row
        renewed = take_over(stream, index, row)
        if renewed is not None:
            return False, renewed
        listed = int(row["life"])  # it has begun since


def _next_life(stream: StreamLog, view: StreamView | None, listed: int) -> int | None:
    """Return the life that a creation begins, above one that is listed; None if it exists."""
    if view is None:
        if not is_copy(stream.store):
            return 1
        check_has_log(stream)
    found = _drawn(stream, listed)
    return None if found is None else found.life


def take_over(stream: StreamLog, index: Scope, row: Row) -> Row | None:
    """Move the row of a creation that somebody else began to a new life, and return it.

    None if the stream has begun, or its life has ended. Its creator gets some time first. Raises
    CorruptLog if the stream has lost its log, and NoSuchScope.
    """
    has_log(stream)
    found = _drawn(stream, row["life"], first=True)
    if found is None:
        return None
    if found.is_ours:  # of several that wait, one says so
        logger.warning(
            "stream %s is in the index of its scope and had no log for %g s: its creation was "
            "killed or takes longer, or its folder was lost. It begins in life %d, and is empty.",
            stream.name,
            sum(_PAUSES_S),
            found.life,
            extra=log_fields("create stream", stream.name, life=found.life),
        )
    return index.renewed(row, found.life)


def has_log(stream: StreamLog) -> bool:
    """Return whether a stream that is listed has a log; its creator gets some time to begin it.

    Raises CorruptLog if the stream has lost its log, and not its other objects.
    """
    for pause in _PAUSES_S:
        if stream.newest() is not None:
            return True
        stream.runtime.sleep(pause)
    if stream.newest() is not None:
        return True
    check_has_log(stream)
    return False


def forestall(stream: StreamLog, life: int) -> bool:
    """Let a life that is listed never begin; return False if the log has had lives.

    Raises CorruptLog if the stream has lost its log.
    """
    if stream.newest() is None:
        check_has_log(stream)
    return _drawn(stream, life + 1, first=True) is not None


class _Drawn(NamedTuple):
    """A life that was drawn and has not begun."""

    life: int
    is_ours: bool
    """Whether this call has drawn it."""


def _drawn(stream: StreamLog, listed: int, *, first: bool = False) -> _Drawn | None:
    """Draw a life above ``listed``, unless one was drawn that has not begun; return it.

    None if the stream exists, or, with ``first``, if it ever has.
    """

    def decide(snapshot: Snapshot | None) -> Proposal[_Drawn | None]:
        before = None if snapshot is None else StreamView(snapshot).record
        if before is not None:
            if before.state is not StreamState.DELETED or (first and before.has_lived):
                return None, None
            if before.is_drawn and before.life + 1 >= listed:
                return None, _Drawn(before.life + 1, False)
        life = draw_life(stream.runtime, max(listed, before.life if before else 0))
        return _draw(stream, snapshot, before, life), _Drawn(life, True)

    found = stream.log.commit(decide).value
    failpoint("create.drawn")
    return found


def _draw(
    stream: StreamLog, snapshot: Snapshot | None, before: StreamRecord | None, life: int
) -> Body:
    known = before or StreamRecord(
        stream.name,
        stream.runtime.token(),
        0,
        StreamState.DELETED,
        StreamConfiguration(),
        active_epoch=-1,
        oldest_epoch=-1,
        next_segment_number=0,
        head={},
        created_ms=stream.now_ms(),
    )
    record = replace(known, life=life - 1, sealed_ms=None)
    parameters = {"stream": stream.name, "life": life}
    body = Body(DRAW, parameters, domains={STREAM_DOMAIN: record.encode()})
    if snapshot is None:
        declare(body, None, record)
    return body


def has_begun(stream: StreamLog, life: int) -> bool:
    """Return whether the stream exists by the creation that claimed a life.

    Somebody else may have ended it in another life, which is then the first one of the log.
    """
    view = stream.current_view()
    if view is None or view.record.state is StreamState.DELETED:
        return False
    return view.life == life or view.record.active_epoch == 0


def check_has_log(stream: StreamLog) -> None:
    """Raise CorruptLog if a stream without a log has other objects.

    For a creation that is found half made: a creation puts nothing before its first commit.
    """
    folder = f"{stream.root_url.rstrip('/')}/{stream.name}"
    title = log_title(stream.name)
    check_not_lost(
        stream.log,
        stream.name,
        title,
        f"{put_back_advice(stream.name, folder)}; or delete the rest of that folder: "
        f"{title} is then created again, empty.",
        stream=stream.name,
    )
