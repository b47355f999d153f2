"""Transactions: events of several segments that become visible in one commit, or never."""
