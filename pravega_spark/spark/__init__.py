"""Spark: the data source ``pravega``, and :func:`session` to create a session for it."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

from pravega_spark.spark.worker_garbage import ImportFreezer

if TYPE_CHECKING:
    from pravega_spark.spark.session import session

if "SPARK_REUSE_WORKER" in os.environ:  # set in Python workers that Spark uses again
    gc.callbacks.append(ImportFreezer())
elif os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
    gc.freeze()  # a new process for one query: what it has so far are the modules of Spark

__all__ = ["session"]


def __getattr__(name: str) -> Any:
    """Import names on first use, so that ``import pravega_spark.spark`` needs no Spark."""
    if name == "session":
        from pravega_spark.spark.session import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
