"""A refused create may have been applied: HTTP libraries send a PUT again without telling.

If a connection drops before the answer, the library repeats the request. If the first request was
applied and the second is refused (the token expired in between, a quota is full), the refusal
alone would report an existing object as not created.
"""

from __future__ import annotations

from pravega_spark.engine.store.base import Put, Store
from pravega_spark.errors import StoreError


def outcome_after_refusal(
    store: Store, key: str, refused: StoreError, cause: BaseException | None
) -> Put:
    """Raise the refusal only if the object does not exist.

    Return EXISTS if it does (the caller reads it to find out whose it is), and UNKNOWN if that
    cannot be checked.
    """
    try:
        if store.exists(key):
            return Put.EXISTS
    except StoreError:
        return Put.UNKNOWN
    raise refused from cause
