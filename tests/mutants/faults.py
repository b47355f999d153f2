"""Small faults, each named by the promise that it breaks, with the tests that must catch it.

A fault is one text of one file that becomes another. It belongs to its promise, not to its place:
where the code is rebuilt, place it again at what now keeps the promise, and name the tests that now
cover it. ``make mutants`` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "pravega_spark"


@dataclass(frozen=True)
class Fault:
    """A fault, and what it is caught by."""

    promise: str
    """What the code does without it."""
    file: str
    """The file in the package."""
    text: str
    """What occurs exactly once in the file."""
    becomes: str
    tests: tuple[str, ...] = ()
    """Files of tests, or tests, in ``tests/``: few, and those that take seconds."""
    equal: str = ""
    """Why nobody can tell that the fault is there; empty for one that tests catch."""

    @property
    def path(self) -> Path:
        """The file in the tree."""
        return Path(PACKAGE) / self.file

    def read(self, root: Path) -> str:
        """Return the file as it is; raise LookupError unless the text is in it exactly once."""
        path = root / self.path
        source = path.read_text() if path.is_file() else ""
        times = source.count(self.text)
        if times != 1:
            files = sorted((root / PACKAGE).rglob("*.py"))
            here = [str(f.relative_to(root)) for f in files if self.text in f.read_text()]
            raise LookupError(
                f"the fault of {self.promise!r} has no place: its text is {times} times in "
                f"{self.path}, and it is in {', '.join(here) or 'no file'}. Place it again, at "
                f"what keeps this promise now:\n{self.text}"
            )
        return source

    def placed_in(self, source: str) -> str:
        """Return a source with the fault."""
        return source.replace(self.text, self.becomes)


_NEW_TOKEN = """\
            key = self.reader.key(version)
            while True:
                try:
                    won = self.store.put_if_absent(key, data) is PutOutcome.CREATED
                    if not won:
                        self.winner = self.store.get(key)
                        found = parse_commit(version, self.winner, self.reader.where, light=True)
                        won = found.token == token
                    break
                except FileNotFoundError:
                    token = self.runtime.token()
                    data = body.encode(token, timestamp_ms, clock_ms)
                except StoreUnavailable as error:
                    raise self._unknown(version) from error
"""
ENGINE = (
    Fault(
        "a file that is acknowledged was fsynced before it got its name",
        "engine/store/local_files.py",
        "partial(file.finish, durable=True)",
        "partial(file.finish, durable=False)",
        ("unit/engine/store/test_local_files.py", "unit/engine/store/test_unsynced_files.py"),
    ),
    Fault(
        "the folder of an acknowledged file was fsynced after the file got its name",
        "engine/store/local.py",
        "        if durable:\n            try:\n                self._durable.sync(folder)",
        "        if durable:\n            try:\n                pass",
        ("contract/test_local_disk.py",),
    ),
    Fault(
        "the chunks that a commit names are durable before the commit gets its name",
        "engine/store/local.py",
        "syncs = self._unsynced.syncs(waiting)",
        "syncs = self._unsynced.syncs([])",
        ("unit/engine/store/test_unsynced_files.py",),
    ),
    Fault(
        "a lost answer does not lead to a second commit",
        "engine/log/commit.py",
        "light=True).token == token",
        "light=True).token != token",
        ("unit/engine/log/test_commit_log.py",),
    ),
    Fault(
        "a commit without an answer is looked for before anything is sent at the next version",
        "engine/log/commit.py",
        "            if not is_ours(store.get(key)):\n",
        "            if not (is_ours(store.get(key)) and False):\n",
        ("unit/engine/log/test_commit_log.py",),
    ),
    Fault(
        "a commit without an answer is looked for at its own version, not at the newest one",
        "engine/log/commit.py",
        "            self.winner = found\n            return parse_commit(",
        "            self.winner = found\n            if self.reader.has(version + 1):\n"
        "                return False\n            return parse_commit(",
        ("unit/engine/log/test_commit_log.py",),
    ),
    Fault(
        "each attempt at a version has the same bytes and the same token",
        "engine/log/commit.py",
        "            won = self._put(version, token, data, body.added_paths)\n",
        _NEW_TOKEN,
        ("unit/engine/log/test_commit_log.py",),
    ),
    Fault(
        "a commit whose answer was lost is durable before it is acknowledged",
        "engine/log/commit.py",
        "            store.make_durable(folder)",
        "            failpoint(folder)",
        ("unit/engine/log/test_create_once.py", "unit/engine/log/test_commit_log.py"),
    ),
    Fault(
        "a batch that another process committed is durable before its owner acknowledges it",
        "engine/writing/group_commit.py",
        "        self._stream.log.make_durable()\n",
        "",
        ("unit/engine/writing/test_append_group.py",),
    ),
    Fault(
        "offsets of a segment are 0..n-1, also over the chunks of one commit",
        "engine/stream/commit_builder.py",
        "grown.end += chunk.rows",
        "grown.end = grown.start + chunk.rows",
        ("unit/engine/stream/test_commit_builder.py",),
    ),
    Fault(
        "a writer that a newer session of its id has fenced appends nothing",
        "engine/writing/identity.py",
        "elif known.session != self.session:",
        "elif known.session < self.session:",
        ("unit/engine/writing/test_append_draft.py", "unit/engine/writing/test_append.py"),
    ),
    Fault(
        "a batch waits for the one before it: the events of a writer have no gap",
        "engine/writing/identity.py",
        "if self.previous != known.last:",
        "if self.previous < known.last:",
        ("unit/engine/writing/test_append_draft.py", "unit/engine/writing/test_append.py"),
    ),
    Fault(
        "no event enters a segment after its seal",
        "engine/writing/append.py",
        "if not view.has_segment(chunk.segment_id) or view.segment(chunk.segment_id).is_sealed:",
        "if not view.has_segment(chunk.segment_id):",
        ("unit/engine/writing/test_append.py",),
    ),
    Fault(
        "no file that was staged below the horizon is committed",
        "engine/writing/append.py",
        "if staging_version < view.snapshot.horizon:",
        "if staging_version + 1 < view.snapshot.horizon:",
        ("unit/engine/log/test_horizon.py",),
    ),
    Fault(
        "no file is deleted that a retained version names",
        "engine/log/sweep_record.py",
        "            if version > mark\n",
        "            if version > mark + 1\n",
        ("unit/engine/log/test_unreferenced_files.py",),
    ),
    Fault(
        "while a version is pinned for a backup no mark moves",
        "engine/log/retained.py",
        "if not is_pinned(snapshot):",
        "if snapshot.version:",
        ("unit/engine/log/test_horizon.py", "unit/engine/log/test_marks.py"),
    ),
    Fault(
        "events of one key are read in order: a merged segment comes after all that it replaced",
        "engine/layout/frontier.py",
        "awaited[key] = sum(self.offset_in(other) != END for other in before)",
        "awaited[key] = sum(self.offset_in(other) != END for other in before[1:1])",
        ("unit/engine/layout/test_read_plan.py",),
    ),
    Fault(
        "a truncation removes no chunk in which an event is still readable",
        "engine/stream/truncation.py",
        "found[-1][0] + found[-1][1] > rng.end:",
        "found[-1][0] + found[-1][1] > rng.end + 1:",
        ("unit/engine/stream/test_truncation.py",),
    ),
    Fault(
        "a conditional append lands at the expected position or nowhere",
        "engine/writing/append.py",
        "if expected.offset not in (record.next_offset, ANY_OFFSET):",
        "if expected.offset > record.next_offset:",
        ("unit/test_conditional_appends.py",),
    ),
    Fault(
        "a conditional append beyond the tail lands nowhere",
        "engine/writing/append.py",
        "if expected.offset not in (record.next_offset, ANY_OFFSET):",
        "if ANY_OFFSET < expected.offset < record.next_offset:",
        ("unit/test_conditional_appends.py",),
    ),
    Fault(
        "a refused conditional append tells a position of that moment",
        "engine/writing/committer.py",
        "raise other_segment(self._stream.view(life=self.life), expected, key)",
        "raise other_segment(self._stream.view(refresh=False), expected, key)",
        ("unit/test_conditional_appends.py",),
    ),
)

TRANSACTIONS = (
    Fault(
        "a prepared transaction accepts no more events",
        "txn/lifecycle.py",
        "    if last is not ManifestKind.WRITE:\n",
        "    if last.is_closing:\n",
        ("unit/txn/test_transaction.py",),
    ),
    Fault(
        "a transaction that was decided is never decided otherwise",
        "txn/lifecycle.py",
        "        if last.is_closing:\n",
        "        if last.is_closing and left:\n",
        ("unit/txn/test_transaction.py",),
    ),
    Fault(
        "transactions are committed in the order of their decisions",
        "txn/commit.py",
        "return known.last_order() + 1",
        "return known.last_order()",
        ("unit/txn/test_committer.py",),
    ),
    Fault(
        "the late events of a transaction leave the layout of the stream as it is",
        "txn/commit.py",
        "if interrupted is not None and self._builder.active.reference != interrupted.reference:",
        "if interrupted is not None and self._builder.active.number < interrupted.number:",
        ("unit/txn/test_rolling.py",),
    ),
    Fault(
        "a transaction whose lease is extended does not expire",
        "txn/leases.py",
        "elif idle_ms > opened.lease_ms:",
        "elif idle_ms < opened.lease_ms:",
        ("unit/txn/test_transaction_leases.py",),
    ),
    Fault(
        "streams in common hold joint transactions in one order",
        "txn/settlement.py",
        "due = [r for r in decisions.decided() if (r.order or 0) < record.order] + [record]",
        "due = [record]",
        ("unit/txn/test_joint_transaction.py",),
    ),
    Fault(
        "a joint transaction is decided only after each of its streams has prepared its part",
        "txn/joint.py",
        "prepare = [part.prepare for part in self._parts.values()]",
        "prepare = [part.flush for part in self._parts.values()]",
        ("unit/txn/test_joint_transaction.py",),
    ),
    Fault(
        "a sweep deletes nothing of a transaction that is open",
        "txn/sweeper.py",
        "if is_transaction(n) and n not in view.transactions]",
        "if is_transaction(n)]",
        ("unit/txn/test_sweeper.py", "unit/txn/test_transaction_sweeps.py"),
    ),
    Fault(
        "a decision that was told becomes visible although nobody waits for it",
        "txn/owed.py",
        "        self._schedule(DECIDED_SECONDS)\n\n    def",
        "\n    def",
        ("unit/txn/test_owed.py",),
    ),
    Fault(
        "what a killed process has decided is found by a process that appends",
        "txn/open_look.py",
        "known[name].is_decided = kind.is_closing",
        "known[name].is_decided = False",
        ("unit/txn/test_open_look.py",),
    ),
    Fault(
        "a process looks at open transactions once in a lease, not each time",
        "txn/open_look.py",
        "        for one in self._known.values():\n            one.since = now\n",
        "",
        ("unit/txn/test_open_look.py",),
    ),
    Fault(
        "writers record the watermark about every ten seconds, not with each note",
        "engine/stream/watermarks.py",
        "        if now < self._due:\n            return False\n        names",
        "        names",
        ("unit/event_time/test_recorded_by_writers.py",),
    ),
)

READER_GROUPS = (
    Fault(
        "one reader of a group reads a segment",
        "reader_groups/transitions.py",
        "unassigned={k: o for k, o in state.unassigned.items() if k not in acquired},",
        "unassigned=state.unassigned,",
        ("unit/reader_groups/test_reader_step.py",),
    ),
    Fault(
        "an expired reader changes nothing in its group",
        "reader_groups/state.py",
        "if entry is None or entry.number != number:",
        "if entry is None:",
        ("unit/reader_groups/test_late_answers.py",),
    ),
    Fault(
        "no reader expires over an outage of the storage",
        "reader_groups/leases.py",
        "return modified_ms, max(since, watch.outage_ended(seconds))",
        "return modified_ms, since",
        ("unit/reader_groups/test_reader_outages.py",),
    ),
    Fault(
        "a checkpoint of a group covers all keys",
        "reader_groups/transitions.py",
        "{**state.unassigned, **dict.fromkeys(state.future, NOT_REACHED), **state.completed}",
        "{**dict.fromkeys(state.future, NOT_REACHED), **state.completed}",
        ("unit/reader_groups/test_reader_group.py",),
    ),
    Fault(
        "a reader that has not answered a checkpoint acquires no segment",
        "reader_groups/transitions.py",
        "if state.phase is not Phase.ACTIVE or state.pending_checkpoint(reader) is not None:",
        "if state.phase is not Phase.ACTIVE:",
        ("unit/reader_groups/test_reader_step.py",),
    ),
    Fault(
        "where checkpoints acknowledge, nobody reads on behind what is not acknowledged",
        "reader_groups/step.py",
        "if offset > state.assigned[k].offset)",
        "if offset < state.assigned[k].offset)",
        ("unit/reader_groups/test_acknowledgement.py",),
    ),
    Fault(
        "events of one key reach readers in order: a successor waits for its predecessors",
        "reader_groups/segments.py",
        "future[key] = frozenset(missing)",
        "waiting[key] = 0",
        ("unit/reader_groups/test_reader_step.py",),
    ),
    Fault(
        "a segment that a reader has is left by that reader alone",
        "reader_groups/segments.py",
        "return not has_reader and (limit is None or limit.offset_in(segment) == END)",
        "return limit is None or limit.offset_in(segment) == END",
        ("unit/reader_groups/test_reader_step.py",),
    ),
    Fault(
        "a group that ends at a cut reads nothing behind it",
        "reader_groups/segments.py",
        "return None if offset == END else max(offset, 0)",
        "return None",
        ("unit/reader_groups/test_group_update.py",),
    ),
    Fault(
        "a segment that its reader gives away is in the checkpoints that wait for the reader",
        "reader_groups/transitions.py",
        "return replace(checkpoint, positions={**checkpoint.positions, **offsets})",
        "return replace(checkpoint, positions={**checkpoint.positions})",
        ("unit/reader_groups/test_reader_step.py",),
    ),
    Fault(
        "a segment that its reader gives away goes on where that reader is",
        "reader_groups/transitions.py",
        "    offsets = owned_offsets(state, reader, held)\n    return _unassign(",
        "    offsets = {k: state.assigned[k].offset for k in held if k in state.assigned}\n"
        "    return _unassign(",
        ("unit/reader_groups/test_reader_step.py",),
    ),
    Fault(
        "readers go on with the other streams when one was deleted",
        "reader_groups/step.py",
        "                state = segments.drop_stream(state, stream)\n",
        "",
        ("unit/reader_groups/test_finds.py",),
    ),
    Fault(
        "where checkpoints acknowledge, nothing else does",
        "reader_groups/transitions.py",
        "if not state.configuration.acknowledges_on_reading:",
        "if state.configuration.acknowledges_in_transactions:",
        ("unit/reader_groups/test_acknowledgement.py",),
    ),
    Fault(
        "a reader answers with where it was at the marker",
        "reader_groups/step.py",
        "owned_offsets(state, view.reader, answering.held)",
        "owned_offsets(state, view.reader, view.held)",
        ("unit/reader_groups/test_acknowledgement.py",),
    ),
    Fault(
        "a reader that waits for an acknowledgement asks for a checkpoint",
        "reader_groups/step.py",
        "return bool(waiting and (waiting & view.ended",
        "return bool(not waiting and (waiting & view.ended",
        ("unit/reader_groups/test_acknowledgement.py",),
    ),
    Fault(
        "an answer to a checkpoint acknowledges what the reader was handed",
        "reader_groups/transitions.py",
        "    if not found.silent:\n        moved",
        "    if found.silent:\n        moved",
        ("unit/reader_groups/test_acknowledgement.py",),
    ),
    Fault(
        "after a change a group goes on where its readers were",
        "reader_groups/transitions.py",
        "owned = {key: owned.offset for key, owned in state.assigned.items()}",
        "owned = dict.fromkeys(state.assigned, 0)",
        ("unit/reader_groups/test_group_update.py",),
    ),
    Fault(
        "after a change nothing is left out that a reader had",
        "reader_groups/transitions.py",
        "unassigned = {**state.unassigned, **owned}",
        "unassigned = {**state.unassigned}",
        ("unit/reader_groups/test_group_update.py",),
    ),
    Fault(
        "what a transaction read is read again after its abort",
        "reader_groups/settlement.py",
        "if not is_committed or positions.transaction != transaction:",
        "if positions.transaction != transaction:",
        ("unit/reader_groups/test_reader_transaction.py",),
    ),
    Fault(
        "the last reader of a group publishes what it has acknowledged",
        "reader_groups/membership.py",
        "        if has_left:\n            self._subscriptions",
        "        if not has_left:\n            self._subscriptions",
        ("unit/reader_groups/test_release.py",),
    ),
    Fault(
        "no cut beyond what was acknowledged is published",
        "reader_groups/transitions.py",
        "loud = [c for c in complete if not c.silent]",
        "loud = complete",
        ("unit/reader_groups/test_release.py",),
    ),
    Fault(
        "a judge that runs once expires nobody whom no judge found silent a lease before",
        "reader_groups/leases.py",
        "since = min(since, now - known_for, watch.watched_since(seconds))",
        "since = min(since, now - seconds, watch.watched_since(seconds))",
        ("unit/reader_groups/test_release.py",),
    ),
    Fault(
        "a reader goes back to a stored position only over what it alone has had since",
        "reader_groups/going_back.py",
        "if run is None or wanted < run:",
        "if run is None:",
        ("unit/reader_groups/test_leaving_positions.py",),
    ),
    Fault(
        "what a reader acquired after a position is read again from there",
        "reader_groups/going_back.py",
        "wanted = {**named, **self._acquired_since(named)}",
        "wanted = {**named}",
        ("unit/reader_groups/test_leaving_positions.py",),
    ),
    Fault(
        "an application that hangs for longer than max_poll_interval loses its segments",
        "reader_groups/lease_extender.py",
        "is_busy = membership.idle_seconds <= self._seconds",
        "is_busy = True",
        ("unit/reader_groups/test_keep_alive.py",),
    ),
    Fault(
        "the thread that extends leases costs readers that make calls nothing",
        "reader_groups/lease_extender.py",
        "            if seconds > 0:\n",
        "            if seconds > 1e9:\n",
        ("unit/reader_groups/test_keep_alive.py",),
    ),
    Fault(
        "an automatic checkpoint ends no loop of a reader that asked for no markers",
        "reader_groups/step.py",
        "and not view.shows_automatic\n",
        "and view.shows_automatic\n",
        ("unit/reader_groups/test_markers.py",),
    ),
    Fault(
        "a checkpoint that somebody initiates is shown to every reader",
        "reader_groups/step.py",
        "(pending.automatic and hides_automatic)",
        "hides_automatic",
        ("unit/reader_groups/test_markers.py",),
    ),
    Fault(
        "a text that is not a whole checkpoint is refused",
        "reader_groups/checkpoint_future.py",
        "if not cuts or len(found) < len(cuts):",
        "if len(found) < len(cuts):",
        ("unit/reader_groups/test_group_checkpoint.py",),
    ),
)

RETENTION = (
    Fault(
        "what one subscriber has not consumed stays, however far the others are",
        "retention/decision.py",
        "replace(min(pair, key=lambda cell: cell.age)",
        "replace(max(pair, key=lambda cell: cell.age)",
        ("unit/retention/test_cut_bounds.py",),
    ),
    Fault(
        "no less than the minimum of the policy stays",
        "retention/decision.py",
        "lambda entry: inputs.limited_amount(entry) >= minimum)",
        "lambda entry: inputs.limited_amount(entry) >= minimum // 2)",
        ("unit/retention/test_truncation_decision.py",),
    ),
    Fault(
        "a group that subscribes between a decision and its commit keeps what it needs",
        "retention/run.py",
        "        and all(_holds_no_more(before.get(now.name), now) for now in needing)\n",
        "",
        ("unit/retention/test_retention_run.py",),
    ),
    Fault(
        "nothing is deleted early because the clock of one host is ahead",
        "engine/log/retained.py",
        "return self.now.earliest_ms",
        "return self.now.latest_ms",
        ("unit/retention/test_wrong_clocks.py",),
    ),
    Fault(
        "a stream that an automatic group holds is looked at although nobody writes to it",
        "maintenance/work.py",
        "    if holding or errors:  # their readers",
        "    if errors:  # their readers",
        ("unit/reader_groups/test_release.py",),
    ),
)

SCALING = (
    Fault(
        "a scale leaves no keys without a segment",
        "engine/layout/epoch_changes.py",
        "    if old != new:\n",
        "    if not new:\n",
        ("unit/scaling/test_scale_commit.py",),
    ),
    Fault(
        "a scale that is repeated finds its own epoch, and makes no second one",
        "scaling/commit.py",
        "if existing is not None:",
        "if existing is not None and automatic:",
        ("unit/scaling/test_scale_commit.py",),
    ),
    Fault(
        "automatic scaling leaves the minimum of segments",
        "scaling/decision.py",
        "spare = len(active) - rates.policy.minimum",
        "spare = len(active) - 1",
        ("unit/scaling/test_scale_decision.py",),
    ),
    Fault(
        "a stream whose target was changed is scaled by the new one alone",
        "scaling/rates.py",
        "segment.forget_events(self.time_ms - self.pace.mute_ms)",
        "segment.mark_cold(self.time_ms, self.time_ms)",
        ("unit/scaling/test_auto_scaling.py",),
    ),
)

COMPACTION = (
    Fault(
        "an entry with a time to live does not come back by a merge of its log",
        "engine/kinds.py",
        'unmerged_with="ttl",',
        'unmerged_with="",',
        ("unit/engine/test_kinds.py",),
    ),
    Fault(
        "the changes of a table are never dated before earlier ones",
        "engine/kinds.py",
        "never_goes_back=True,",
        "never_goes_back=False,",
        ("unit/engine/test_kinds.py",),
    ),
    Fault(
        "a truncation keeps the segments that the fold of a table names",
        "engine/stream/truncation.py",
        "for keeper in map(view.subscriber, KEEPERS - set(passed)):",
        "for keeper in map(view.subscriber, KEEPERS & set(passed)):",
        ("unit/key_value/test_overtaken_folds.py",),
    ),
    Fault(
        "a merge that was overtaken by another merge or a truncation is not committed",
        "compaction/merge.py",
        "if [add.path for add in adds] != list(found.inputs):",
        "if not adds:",
        ("unit/compaction/test_compaction_run.py",),
    ),
    Fault(
        "no merged chunk that a sweep may delete is committed",
        "compaction/merge.py",
        "if found.staging_version < horizon:",
        "if found.staging_version + 1 < horizon:",
        ("unit/compaction/test_compaction_run.py",),
    ),
    Fault(
        "a merge changes no row for any Delta reader",
        "compaction/merge.py",
        "Remove.of(add, now_ms, data_change=is_head)",
        "Remove.of(add, now_ms, data_change=True)",
        ("unit/compaction/test_compaction_run.py",),
    ),
    Fault(
        "only neighbours are merged",
        "compaction/plan.py",
        "follows = at > 0 and chunks[at - 1].end == chunk.base_offset",
        "follows = at > 0",
        ("unit/compaction/test_merge_plan.py",),
    ),
)

KEY_VALUE = (
    Fault(
        "an iteration sees the newest change of each key",
        "key_value/changes.py",
        "newest = ((key, 0, self._changes[key]) for key in changed)",
        "newest = ((key, 2, self._changes[key]) for key in changed)",
        ("unit/key_value/test_fold.py",),
    ),
    Fault(
        "an entry that has expired does not come back",
        "key_value/changes.py",
        "return expired_us is None or change.timestamp_us > expired_us",
        "return expired_us is None or change.timestamp_us < expired_us",
        ("unit/key_value/test_expiry.py",),
    ),
    Fault(
        "a fold brings no removed key back",
        "key_value/rows.py",
        'return changes.filter(changes.column("value").is_valid())',
        "return changes",
        ("unit/key_value/test_folded_table.py",),
    ),
    Fault(
        "the log is truncated only up to what a fold has committed",
        "key_value/fold.py",
        "        if not done.is_committed:\n",
        "        if done.is_committed and not events:\n",
        ("unit/key_value/test_overtaken_folds.py",),
    ),
    Fault(
        "an update on a condition is done only on the version that it names",
        "key_value/updates.py",
        "if step.version != KeyVersion.NO_VERSION:",
        "if step.version == KeyVersion.NOT_EXISTS:",
        ("unit/key_value/test_conditional_updates.py",),
    ),
    Fault(
        "no entry is lost between a fold and the changes after it",
        "key_value/changes.py",
        "return change.offset < offset",
        "return change.offset <= offset",
        ("unit/key_value/test_folded_part.py",),
    ),
)

SCHEMAS = (
    Fault(
        "no column of a schema changes its type",
        "schemas/changes.py",
        "    if old == new:\n",
        "    if old == new or types.is_integer(old):\n",
        ("unit/test_stream_schema.py",),
    ),
    Fault(
        "a column that older events lack is nullable",
        "schemas/changes.py",
        "        if not field.nullable:\n",
        "        if not field.name:\n",
        ("unit/test_stream_schema.py",),
    ),
    Fault(
        "no row loses a column that the schema does not have",
        "schemas/fit.py",
        "checks = self._checks\n        if not given.keys() <= checks.keys():",
        "checks = self._checks\n        if not given.keys() & checks.keys():",
        ("unit/test_typed_streams.py",),
    ),
    Fault(
        "a time without a zone is taken for none",
        "schemas/column_casts.py",
        "types.is_timestamp(found) and found.tz is not None)",
        "types.is_timestamp(found))",
        ("unit/schemas/test_column_casts.py",),
    ),
)

SPARK = (
    Fault(
        "a micro-batch that comes again is in the stream once",
        "engine/writing/identity.py",
        "if self.number <= known.last:",
        "if self.number < known.last:",
        ("unit/spark/write/test_sink.py",),
    ),
    Fault(
        "a batch that was stopped between two streams is written to those that lack it",
        "spark/write/numbered.py",
        "if any(known is None or known.last < number for known in found):",
        "if all(known is None or known.last < number for known in found):",
        ("unit/spark/write/test_split_batches.py",),
    ),
    Fault(
        "a numbered write is in a transaction once",
        "txn/lifecycle.py",
        "write.number <= last.number",
        "write.number < last.number",
        ("unit/spark/write/test_transaction_write.py",),
    ),
    Fault(
        "a query passes no truncated event without an error",
        "spark/read/offsets.py",
        "if lost and self._settings.fail_on_data_loss:",
        "if lost and not self._settings.fail_on_data_loss:",
        ("unit/spark/read/test_offset_planner.py",),
    ),
    Fault(
        "a query's group releases only what a finished batch has written",
        "spark/read/micro_batch.py",
        "                present(begin), last=",
        "                present(end), last=",
        ("unit/spark/read/test_micro_batch_reader.py",),
    ),
    Fault(
        "a micro-batch over a scale has the events of a key in order",
        "spark/read/partitions.py",
        "if groups and key_range.low < groups[-1][2]:",
        "if groups and key_range.low < groups[-1][1]:",
        ("unit/spark/read/test_many_scales.py",),
    ),
)

MAINTENANCE = (
    Fault(
        "a root that had a scope is not maintained because somebody opens it",
        "manager.py",
        "if not settings.exists() and not some_scopes(self._root.store):",
        "if not settings.exists():",
        ("unit/maintenance/test_new_roots.py",),
    ),
    Fault(
        "no policy takes effect in a restored root before somebody says so",
        "backup/root_restore.py",
        'SettingChanges({"maintain": OFF})',
        "SettingChanges({})",
        ("unit/maintenance/test_new_roots.py",),
    ),
    Fault(
        "applications compact only where somebody chose that",
        "engine/stream/overdue_maintenance.py",
        "if kind is not MaintenanceKind.COMPACTION",
        "if kind is not None",
        ("unit/maintenance/test_new_roots.py",),
    ),
    Fault(
        "a process without a right holds no claim on the work",
        "maintenance/shares.py",
        "            else:\n                self._record.release(work, {} if",
        "            elif not is_refused:\n                self._record.release(work, {} if",
        ("unit/maintenance/test_new_roots.py",),
    ),
    Fault(
        "a stream's own setting keeps applications away from it",
        "maintenance/shares.py",
        '.get("maintain") == OFF:',
        '.get("maintain") == AUTO:',
        ("unit/maintenance/test_new_roots.py",),
    ),
)

HISTORY = (
    Fault(
        "a time below the head has the segments that were open then, not later ones",
        "engine/stream/epoch_history.py",
        "        oldest = epoch\n        if oldest.created_ms <= wanted_ms:\n            return",
        "        oldest = epoch\n        if oldest.created_ms >= wanted_ms:\n            return",
        ("unit/engine/stream/test_epoch_history.py",),
    ),
    Fault(
        "what a segment below the head was is told by a row that agrees with its epochs",
        "engine/stream/segment_history.py",
        "if (found.next_offset, found.sealed_epoch) == wanted:",
        "if found:",
        ("unit/engine/stream/test_epoch_history.py",),
    ),
    Fault(
        "a table has the epochs that folds have left behind",
        "key_value/description.py",
        "epochs=epochs_between(stream, view),",
        "epochs=epochs_between(stream, view, view.oldest_epoch),",
        (
            "unit/key_value/test_key_value_table.py::test_info_has_the_state_and_the_segments_of_all_epochs",
        ),
    ),
    Fault(
        "rows of epochs that the log of a copy does not have are void",
        "engine/stream/layout_rows.py",
        'wanted[name] = ["void", life]',
        "pass",
        ("unit/engine/stream/test_layout_rows.py",),
    ),
    Fault(
        "rows of another course of the log are not taken for those of this one",
        "engine/stream/layout_rows.py",
        "view.epoch(self.epoch).created_ms == self.created_ms",
        "True",
        ("unit/engine/stream/test_layout_rows.py",),
    ),
)

RECENT_CHUNKS = (
    Fault(
        "a chunk in memory is the one that the log records, not another of its name",
        "engine/chunks/recent.py",
        "chunk.size, chunk.footer\n",
        'chunk.size, ""\n',
        ("unit/test_chunk_cache.py",),
    ),
    Fault(
        "what one user may read is not served to another one of the process",
        "engine/chunks/recent.py",
        "    return _kept_for.get(store) or",
        "    return next(iter(_kept_for.values()), None) or",
        ("unit/test_chunk_cache.py",),
    ),
    Fault(
        "a deep check sees what the storage holds, not what readers keep",
        "engine/stream/read.py",
        "chunk_reader.read(\n        stream.store,\n        stream.path,\n        ref,\n"
        "        ref.base_offset,\n        ref.end,\n",
        "chunk_reader.read_range(\n        stream.store,\n        stream.path,\n        [ref],\n"
        "        SegmentRange(stream.name, life=1, segment_id=0, start=ref.base_offset, "
        "end=ref.end),\n        recent=stream.recent,\n",
        ("unit/test_chunk_cache.py",),
    ),
    Fault(
        "the memory of kept chunks is bounded",
        "engine/chunks/recent.py",
        "while self.size_bytes > self._most_bytes:",
        "while self.size_bytes > 2 * self._most_bytes:",
        ("unit/test_chunk_cache.py",),
    ),
)

SUBSCRIBERS = (
    Fault(
        "a subscriber's position does not go back",
        "engine/stream/subscribers.py",
        "            if not wanted.is_at_or_after(before):\n",
        "            if not before.is_at_or_after(before):\n",
        ("unit/engine/stream/test_subscribers.py",),
    ),
    Fault(
        "a publish of an earlier generation of a group is refused",
        "engine/stream/subscribers.py",
        "    if generation is not None and known.generation != generation:\n",
        "    if generation is not None and known.generation < generation:\n",
        ("unit/engine/stream/test_subscribers.py",),
    ),
    Fault(
        "a late call of an earlier generation subscribes nobody again",
        "engine/stream/subscribers.py",
        "        elif known is not None and known.generation >= generation:\n"
        "            return None\n        hold",
        "        elif known is not None and known.generation == generation:\n"
        "            return None\n        hold",
        ("unit/engine/stream/test_subscribers.py",),
    ),
    Fault(
        "a new subscriber that asks for it holds what the stream has",
        "engine/stream/subscribers.py",
        "        if start is not None or protect:\n",
        "        if start is not None:\n",
        ("unit/engine/stream/test_subscribers.py",),
    ),
)

FOLDS = (
    Fault(
        "retention truncates no change that no fold has read",
        "key_value/fold.py",
        "    if known is None or known.removed:\n        subscribers.subscribe(",
        "    if known is not None and known.removed:\n        subscribers.subscribe(",
        ("unit/key_value/test_fold.py",),
    ),
    Fault(
        "what a fold has expired leaves the folded table",
        "key_value/fold.py",
        "file.max_timestamp_us <= expired_us or file.min_timestamp_us <= long_ago_us",
        "file.max_timestamp_us <= expired_us and file.min_timestamp_us > expired_us",
        ("unit/key_value/test_fold.py",),
    ),
)

BACKUP = (
    Fault(
        "a file that is cut in the copy is copied again",
        "backup/copy.py",
        'return sizes.get(f"{path}/{add.path}") == add.size',
        'return f"{path}/{add.path}" in sizes',
        ("unit/backup/test_root_backup.py", "unit/backup/test_copy_update.py"),
    ),
    Fault(
        "a file that is cut in the source is no part of a backup",
        "backup/copy.py",
        "    if len(data) != add.size:\n",
        "    if len(data) > add.size:\n",
        ("unit/backup/test_root_backup.py",),
    ),
    Fault(
        "a restore keeps no version that lacks a part of a file",
        "backup/restore.py",
        "return sizes.get(add.path) == add.size and _has_object",
        "return add.path in sizes and _has_object",
        ("unit/backup/test_root_restore.py",),
    ),
    Fault(
        "transactions that were open are aborted in a copy",
        "backup/copy.py",
        '        domains[f"{OPEN_PREFIX}{name}"] = None\n',
        "",
        ("unit/backup/test_root_backup.py",),
    ),
)

CLAIMS = (
    Fault(
        "a claim that a clock far ahead has made is none",
        "engine/state/maintenance_table.py",
        "return self.at_ms - CLOCK_SKEW_MS <= now_ms < self.until_ms",
        "return now_ms < self.until_ms",
        ("unit/engine/state/test_maintenance_table.py",),
    ),
    Fault(
        "a run that a clock far ahead has recorded proves nothing",
        "engine/state/maintenance_table.py",
        "if self.last is None or self.last.finished_ms > now_ms + CLOCK_SKEW_MS:",
        "if self.last is None:",
        ("unit/engine/state/test_maintenance_table.py",),
    ),
    Fault(
        "maintenance of a scope and of all scopes sees each other's claims",
        "engine/state/maintenance_table.py",
        "(None in wanted or entry.scope is None or entry.scope in wanted)",
        "(None in wanted or entry.scope in wanted)",
        (
            "unit/engine/state/test_maintenance_table.py",
            "unit/maintenance/test_maintenance_share.py",
        ),
    ),
)

LETTERS = (
    Fault(
        "rows and letters of a table are written in the rows' order",
        "dead_letters.py",
        "letters = int(before[first]) - is_letter",
        "letters = int(before[first])",
        ("unit/test_dead_letter_writer.py",),
    ),
    Fault(
        "letters of an encrypted stream are not stored in plain",
        "dead_letters.py",
        "if encryption is not None and letters.record.configuration.encryption is None:",
        "if encryption is None and letters.record.configuration.encryption is not None:",
        (
            "unit/spark/write/test_typed_writes.py::test_letters_of_an_encrypted_stream_are_encrypted",
        ),
    ),
)

FAULTS = (
    *ENGINE,
    *TRANSACTIONS,
    *READER_GROUPS,
    *RETENTION,
    *SCALING,
    *COMPACTION,
    *KEY_VALUE,
    *SCHEMAS,
    *SPARK,
    *MAINTENANCE,
    *HISTORY,
    *RECENT_CHUNKS,
    *SUBSCRIBERS,
    *FOLDS,
    *BACKUP,
    *CLAIMS,
    *LETTERS,
)

NOT_SHOWN: Mapping[str, tuple[str, ...]] = {
    "simulated storage keeps what it has acknowledged: tests/sim/power cuts the power": (
        "a file that is acknowledged was fsynced before it got its name",
        "the folder of an acknowledged file was fsynced after the file got its name",
        "the chunks that a commit names are durable before the commit gets its name",
        "a commit whose answer was lost is durable before it is acknowledged",
        "a batch that another process committed is durable before its owner acknowledges it",
    ),
    "simulated storage has each object whole, as S3 and local disks have it": (
        "a file that is cut in the copy is copied again",
        "a file that is cut in the source is no part of a backup",
        "a restore keeps no version that lacks a part of a file",
    ),
    "no simulated process runs Spark": (
        "a micro-batch that comes again is in the stream once",
        "a batch that was stopped between two streams is written to those that lack it",
        "a numbered write is in a transaction once",
        "a query passes no truncated event without an error",
        "a query's group releases only what a finished batch has written",
        "a micro-batch over a scale has the events of a key in order",
        "a merge changes no row for any Delta reader",
    ),
    "programs write texts, no typed rows, and encrypt nothing": (
        *(fault.promise for fault in SCHEMAS),
        *(fault.promise for fault in LETTERS),
    ),
    "it is about what calls or memory cost": (
        "a process looks at open transactions once in a lease, not each time",
        "writers record the watermark about every ten seconds, not with each note",
        "the thread that extends leases costs readers that make calls nothing",
        "the memory of kept chunks is bounded",
    ),
    "it is about who does maintenance and when, not about what it does": (
        *(fault.promise for fault in MAINTENANCE),
        *(fault.promise for fault in CLAIMS),
        "a stream that an automatic group holds is looked at although nobody writes to it",
        "the last reader of a group publishes what it has acknowledged",
    ),
    "an assertion of the package ends whoever meets it, before a history has it": (
        "one reader of a group reads a segment",
        "a scale leaves no keys without a segment",
        "no event enters a segment after its seal",
    ),
    "a batch is offered when the log has all before it: who knows of none of those loses the race "
    "for its version": ("a batch waits for the one before it: the events of a writer have no gap",),
    "a second check, at the commit of a scale, holds it, too": (
        "automatic scaling leaves the minimum of segments",
    ),
    "a second check, before the chunks of a range are read, holds it, too": (
        "only neighbours are merged",
    ),
    "only the release before needs what is kept: this one reads a fold without it": (
        "a truncation keeps the segments that the fold of a table names",
    ),
    "only other Delta readers see the rows of removed keys: the package passes over them": (
        "a fold brings no removed key back",
    ),
    "it is about times of a clock, and a history has none": (
        "a transaction whose lease is extended does not expire",
        "no reader expires over an outage of the storage",
        "a judge that runs once expires nobody whom no judge found silent a lease before",
        "an application that hangs for longer than max_poll_interval loses its segments",
        "nothing is deleted early because the clock of one host is ahead",
        "no less than the minimum of the policy stays",
        "an entry with a time to live does not come back by a merge of its log",
        "the changes of a table are never dated before earlier ones",
        "an entry that has expired does not come back",
        "what a fold has expired leaves the folded table",
        "a stream whose target was changed is scaled by the new one alone",
    ),
    "it is about what a call tells of the past, or of damage, and no program asks": (
        *(fault.promise for fault in HISTORY),
        "a deep check sees what the storage holds, not what readers keep",
        "a chunk in memory is the one that the log records, not another of its name",
    ),
    "it is about users with other rights, or about wrong arguments, and no program has either": (
        "what one user may read is not served to another one of the process",
        "a text that is not a whole checkpoint is refused",
    ),
    "no reader stores positions of its own": (
        "a reader goes back to a stored position only over what it alone has had since",
        "what a reader acquired after a position is read again from there",
    ),
}
"""Why no history of the simulator can show a fault, by the promises of those that none shows."""
