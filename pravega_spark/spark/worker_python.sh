#!/bin/sh
# Runs a Python process of Spark by the interpreter of the driver, with the PySpark that is installed.
#
# Spark puts its pyspark.zip, which is the same PySpark without compiled code, and one of its jars
# before all else on the path. Without them the process imports PySpark in a third of the time.
# pravega_spark/spark/worker_python.py says when this is used.

set -f
IFS=:
kept=
for entry in $PYTHONPATH; do
    case $entry in
        "$SPARK_HOME"/python/lib/*.zip | "$SPARK_HOME"/jars/*.jar) ;;
        *) kept=$kept:$entry ;;
    esac
done
export PYTHONPATH="${kept#:}"
exec "${PRAVEGA_SPARK_WORKER_PYTHON:-python3}" "$@"
