"""Reads by Spark's own Parquet reader, of the files and offsets that our log names; and SQL."""
