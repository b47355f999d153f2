"""Chunks: the Parquet files that hold events, and the routing of events to them."""
