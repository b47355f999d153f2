"""The older Spark of ``make test`` passes the short part of the contract, in its own processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.harness.spark_environments import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def test_short_part_of_the_contract_passes() -> None:
    """It runs beside other tests, so that it costs no time of its own."""
    command = [sys.executable, "-m", "tests.versions", "--short", "--workers", "1"]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
