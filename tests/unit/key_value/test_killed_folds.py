"""Folds in processes that are killed at each failpoint: no entry is lost, none is there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.manager import root_of
from pravega_spark.retention.run import RetentionOptions, run_retention
from tests.harness.failpoints import PROJECT, variables
from tests.harness.folded_tables import scanned

NAME, LOG = "shop/stock", "shop/_kv_tables/stock"
POINTS = ("fold.read", "fold.written", "fold.commit", "fold.committed", "fold.publish")
FOLD = f"""
import sys
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.shared_table import table_configuration
log = StreamLog(open_store(sys.argv[1]), {LOG!r})
fold(log, folded_table(log, table_configuration(log.view())))
"""


def fold_in_a_process(root: Path, visit: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), **variables(visit)}
    command = [sys.executable, "-c", FOLD, str(root)]
    return subprocess.run(command, env=environment, check=False, timeout=120).returncode


@pytest.mark.slow
def test_no_entry_is_lost_or_doubled_wherever_a_fold_is_killed(tmp_path: Path) -> None:
    manager = StreamManager(str(tmp_path))
    manager.create_scope("shop")
    manager.create_key_value_table(NAME, KeyValueTableConfiguration("string", partitions=2))
    expected: dict[str, bytes] = {}
    for number, point in enumerate(POINTS):
        with manager.key_value_table(NAME) as table:
            for key in range(number, 40, 1 + number):
                expected[f"k{key}"] = value = f"{number}".encode()
                table.put(f"k{key}", value).result()
            table.remove(f"k{number}").result()
            expected.pop(f"k{number}", None)
        assert fold_in_a_process(tmp_path, point) == -signal.SIGKILL
        log = StreamLog(root_of(manager).store, LOG)
        run_retention(log, RetentionOptions(root={}))
        reader = StreamManager(str(tmp_path)).key_value_table(NAME)
        assert {entry.key: entry.value for entry in reader.entries()} == expected, point
    assert fold_in_a_process(tmp_path, "") == 0
    log = StreamLog(root_of(manager).store, LOG)
    state = folded_table(log, table_configuration(log.view())).read()
    assert {key.primary.decode(): one.value for key, one in scanned(state).items()} == expected
    run_retention(log, RetentionOptions(root={}))
    assert log.view().head == log.view().tail
