"""Kafka, Pravega, Delta, Paimon, DuckLake and plain Parquet beside this project, in one run."""
