"""What all tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.harness.s3_server import S3Server, start_s3

# Without it Spark's workers run whatever `python3` is first on the path.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

# Time limits are pytest-timeout's: on a busy machine a deadline for each example only flakes.
settings.register_profile("pravega_spark", deadline=None)
settings.load_profile("pravega_spark")


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server with one bucket, ``s3.bucket``, shared by all tests of the session."""
    with start_s3() as server:
        yield server
