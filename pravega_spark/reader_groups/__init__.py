"""Reader groups: readers that share streams, each segment read by one of them at a time."""
