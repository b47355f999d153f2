"""Storage: open a root by its URL; create, read, list and delete objects."""

from pravega_spark.engine.store.base import Entry, PutOutcome, Store
from pravega_spark.engine.store.opening import open_store
from pravega_spark.engine.store.probe import ensure_probed, probe

__all__ = ["Entry", "PutOutcome", "Store", "ensure_probed", "open_store", "probe"]
