"""Peers that are libraries: nothing runs while nobody uses them."""

from __future__ import annotations

from bench.peers.peer import Found, Limit, Peer


class Library(Peer):
    def idle(self, limit: Limit) -> Found:
        return {"cpu": 0.0, "memory": 0.0}
