"""Streaming queries as readers of reader groups."""
