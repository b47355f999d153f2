"""The rule of the unknown answer, for one object that several may create at once.

**Resolve N before N+1.** The bytes are fixed before they are sent. After any answer but a clean
yes the object itself is read: ours means that we won, another's that we lost, absent means the
same bytes once more.
"""

from __future__ import annotations

from collections.abc import Callable

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Put, Store
from pravega_spark.errors import CommitUnknown, StoreError
from pravega_spark.limits import COMMIT_DEADLINE_SECONDS


def create_once(
    store: Store,
    runtime: Runtime,
    key: str,
    data: bytes,
    *,
    is_ours: Callable[[bytes], bool],
    unknown: Callable[[], CommitUnknown],
    after: str | None = None,
) -> bool:
    """Create the object; True if it holds ``data``, durably, False if it is another's.

    ``after`` is the object that this one follows, as for ``put_if_absent``. Raises what
    ``unknown`` returns when nobody can tell for COMMIT_DEADLINE_SECONDS, and
    StoreError if the storage refused before anything was in doubt.
    """
    folder = key[: key.rindex("/")]
    deadline = runtime.monotonic() + COMMIT_DEADLINE_SECONDS
    pause, in_doubt = 0.005, False
    while True:
        try:
            if store.put_if_absent(key, data, after=after) is Put.CREATED:
                failpoint("commit.applied")
                return True
            in_doubt = True
            if not is_ours(store.get(key)):
                return False
            store.make_durable(folder)  # nobody told us that it is durable
            return True
        except FileNotFoundError:
            pass
        except StoreError as error:
            if not in_doubt:
                raise
            if runtime.monotonic() > deadline:
                raise unknown() from error
        if runtime.monotonic() > deadline:
            raise unknown()
        runtime.sleep(pause)
        pause = min(pause * 2, 1.0)
