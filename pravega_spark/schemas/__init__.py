"""Schemas of typed streams: which types columns may have, and how values of other forms fit them.

These modules know Arrow's types and values, and nothing of streams.
``pravega_spark.config.stream_schema.StreamSchema`` is their front.
"""
