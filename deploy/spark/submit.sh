#!/bin/sh
# Starts a job by spark-submit: deploy/spark/submit.sh maintenance --root s3://bucket/streams
#
# SPARK_MASTER      where Spark runs, such as yarn or k8s://https://host:6443  [local[*]]
# SPARK_ARGUMENTS   more of spark-submit's options, separated by spaces. An environment that is sent
#                   along, made by venv-pack or conda-pack, has the package for driver and executors:
#                   --archives env.tar.gz#env --conf spark.pyspark.python=./env/bin/python
# The jobs need no jar.
set -eu
job=$1
shift
# The options are split at spaces on purpose.
# shellcheck disable=SC2086
exec spark-submit --master "${SPARK_MASTER:-local[*]}" --name "pravega-$job" --conf spark.log.level=ERROR \
  ${SPARK_ARGUMENTS:-} "$(dirname "$0")/../../jobs/$job.py" "$@"
