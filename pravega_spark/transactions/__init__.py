"""Transactions: events that appear all at once in every segment, or never."""
