"""Books of the bank: at every version the total is constant and every transfer is complete."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.harness.bank import ACCOUNTS, DECOY, OPENING_BALANCE, Transfer

Halves = list[tuple[str, int]]


@dataclass
class Books:
    """The balances and transfers that follow from the events read so far."""

    balance: dict[str, int] = field(default_factory=dict)
    transfers: dict[tuple[str, int], Halves] = field(default_factory=dict)
    _half: set[tuple[str, int]] = field(default_factory=set)

    def enter(self, events: Iterable[tuple[str, bytes]]) -> None:
        """Enter events, each with its account."""
        for account, data in events:
            name, number, amount = json.loads(data)
            assert name != DECOY, "an event of an aborted transaction is visible"
            self.balance[account] = self.balance.get(account, 0) + amount
            if name == "fund":
                continue
            halves = self.transfers.setdefault((name, number), [])
            halves.append((account, amount))
            assert len(halves) <= 2, f"transfer {number} of {name} exists twice: {halves}"
            (self._half.add if len(halves) == 1 else self._half.remove)((name, number))

    def check(self, version: str) -> None:
        """Check that the version holds only complete transfers and the constant total."""
        assert not self._half, f"{version}: half of the transfers {sorted(self._half)[:8]}"
        total = sum(self.balance.values())
        assert total in (0, len(ACCOUNTS) * OPENING_BALANCE), f"{version}: the total is {total}"
        assert total or not self.balance

    def check_end(self, seed: str, tellers: Iterable[str], count: int) -> None:
        """Check that every transfer of every teller was done once, with its accounts and amount."""
        wanted = {
            (name, number): Transfer.of(seed, name, number)
            for name in tellers
            for number in range(1, count + 1)
        }
        assert self.transfers.keys() == wanted.keys()
        for key, transfer in wanted.items():
            halves = [(transfer.source, -transfer.amount), (transfer.target, transfer.amount)]
            assert sorted(self.transfers[key]) == sorted(halves), key
