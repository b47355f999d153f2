"""State tables: rows changed by compare-and-set, shared states, and the index of a scope."""
