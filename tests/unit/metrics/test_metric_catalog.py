"""Names, kinds and labels are an interface: dashboards and alerts of users depend on them."""

from __future__ import annotations

import re

from pravega_spark.metrics.catalog import METRICS, PROCESS_METRICS, ROOT_METRICS, MetricKind

GOLDEN = """
pravega_scopes gauge
pravega_streams gauge scope
pravega_reader_groups gauge scope
pravega_key_value_tables gauge scope
pravega_stream_info gauge scope stream state scaling retention
pravega_stream_segments gauge scope stream
pravega_stream_segment_splits_total counter scope stream
pravega_stream_segment_merges_total counter scope stream
pravega_stream_written_events_total counter scope stream
pravega_stream_written_bytes_total counter scope stream
pravega_stream_events gauge scope stream
pravega_stream_size_bytes gauge scope stream
pravega_stream_truncated_events_total counter scope stream
pravega_stream_truncated_bytes_total counter scope stream
pravega_stream_last_truncation_timestamp_seconds gauge scope stream
pravega_stream_version gauge scope stream
pravega_stream_last_commit_timestamp_seconds gauge scope stream
pravega_stream_clock_ahead_seconds gauge scope stream
pravega_stream_files gauge scope stream
pravega_stream_files_bytes gauge scope stream
pravega_stream_swept_files_total counter scope stream
pravega_stream_swept_bytes_total counter scope stream
pravega_stream_open_transactions gauge scope stream
pravega_stream_oldest_transaction_timestamp_seconds gauge scope stream
pravega_stream_recent_transactions gauge scope stream outcome
pravega_stream_subscribers gauge scope stream
pravega_stream_watermark_lower_timestamp_seconds gauge scope stream
pravega_stream_watermark_upper_timestamp_seconds gauge scope stream
pravega_group_readers gauge group
pravega_group_unassigned_segments gauge group
pravega_group_lag_events gauge group scope stream
pravega_group_lag_bytes gauge group scope stream
pravega_group_lag_seconds gauge group scope stream
pravega_maintenance_age_seconds gauge kind scope
pravega_maintenance_overdue gauge kind scope
pravega_maintenance_failed_streams gauge kind scope
pravega_scrape_duration_seconds gauge
pravega_scrape_timestamp_seconds gauge
pravega_scrape_errors gauge kind
pravega_scrape_skipped gauge kind
pravega_writer_events_total counter scope stream
pravega_writer_bytes_total counter scope stream
pravega_writer_append_seconds histogram scope stream
pravega_writer_failed_events_total counter scope stream
pravega_writers gauge scope stream
pravega_writer_outstanding_writes gauge scope stream
pravega_writer_outstanding_bytes gauge scope stream
pravega_reader_events_total counter scope stream
pravega_reader_bytes_total counter scope stream
pravega_reader_lag_events gauge group reader scope stream
pravega_commits_total counter scope stream operation
pravega_commit_races_lost_total counter scope stream
pravega_storage_retries_total counter root
"""


def test_names_kinds_and_labels_are_those_that_were_released() -> None:
    found = [" ".join((m.name, m.kind.value, *m.labels)) for m in (*ROOT_METRICS, *PROCESS_METRICS)]
    assert found == GOLDEN.split("\n")[1:-1]
    assert len(METRICS) == len(found)


def test_names_follow_the_rules_of_prometheus() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"pravega(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert not {"le", "quantile", "job", "instance"} & set(metric.labels)
        assert metric.meaning
        assert metric.meaning[-1] != "."
