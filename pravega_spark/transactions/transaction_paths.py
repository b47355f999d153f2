"""Where a transaction keeps its objects: manifests and lease, chunks, and its commit intent."""

from __future__ import annotations

from pravega_spark.engine.stream.stream_log import StreamLog


def transaction_folder(stream: StreamLog, transaction_id: str) -> str:
    """Return the key of the folder of a transaction's manifests and lease."""
    return f"{stream.name}/transactions/{transaction_id}"


def chunk_folder(transaction_id: str) -> str:
    """Return the name of the folder of a transaction's chunks, below ``data``."""
    return f"t-{transaction_id}"


def commit_intent_key(stream: StreamLog, transaction_id: str) -> str:
    """Return the key of a transaction's commit intent, which is put before its manifest."""
    return f"{_commit_intent_folder(stream)}/{transaction_id}.json"


def commit_intents(stream: StreamLog) -> set[str]:
    """Return the ids of the transactions that have a commit intent."""
    entries = stream.store.list(_commit_intent_folder(stream))
    return {entry.key.rsplit("/", 1)[-1].removesuffix(".json") for entry in entries}


def _commit_intent_folder(stream: StreamLog) -> str:
    return f"{stream.name}/transactions/closing"
