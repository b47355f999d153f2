"""Create one object that several processes may create at once, and resolve unknown outcomes.

**Resolve N before N+1.** The bytes are fixed before they are sent. After any answer except a clean
yes, the object itself is read. Our bytes mean that we won, others that we lost, and an absent
object that the same bytes are sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Put, Store
from pravega_spark.engine.store.root_marker import check_same
from pravega_spark.errors import (
    CommitUnknown,
    PravegaSparkError,
    RootChanged,
    StoreError,
    StoreUnavailable,
)
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
    staged: Sequence[str] = (),
) -> bool:
    """Create the object; return True if it holds ``data``, durably, and False if it holds other.

    ``after`` is the object that this one follows, and ``staged`` are those that it names, as for
    ``put_if_absent``. Raises the error that
    ``unknown`` returns if the outcome stays unknown for COMMIT_DEADLINE_SECONDS, longer by the time
    for which the store repeats its calls, or if it has repeated a read in vain; and StoreError if
    the storage refused the first attempt.
    """
    folder = key.rpartition("/")[0]
    deadline = runtime.monotonic() + COMMIT_DEADLINE_SECONDS + store.retry_seconds
    pause, is_unknown = 0.005, False
    while True:
        try:
            if store.put_if_absent(key, data, after=after, staged=staged) is Put.CREATED:
                failpoint("commit.applied")
                _check_root(store, unknown)
                return True
            is_unknown = True
            if not is_ours(store.get(key)):
                return False
            store.make_durable(folder)  # the lost answer did not confirm that it is durable
            _check_root(store, unknown)
            return True
        except FileNotFoundError:
            pass
        except StoreError as error:
            if not is_unknown:
                raise
            is_in_vain = isinstance(error, StoreUnavailable) and store.retry_seconds > 0
            if is_in_vain or runtime.monotonic() > deadline:
                raise _caused(unknown(), error) from error
        if runtime.monotonic() > deadline:
            raise unknown()
        runtime.sleep(pause * (0.5 + runtime.random()))  # so that many processes spread out
        pause = min(pause * 2, 1.0)


def create_object(store: Store, runtime: Runtime, key: str, data: bytes) -> bool:
    """Create an object that is no commit, as :func:`create_once` does; its bytes are its token.

    Bytes that others may write as well count as ours. Raises CommitUnknown and StoreError.
    """

    def unknown() -> CommitUnknown:
        return CommitUnknown(
            f"{store.url}: it is unknown whether {key} was created (no clear answer in time). "
            "Repeat the call, which finds out."
        )

    return create_once(store, runtime, key, data, is_ours=data.__eq__, unknown=unknown)


def _check_root(store: Store, unknown: Callable[[], CommitUnknown]) -> None:
    """Raise the error if the object may lie in another root, which replaced the store's just now.

    On a local disk this costs one system call; elsewhere nothing is checked.
    """
    try:
        check_same(store)
    except (RootChanged, StoreError) as error:
        raise _caused(unknown(), error) from error


def _caused(failure: CommitUnknown, error: PravegaSparkError) -> CommitUnknown:
    """Return the failure with the last error of the storage in its message."""
    failure.message = f"{failure.message} The last answer was: {error}"
    failure.__post_init__()
    return failure
