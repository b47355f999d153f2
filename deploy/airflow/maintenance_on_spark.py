"""Maintenance every five minutes on a Spark cluster, by spark-submit.

Needs apache-airflow-providers-apache-spark and the connection ``spark_default``. The cluster's
nodes have the package with the extra ``jobs`` in the environment below.
"""

from datetime import datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

with DAG(
    "pravega_spark_maintenance_on_spark",
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # only saves work: two runs at once do no harm
):
    SparkSubmitOperator(
        task_id="maintenance",
        application="/opt/pravega_spark/jobs/maintenance.py",
        application_args=["--root", "s3://bucket/streams"],
        conf={"spark.pyspark.python": "/opt/pravega_spark/.venv/bin/python"},
        execution_timeout=timedelta(hours=1),
    )
