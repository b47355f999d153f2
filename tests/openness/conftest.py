from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.harness.local_spark import local_session
from tests.harness.story import Story, create_story

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """A Delta session with its own settings, in the JVM that already runs, if any."""
    made = local_session(_SETTINGS)
    made.sparkContext.setLogLevel("OFF")
    return made


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The stream that all tests read and no test changes; to change it use ``copy_story``."""
    return create_story(tmp_path_factory.mktemp("openness") / "root")
