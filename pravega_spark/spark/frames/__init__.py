"""Frames without the data source, for Spark 3.5, Spark Connect and serverless compute.

``reading`` and ``writing`` call the planners, the tasks and the commits of ``format("pravega")``
through ``mapInArrow``; ``ranges`` is the loop of a streaming query, and ``range_log`` its
checkpoint.
"""
