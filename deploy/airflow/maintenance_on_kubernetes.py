"""Maintenance every five minutes in a pod of Kubernetes, with Spark in the pod.

Needs apache-airflow-providers-cncf-kubernetes and the connection ``kubernetes_default``. The image
is the target "jobs" of deploy/docker/Dockerfile.
"""

from datetime import datetime, timedelta

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG
from kubernetes.client import models

with DAG(
    "pravega_spark_maintenance_on_kubernetes",
    schedule="*/5 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # only saves work: two runs at once do no harm
):
    KubernetesPodOperator(
        task_id="maintenance",
        name="pravega-spark-maintenance",
        image="pravega-spark:0.2.0-jobs",
        cmds=["pravega-spark-maintenance"],
        arguments=["--root", "s3://bucket/streams"],
        env_from=[
            models.V1EnvFromSource(secret_ref=models.V1SecretEnvSource(name="pravega-spark-s3"))
        ],
        execution_timeout=timedelta(hours=1),
    )
