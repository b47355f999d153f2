"""An upload whose bytes are kept on the local disk, so that it can be sent again."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from pravega_spark.engine.store.base import Store
from pravega_spark.engine.store.object_sink import ObjectSink
from pravega_spark.engine.store.retries import Retries
from pravega_spark.errors import StoreError, StoreUnavailable

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
        """Begin the upload."""
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
