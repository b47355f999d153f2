"""Schemas of typed streams: which types columns may have, and how values of other forms fit them.

These modules know Arrow's types and values, and nothing of streams. Each language of schemas is a
module that turns its words into Arrow's types, and Delta and SQL also back: their words differ in
what they can say, so that one table of all six would have more gaps than types.
``pravega_spark.config.stream_schema.StreamSchema`` is their front.
"""
