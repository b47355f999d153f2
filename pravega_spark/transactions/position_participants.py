"""What a joint transaction asks of the reader groups whose positions it acknowledges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class ReaderParticipant(Protocol):
    """A reader in a joint transaction: everything that it has handed out is acknowledged."""

    @property
    def group(self) -> str:
        """The name of the group."""

    @property
    def reader_id(self) -> str:
        """The name of the reader in the group."""

    @property
    def url(self) -> str:
        """The root of the group."""

    def begin(self, transaction: str, /) -> None:
        """Tie the reader to a transaction, after its last one.

        Raises IllegalState if that has not ended, ReinitializationRequired, ObjectClosed.
        """

    def prepare(self) -> None:
        """Prepare the positions. Raises TxnFailed if the reader has lost them."""

    def carry_out(self, transaction: str, /) -> None:
        """Record a transaction's positions after the decision to commit; again does nothing."""

    def untie(self, transaction: str, /) -> None:
        """Take back :meth:`begin`; the reader goes on where it is."""

    def end(self, transaction: str, /, *, is_committed: bool) -> None:
        """Untie the reader; after an abort it goes back. Makes no storage call."""


class PositionParticipants(Protocol):
    """The prepared positions of a root's groups, as any process finds them."""

    def prepared_readers(
        self, transaction: str, groups: Iterable[str], /
    ) -> frozenset[tuple[str, str]]:
        """Return the readers, each with its group, whose positions the transaction has prepared."""

    def carry_out(self, transaction: str, group: str, /) -> None:
        """Record the positions of a decided transaction; nothing happens if that was done."""
