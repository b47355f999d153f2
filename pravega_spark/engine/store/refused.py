"""A create that was refused may have been applied before: HTTP libraries send a PUT again.

A connection that drops before the answer makes the library repeat the request without a word. If
the first was applied and the second is refused (the token expired in between, a quota is full),
the refusal alone would report as not done what is there.
"""

from __future__ import annotations

from pravega_spark.engine.store.base import Put, Store
from pravega_spark.errors import StoreError


def refused_unless_there(
    store: Store, key: str, refused: StoreError, cause: BaseException | None
) -> Put:
    """Look before a refusal is passed on: raise it only if there is no object.

    EXISTS if there is one, which the caller reads to know whose it is; UNKNOWN if nobody can look.
    """
    try:
        if store.exists(key):
            return Put.EXISTS
    except StoreError:
        return Put.UNKNOWN
    raise refused from cause
