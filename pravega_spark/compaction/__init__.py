"""Compaction: merges small neighbouring chunks of a segment, and rewrites the chunk at the head."""
