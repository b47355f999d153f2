"""The data source ``pravega_kvt``: key-value tables, their changes, and writes to them."""
