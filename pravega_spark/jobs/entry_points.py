"""The entry points of the wheel: commands such as ``pravega-spark-retention``, Databricks' tasks.

Databricks calls an entry point as a function and ignores what it returns. So failure is an
exception, SystemExit with the job's exit status, and success is a plain return.
"""

from __future__ import annotations

import importlib
import sys

from pravega_spark.jobs import early_signals


def maintenance() -> None:
    """Start the job that does all maintenance."""
    _start("maintenance")


def retention() -> None:
    """Start the job that truncates streams."""
    _start("retention")


def scaling() -> None:
    """Start the job that splits and merges segments."""
    _start("scaling")


def transactions() -> None:
    """Start the job that ends transactions."""
    _start("transactions")


def compaction() -> None:
    """Start the job that merges files."""
    _start("compaction")


def import_stream() -> None:
    """Start the job that copies topics, tables and files into a stream."""
    _start("import_stream")


def export_stream() -> None:
    """Start the job that copies a stream to a topic, a table or files."""
    _start("export_stream")


def _start(job: str) -> None:
    early_signals.listen()  # before the imports that take long
    status = importlib.import_module(f"pravega_spark.jobs.{job}").main()
    if status:
        sys.exit(status)
