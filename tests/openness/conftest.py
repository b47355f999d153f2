from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pravega_spark.spark.session import session
from tests.harness.story import Story, create_story

_LAUNCH = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """A Delta session with its own settings, in the JVM that already runs, if any."""
    made = session(**_LAUNCH).newSession()
    made.sparkContext.setLogLevel("OFF")
    for key, value in _SETTINGS.items():
        made.conf.set(key, value)
    return made


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The stream that all tests read and no test changes; to change it use ``copy_story``."""
    return create_story(tmp_path_factory.mktemp("openness") / "root")
