"""``pravega-spark retention``: what would be deleted, what is kept and for whom; and a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pravega_spark.cli.lazy_commands import Group
from pravega_spark.cli.many_names import look_at_each
from pravega_spark.cli.output import (
    TABLE,
    confirm,
    examples,
    output_option,
    say_lines,
    show_table,
    show_value,
    size,
    yes_option,
)
from pravega_spark.cli.root_option import check_begun, open_root, root_option
from pravega_spark.cli.transactions import named_streams
from pravega_spark.config.policy_texts import parse_retention
from pravega_spark.retention.explanation import DataAmount, RetentionExplanation, policy_text
from pravega_spark.values.units import count_text

if TYPE_CHECKING:
    from pravega_spark.manager import StreamManager

_HEADINGS = ("STREAM", "POLICY", "GOES", "WHY", "STAYS", "HELD-BY")
_expire_option = click.option(
    "--expire",
    metavar="TIME|never",
    help="Remove subscribers that have published nothing for this long.  [default: the setting]",
)


@click.group("retention", cls=Group)
def retention() -> None:
    """Retention: what streams delete and keep, and for whom."""


@retention.command(
    epilog=examples("retention explain nyc/flights", "retention explain nyc --policy time:7d")
)
@click.argument("where", nargs=-1, metavar="[STREAM|SCOPE]...")
@click.option(
    "--policy",
    metavar="POLICY",
    help="Explain this policy instead of the stream's, such as time:7d or size:10GiB.",
)
@_expire_option
@root_option
@output_option
def explain(
    where: Sequence[str], policy: str | None, expire: str | None, root: str | None, output: str
) -> None:
    """Show the events that a run would delete, the events that stay, and who holds them.

    Changes nothing. Without a name, all streams of the root are explained.
    """
    tried = None if policy is None else parse_retention(policy)
    if policy is not None and tried is None:
        raise click.UsageError("--policy none keeps everything: there is nothing to explain.")
    manager, store = open_root(root)

    def look(name: str) -> RetentionExplanation:
        check_begun(store, [name])
        return manager.retention(name).explain(policy=tried, expire=expire)

    with look_at_each(look, named_streams(manager, where), "streams") as found:
        if output != TABLE:
            show_value([_record(one) for one in found], output)
        else:
            say_lines("\n".join(map(str, found)))


@retention.command(
    epilog=examples("retention run nyc/flights --dry-run", "retention run nyc --yes")
)
@click.argument("where", nargs=-1, required=True, metavar="STREAM|SCOPE...")
@_expire_option
@click.option("--no-sweep", is_flag=True, help="Move heads only; files stay until a sweep.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and change nothing.")
@yes_option
@root_option
@output_option
def run(
    where: Sequence[str],
    expire: str | None,
    no_sweep: bool,
    dry_run: bool,
    yes: bool,
    root: str | None,
    output: str,
) -> None:
    """Truncate streams as far as their policies and subscribers allow, and sweep them.

    Shows first which events it would delete, and asks. Safe to repeat, to kill, and to run twice.
    """
    manager, store = open_root(root)
    streams = named_streams(manager, where)
    check_begun(store, streams)
    planned = [manager.retention(name).explain(expire=expire) for name in streams]
    doomed = [one for one in planned if one.cut is not None or one.idle]
    if dry_run:
        _show([_record(one) for one in planned], planned, output)
        return
    if doomed:
        if not yes:
            show_table(_HEADINGS, map(_cells, doomed))
        _confirm(doomed, yes=yes)
    _run(manager, streams, expire, not no_sweep, output)


def _confirm(doomed: Sequence[RetentionExplanation], *, yes: bool) -> None:
    events = sum(one.goes.events for one in doomed)
    bytes_text = size(sum(one.goes.size_bytes for one in doomed))
    losers = sorted({lost.subscriber for one in doomed for lost in one.passed})
    why = f", some unread by {', '.join(losers)}" if losers else ""
    confirm(
        f"Delete {count_text(events, 'event')} ({bytes_text}{why}) of "
        f"{count_text(len(doomed), 'stream')}?",
        yes=yes,
    )


def _run(
    manager: StreamManager, streams: Sequence[str], expire: str | None, sweep: bool, output: str
) -> None:
    records, explained = [], []
    for name in streams:
        result = manager.retention(name).run(expire=expire, sweep=sweep)
        row = result.row()
        swept = {key: row[key] for key in ("sampled", "swept_files", "swept_bytes", "pending")}
        records.append({**_record(result.explanation), "truncated": row["version"], **swept})
        explained.append(result.explanation)
    _show(records, explained, output)


def _show(
    records: Sequence[dict[str, Any]], found: Sequence[RetentionExplanation], output: str
) -> None:
    if output != TABLE:
        show_value(list(records), output)
    else:
        show_table(_HEADINGS, map(_cells, found))


def _cells(one: RetentionExplanation) -> list[object]:
    held = "; ".join(f"{claim.holder}: {claim.holds}" for claim in one.claims)
    lost = "; ".join(f"loses unread data: {passed}" for passed in one.passed)
    idle = f"expires: {', '.join(one.idle)}" if one.idle else ""
    reasons = "; ".join(filter(None, (held, lost, idle)))
    texts = policy_text(one.policy), str(one.goes), one.rule.value, str(one.stays)
    return [one.stream, *texts, reasons]


def _record(one: RetentionExplanation) -> dict[str, Any]:
    return {
        "stream": one.stream,
        "version": one.version,
        "policy": policy_text(one.policy),
        "decision": one.rule.value,
        "head": str(one.head),
        "cut": None if one.cut is None else str(one.cut),
        "goes": _amount(one.goes),
        "stays": _amount(one.stays),
        "claims": [
            {"holder": claim.holder, "cut": str(claim.cut), **_amount(claim.holds)}
            for claim in one.claims
        ],
        "passed": [
            {"subscriber": lost.subscriber, "cut": str(lost.cut), **_amount(lost.loses)}
            for lost in one.passed
        ],
        "expired": list(one.idle),
        "overdue": one.overdue or None,
    }


def _amount(amount: DataAmount) -> dict[str, float]:
    return {
        "events": amount.events,
        "size_bytes": amount.size_bytes,
        "seconds": amount.seconds,
    }
