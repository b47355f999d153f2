"""Where a transaction keeps its objects: manifests and lease, chunks, and its announcement."""

from __future__ import annotations

from pravega_spark.engine.stream.stream_log import StreamLog


def transaction_folder(stream: StreamLog, transaction_id: str) -> str:
    """Return the key of the folder of a transaction's manifests and lease."""
    return f"{stream.name}/transactions/{transaction_id}"


def chunk_folder(transaction_id: str) -> str:
    """Return the name of the folder of a transaction's chunks, below ``data``."""
    return f"t-{transaction_id}"


def announcement_key(stream: StreamLog, transaction_id: str) -> str:
    """Return the key of a transaction's announcement, which precedes its closing manifest."""
    return f"{_announcement_folder(stream)}/{transaction_id}.json"


def announced_transactions(stream: StreamLog) -> set[str]:
    """Return the ids of the announced transactions."""
    entries = stream.store.list(_announcement_folder(stream))
    return {entry.key.rsplit("/", 1)[-1].removesuffix(".json") for entry in entries}


def _announcement_folder(stream: StreamLog) -> str:
    return f"{stream.name}/transactions/closing"
