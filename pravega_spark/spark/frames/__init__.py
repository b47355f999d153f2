"""Frames without the data source, for Spark 3.5, Spark Connect and serverless compute.

``reading`` and ``writing`` call the planners, the tasks and the commits of ``format("pravega")``
through ``mapInArrow``; ``range_loop`` is the loop of a streaming query (``ranges``), and
``range_log`` its checkpoint. What users import is imported without Spark.
"""
