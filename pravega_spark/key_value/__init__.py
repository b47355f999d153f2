"""Key-value tables: a change log, which is a stream, and a folded table of one row a key."""
