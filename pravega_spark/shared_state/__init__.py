"""Shared state: a stream as a log of revisions, and state that processes keep in step by it."""
