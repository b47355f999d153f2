from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pravega_spark.spark.session import session
from tests.harness.story import Story, tell

_LAUNCH = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """A session with Delta of its own settings, in the JVM that runs already if one does."""
    made = session(**_LAUNCH).newSession()
    made.sparkContext.setLogLevel("OFF")
    for key, value in _SETTINGS.items():
        made.conf.set(key, value)
    return made


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The stream that all tests look at and none changes; ``move`` it to change it."""
    return tell(tmp_path_factory.mktemp("openness") / "root")
