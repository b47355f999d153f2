"""The tables of docs/benchmarks.md, made from the results that are kept in results.json.

``python -m bench --page RESULTS...`` takes the benchmarks of other results over, each whole, and
writes the tables again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import cases
from bench.harness.figures import Figure, load, save
from bench.harness.marks import place
from bench.harness.registry import find
from bench.harness.report import number

KEPT = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[1] / "docs/benchmarks.md"

TABLES = {
    "append": (
        "durable_append append_to_long_stream appends_by_segments pipelined_writes typed_tables "
        "many_writer_processes idle_writers large_events byte_stream_as_a_file encrypted_chunks"
    ),
    "read": "open_long_stream first_event reader_memory stream_list",
    "latency": "writer_to_reader kafka_latency",
    "transactions": (
        "small_transaction large_commit waiting_transactions commit_among_many rolling_commit "
        "joint_transaction"
    ),
    "spark reads": (
        "frame_read two_columns time_filter own_reads_of_chunk_files native_batch_frame "
        "native_frame_40m typed_aggregation batch_of_many_segments reads_of_many_streams "
        "plans_of_many_chunks"
    ),
    "spark writes": "frame_write typed_frame_write task_memory kafka_import",
    "streaming": (
        "first_batch stream_to_stream streaming_backlog native_backlog kafka_backlog "
        "starts_beside_busy_processes reader_group_overhead micro_batch_of_many_streams "
        "micro_batches_of_many_scales idle_looks idle_query what_ended_queries_leave"
    ),
    "spark versions": "spark_versions",
    "key-value tables": (
        "lone_put pipelined_puts hot_gets cold_gets_from_s3 folded_tables unfolded_keys "
        "key_value_scan upsert_keys merge_key_hashes"
    ),
    "object stores": (
        "s3_append s3_follower s3_writers many_remote_writers pipelined_remote_writes "
        "first_event_on_s3 shared_chunks"
    ),
    "reader groups": (
        "group_reading group_join group_checkpoint group_takeover group_refresh group_creation "
        "group_many_segments readers_of_one_group"
    ),
    "scaling": (
        "scale_1_to_16 split_by_segments slow_scale_beside_writers pause_of_a_writer "
        "reroute_after_split auto_scale_decision"
    ),
    "size and age": "looks_at_many_streams writer_ids long_life event_time first_notes",
    "server": "served_root served_day",
    "maintenance": (
        "maintenance_job appends_beside_maintenance idle_maintenance compaction_speed "
        "append_while_compacting write_amplification stored_bytes chunk_bytes chunk_files "
        "chunk_files_40m retention_decision retention_job truncation backup_up_to_date "
        "process_metrics"
    ),
}
"""By a table's name: its benchmarks, in the order of its rows."""
_BY_SPARK = "spark versions"
"""The table with a column for each Spark: the names of its figures begin with it and a colon."""


def merged(kept: Sequence[Figure], newer: Sequence[Figure]) -> list[Figure]:
    """Return the kept figures, without those of the benchmarks that the newer ones are of."""
    again = {figure.benchmark for figure in newer}
    return [figure for figure in kept if figure.benchmark not in again] + list(newer)


def take(results: Sequence[Path]) -> None:
    """Keep the figures of other results, and write the page again."""
    kept = load(KEPT)
    for path in results:
        kept = merged(kept, load(path))
    order = [name for names in TABLES.values() for name in names.split()]
    kept.sort(key=lambda figure: order.index(figure.benchmark))
    save(kept, KEPT)
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


def written(page: str, figures: Sequence[Figure]) -> str:
    """Return the page with the tables of these figures between its marks."""
    made = {name: "".join(_rows(names.split(), figures)) for name, names in TABLES.items()}
    made[_BY_SPARK] = "".join(_rows_by_spark(TABLES[_BY_SPARK], figures))
    made["days"] = _days(figures)
    made["others"] = _others(figures)
    for name, text in made.items():
        page = place(page, name, text)
    return page


def _rows(names: Sequence[str], figures: Sequence[Figure]) -> Iterator[str]:
    shown = [figure for name in names for figure in figures if figure.benchmark == name]
    if not shown:
        yield "Not measured lately.\n"
        return
    yield "| | measured | beside | ratio | target |\n| --- | --- | --- | --- | --- |\n"
    for before, figure in zip([None, *shown], shown, strict=False):
        mine, peer = (figure.name, _value(figure)), _peer(figure)
        if before is not None and (before.name, before.value) == (figure.name, figure.value):
            mine = ("", "")
        elif before is not None and before.peer == figure.peer:
            peer = number(figure.peer_value) if figure.peer else ""
        yield f"| {' | '.join((*mine, peer, _ratio(figure), _target(figure)))} |\n"


def _rows_by_spark(benchmark: str, figures: Sequence[Figure]) -> Iterator[str]:
    """Yield a row for each measure and what it is beside, with the ratio of each Spark."""
    ratios: dict[tuple[str, str], dict[str, str]] = {}
    for figure in figures:
        if figure.benchmark == benchmark:
            spark, _, name = figure.name.partition(": ")
            missed = "" if figure.met else ", missed"
            ratios.setdefault((name, figure.peer), {})[spark] = f"{_ratio(figure)}{missed}"
    if not ratios:
        yield "Not measured lately.\n"
        return
    sparks = sorted({spark for row in ratios.values() for spark in row})
    yield f"| | beside | {' | '.join(sparks)} |\n| --- | ---{' | ---' * len(sparks)} |\n"
    for (name, peer), row in ratios.items():
        yield f"| {name} | {peer} | {' | '.join(row.get(spark, '') for spark in sparks)} |\n"


def _value(figure: Figure) -> str:
    return number(figure.value, figure.unit)


def _peer(figure: Figure) -> str:
    if not figure.peer:
        return ""
    value = number(figure.peer_value)
    return figure.peer if figure.peer_value is None else f"{figure.peer}: {value}"


def _ratio(figure: Figure) -> str:
    return "" if figure.ratio is None else f"{figure.ratio:.2f}"


def _target(figure: Figure) -> str:
    if not figure.target:
        return ""
    text = re.sub(r"\d+\.\d{3,}", lambda found: number(float(found[0])), figure.target)
    text = text.replace("<= ", "≤").replace(">= ", "≥").replace(" and ", ", ")
    return f"{text}: met" if figure.met else f"{text}: missed. Bound by {figure.limited_by}"


def _days(figures: Sequence[Figure]) -> str:
    days = sorted({figure.day for figure in figures})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    aims = [figure for figure in figures if figure.target]
    met = sum(figure.met for figure in aims)
    return f"Measured {when}. Of {len(aims)} targets {met} are met.\n"


def _others(figures: Sequence[Figure]) -> str:
    known = {figure.benchmark for figure in figures}
    names = [f"`{each.name}`" for each in find(cases) if each.name not in known]
    return f"{', '.join(names) or 'None.'}\n"
