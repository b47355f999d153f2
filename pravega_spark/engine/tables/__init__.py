"""State tables: rows under compare-and-set, a state that many processes share, a scope's index."""
