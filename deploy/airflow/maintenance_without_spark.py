"""Maintenance every five minutes on Airflow's worker, without Spark and Java.

The worker has the package in an environment of its own, since Airflow pins its dependencies.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "pravega_spark_maintenance_without_spark",
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # only saves work: two runs at once do no harm
):
    BashOperator(
        task_id="maintain",
        bash_command="/opt/pravega_spark/.venv/bin/pravega-spark maintain --root /data/streams",
        execution_timeout=timedelta(hours=1),
    )
