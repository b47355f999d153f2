"""A store that sits out outages of another one, by repeating calls that may be made twice."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import TracebackType
from typing import IO, Any, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.base import Entry, PutOutcome, Store, WrappedStore
from pravega_spark.engine.store.client_options import split_options
from pravega_spark.engine.store.file_objects import ObjectSink, PositionedFile
from pravega_spark.engine.store.parallel_calls import in_parallel
from pravega_spark.engine.store.retries import Retries
from pravega_spark.engine.store.store_cache import shared
from pravega_spark.errors import StoreError, StoreUnavailable

_In = TypeVar("_In")


def repeated(file: pa.NativeFile, retries: Retries) -> pa.NativeFile:
    """Return a file of the same bytes whose reads are repeated; one in memory as it is."""
    if isinstance(file, pa.BufferReader):
        return file
    return pa.PythonFile(_RepeatedFile(file, retries), mode="r")


class _RepeatedFile(PositionedFile):
    """Each read names its place, so that it can be repeated."""

    def __init__(self, file: pa.NativeFile, retries: Retries) -> None:
        super().__init__()
        self._file = file
        self._retries = retries
        self._size: int | None = None

    def _end(self) -> int:
        if self._size is None:
            self._size = self._file.size()
        return self._size

    def read(self, size: int = -1) -> Any:
        position = self._position

        def attempt() -> Any:
            self._file.seek(position)
            return self._file.read(None if size is None or size < 0 else size)

        data = self._retries.call(attempt)
        self._position = position + len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


_MEMORY_BYTES = 8 << 20
"""Of a larger object a copy is on the local disk, below TMPDIR, until it is stored."""


class RepeatedUpload:
    """Sends an object while it is written; after an outage sends it again, from its copy.

    Without an outage the calls are those of the store's own ``writer``. Without space for the copy
    the upload goes on, and an outage fails it.
    """

    def __init__(self, store: Store, key: str, retries: Retries) -> None:
        """Begin to upload the object ``key``; its bytes are written to ``file``."""
        self._store, self._key, self._retries = store, key, retries
        self._copy: IO[bytes] | None = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - see __exit__
            _MEMORY_BYTES, prefix="pravega_spark-"
        )
        self._upload: AbstractContextManager[pa.NativeFile] | None = None
        self._sink: pa.NativeFile | None = None
        self.file = ObjectSink(self._write, _as_it_is).as_arrow()

    def __enter__(self) -> RepeatedUpload:
        with suppress(StoreUnavailable):
            upload = self._store.writer(self._key)
            self._sink = upload.__enter__()
            self._upload = upload
        return self

    def _write(self, data: Any) -> None:
        self._keep(data)
        if self._sink is None:
            return
        try:
            self._sink.write(data)
        except StoreUnavailable as error:
            self._abandon(error)
            if self._copy is None:
                raise

    def _keep(self, data: Any) -> None:
        if self._copy is not None:
            try:
                self._copy.write(data)
            except OSError:  # no space
                self._drop_copy()
                if self._upload is None:
                    raise

    def _abandon(self, error: BaseException) -> None:
        """Discard what was sent; the store's ``writer`` raises the error again."""
        upload, self._upload, self._sink = self._upload, None, None
        if upload is not None:
            with suppress(StoreError):
                upload.__exit__(type(error), error, error.__traceback__)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Complete the object, or leave its key as it was after an error of the block."""
        try:
            if error is None:
                self._complete()
            elif self._upload is not None:
                self._upload.__exit__(kind, error, traceback)
        finally:
            self._drop_copy()

    def _complete(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            try:
                upload.__exit__(None, None, None)
            except StoreUnavailable:
                if self._copy is None:
                    raise
            else:
                return
        self._retries.call(self._send_copy)

    def _send_copy(self) -> None:
        assert self._copy is not None
        self._copy.seek(0)
        with self._store.writer(self._key) as sink:
            shutil.copyfileobj(self._copy, sink, 1 << 20)

    def _drop_copy(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None


def _as_it_is(error: Exception) -> Exception:
    return error


@runtime_checkable
class _NoticesSilence(Protocol):
    """A client that says while a call waits that the storage answers none."""

    on_silence: Callable[[float], object] | None


class RetryingStore(WrappedStore):
    """The calls of an object store's client, repeated while the storage does not answer.

    The client's calls raise StoreUnavailable where the storage gave no answer, or asked to be
    called less often. Each is repeated with exponential back-off and full jitter until the storage
    option ``retry_timeout`` is over; then StoreUnavailable is raised. A ``put_if_absent`` is sent
    once: its caller has to read before it sends again.
    """

    def __init__(
        self,
        client: Callable[[str, dict[str, Any]], Store],
        url: str,
        options: dict[str, Any],
        *,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Make the client, from the URL and the storage options; raise what that raises."""
        self._recipe = client, url, options
        given, retry_seconds, self._cache_bytes = split_options(options)
        super().__init__(client(url, given))
        self._retries = Retries(self.inner.url, retry_seconds, runtime)
        if isinstance(self.inner, _NoticesSilence):
            self.inner.on_silence = self._retries.note_silence

    def __repr__(self) -> str:
        """Show the client."""
        return f"RetryingStore({self.inner!r})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle as the client's kind, URL and options."""
        return shared, (RetryingStore, *self._recipe)

    @property
    def retry_seconds(self) -> float:
        """For how long a call is repeated."""
        return self._retries.seconds

    @property
    def cache_bytes(self) -> int:
        """How many bytes of recent chunks readers keep."""
        return self._cache_bytes

    def put_if_absent(
        self, key: str, data: bytes, *, after: str | None = None, staged: Sequence[str] = ()
    ) -> PutOutcome:
        """Create the object unless it exists; UNKNOWN at once without a clear response."""
        answer = self.inner.put_if_absent(key, data, after=after, staged=staged)
        if answer is not PutOutcome.UNKNOWN:
            self._retries.note_answer()
        return answer

    def time_ms(self) -> int:
        """Return the storage's time."""
        return self._retries.call(self.inner.time_ms)

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was last written; None if absent."""
        return self._retries.call(partial(self.inner.modified_ms, key))

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        return self._retries.call(partial(self.inner.get, key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return a part of the object."""
        return self._retries.call(partial(self.inner.get_range, key, start, end))

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects in order, None for each absent one."""
        found: list[bytes | None] = self._each(
            self.inner.get_many, lambda key: self.inner.get_many([key])[0], keys
        )
        return found

    def exists(self, key: str) -> bool:
        """Return True if the object exists now."""
        return self._retries.call(partial(self.inner.exists, key))

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Create or overwrite the object."""
        self._retries.call(partial(self.inner.put, key, data, durable=durable))

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or overwrite the objects; after a failure each is sent again."""
        self._each(self.inner.put_many, lambda one: self.inner.put_many([one]), objects)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create the objects as the client does; after a failure each is sent again."""
        self._each(self.inner.stage, lambda one: self.inner.stage([one]), objects)

    def _each(
        self, whole: Callable[[Sequence[_In]], Any], one: Callable[[_In], Any], items: Sequence[_In]
    ) -> Any:
        """Make a call for many items; after a failure repeat it for each of them by itself.

        Of many requests at a time a busy storage refuses one nearly always: if all were repeated,
        such a call would not end. What an item was answered is kept.
        """
        done: dict[int, Any] = {}
        is_first = True

        def again(number: int) -> None:
            if number not in done:
                done[number] = one(items[number])

        def attempt() -> Any:
            nonlocal is_first
            if is_first or len(items) == 1:
                is_first = False
                return whole(items)
            in_parallel(again, range(len(items)))
            return [done[number] for number in range(len(items))]

        return self._retries.call(attempt)

    @contextlib.contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        """Yield a file that the client uploads; its bytes are kept until they are stored."""
        with RepeatedUpload(self.inner, key, self._retries) as upload:
            yield upload.file

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; absent ones are ignored, so a repetition does no harm."""
        self._retries.call(partial(self.inner.delete, list(keys)))

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Delete unfinished uploads; a repetition returns those of its last attempt."""
        return self._retries.call(
            partial(self.inner.discard_unfinished, prefix, older_ms, deep=deep)
        )

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below ``prefix``."""
        return self._retries.call(partial(self.inner.folders, prefix))

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        """Return the objects below ``prefix``."""
        return self._retries.call(partial(self.inner.list, prefix, after=after, before=before))

    def open(self, key: str) -> pa.NativeFile:
        """Open the object; reads of a large one are repeated as well."""
        return repeated(self._retries.call(partial(self.inner.open, key)), self._retries)

    def make_durable(self, prefix: str) -> None:
        """Make the objects of a folder durable."""
        self.inner.make_durable(prefix)
