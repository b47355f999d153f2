"""Maintenance jobs over many streams, run as ``python -m pravega_spark.jobs.retention``.

They need the extra ``jobs``. Spark and rich are imported only when a job starts its rounds.
"""

import sys

if sys.argv[:1] == ["-m"]:  # Python is about to import a job, to run it as the program
    from pravega_spark.jobs import early_signals

    early_signals.listen()
