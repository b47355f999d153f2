#!/bin/sh
# What tests give Spark as its Python: tests/harness/warm_workers.py says why.
exec "${PRAVEGA_SPARK_TEST_PYTHON:-python3}" -ISs "${0%.sh}_client.py" "$@"
