"""Byte streams: a stream of one segment, written and read as one sequence of bytes."""
