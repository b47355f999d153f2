"""``pravega-spark reader-group sync``: acknowledge the last batch of a Spark checkpoint.

Spark reports the end of a batch to its source when it builds the next one. So the last batch of a
query that was killed, or that ran without the listener of ``session()``, is never reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from pravega_spark.cli.output import TABLE, examples, output_option, say, show_table, show_value
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidInput
from pravega_spark.reader_groups.description import get_group
from pravega_spark.reader_groups.lifecycle import open_group
from pravega_spark.reader_groups.query_member import (
    acknowledge_batch,
    continued_cuts,
    with_finished_batch,
)
from pravega_spark.spark.monitor.checkpoint_folder import CommittedBatch, last_committed_batch
from pravega_spark.spark.source_offsets import decode, owner_of, present
from pravega_spark.values.segments import StreamCut


@dataclass(frozen=True, slots=True)
class _SyncStep:
    """The cuts up to which a batch was processed for a group."""

    root: str | None
    group: str
    generation: int | None
    query: int | None
    cuts: Mapping[str, StreamCut]


@click.command(
    epilog=examples("reader-group sync --checkpoint s3://bucket/checkpoints/flights --dry-run")
)
@click.option(
    "--checkpoint",
    required=True,
    metavar="FOLDER|URL",
    help="The checkpointLocation of the query.",
)
@click.option("--group", help="The group, if the query's offsets name none.")
@click.option("--dry-run", is_flag=True, help="Show the outcome without changing anything.")
@root_option
@output_option
def sync(checkpoint: str, group: str | None, dry_run: bool, root: str | None, output: str) -> None:
    """Acknowledge the last finished batch of a query in its reader group.

    For queries with the option readerGroup that have ended or were killed: a running query
    acknowledges all its batches except the last one. Root and group default to those of the
    query's options. Safe to repeat.
    """
    batch = last_committed_batch(checkpoint)
    steps = [] if batch is None else _steps(batch, checkpoint, group)
    number = None if batch is None else batch.number
    rows = [_synced(step, root or step.root, dry_run) for step in steps]
    if output != TABLE:
        show_value({"batch": number, "dry_run": dry_run, "groups": rows}, output)
    elif batch is None:
        say(f"{checkpoint} has no finished batch: there is nothing to acknowledge.")
    else:
        headings = ("GROUP", "GENERATION", "BATCH", "STREAM", "CUT", "OUTCOME")
        cells = [
            (row["group"], row["generation"], number, stream, cut, row["outcome"])
            for row in rows
            for stream, cut in row["cuts"].items()
        ]
        show_table(headings, cells)


def _steps(batch: CommittedBatch, checkpoint: str, group: str | None) -> list[_SyncStep]:
    steps: list[_SyncStep] = []
    for record in batch.offsets:
        owner = owner_of(record)
        cuts = {name: offset.cut for name, offset in present(decode(record)).items()}
        if owner is not None and owner.group is not None:
            run = owner.generation, owner.query
            steps.append(_SyncStep(owner.root, owner.group, *run, cuts))
        elif group is not None:
            root = None if owner is None else owner.root
            steps.append(_SyncStep(root, group, generation=None, query=None, cuts=cuts))
    if not steps:
        raise InvalidInput(
            f"batch {batch.number} of {checkpoint} names no reader group: the query ran without "
            "the option readerGroup. Name its group with --group, if it reads for one."
            if batch.offsets
            else f"batch {batch.number} of {checkpoint} has no pravega source."
        )
    _check(steps, group)
    return steps


def _check(steps: Sequence[_SyncStep], group: str | None) -> None:
    """Refuse another group than the given one, and a stream that several sources read."""
    if group is not None and any(step.group != group for step in steps):
        named = ", ".join(sorted({step.group for step in steps}))
        raise InvalidInput(f"the query's offsets name {named}, not {group}: leave out --group.")
    read = [(step.group, stream) for step in steps for stream in step.cuts]
    for name, stream in read:
        if read.count((name, stream)) > 1:
            raise InvalidInput(
                f"the query reads {stream} with several sources, which may be at different "
                f"positions; group {name} has one position per stream. Use one source per stream."
            )


def _synced(step: _SyncStep, root: str | None, dry_run: bool) -> dict[str, Any]:
    """Do one step, or with ``dry_run`` find out its outcome; return its row."""
    _, store = open_root(root)
    state = get_group(store, step.group).state
    generation = state.generation if step.generation is None else step.generation
    counted = continued_cuts(state, generation, step.cuts)
    if not counted:
        outcome = f"ignored: the group is in generation {state.generation}"
    elif step.query is not None and step.query != state.query_number:
        outcome = "ignored: another run of a query has joined the group since"
    elif dry_run:
        would = with_finished_batch(state, counted, partial(open_stream, store)) != state
        outcome = "would be acknowledged" if would else "known"
    else:
        found = open_group(store, step.group)
        changed = acknowledge_batch(found, generation, step.cuts, step.query)
        outcome = "acknowledged" if changed else "known"
    cuts = {stream: str(cut) for stream, cut in sorted(step.cuts.items())}
    return {"group": step.group, "generation": generation, "cuts": cuts, "outcome": outcome}
