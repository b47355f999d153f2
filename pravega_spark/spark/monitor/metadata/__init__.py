"""Metadata frames: tables about streams, transactions and reader groups, one module for each."""
