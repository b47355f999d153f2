"""One table's Delta log: commits, snapshots, live files, checkpoints, garbage collection."""
