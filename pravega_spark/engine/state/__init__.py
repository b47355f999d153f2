"""State tables: rows changed by compare-and-set, what processes share, the index of a scope."""
