"""Streaming queries as members of reader groups."""
