"""Maintenance jobs over many streams, run as ``python -m pravega_spark.jobs.retention``.

They need the extra ``jobs``. Spark and rich are imported only when a job starts its rounds.
"""
