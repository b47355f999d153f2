"""Spark writes and reads encrypted streams, whose keys its workers get from the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark import EncryptionPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.key_management import KMS_VARIABLE
from tests.harness import encrypting_app, file_kms
from tests.harness.file_kms import MasterKeys

pytestmark = pytest.mark.extended


@pytest.mark.versions
@pytest.mark.spark
def test_workers_encrypt_and_decrypt_and_leave_nothing_plain(tmp_path: Path) -> None:
    keys, root = MasterKeys(tmp_path / "keys.json"), tmp_path / "root"
    manager = StreamManager(root)
    manager.create_scope("s")
    for name, key in (("s/a", "first"), ("s/b", "second")):
        manager.create_stream(name, StreamConfiguration(encryption=EncryptionPolicy(key)))
    project = Path(encrypting_app.__file__).parents[2]
    variables = {KMS_VARIABLE: file_kms.FACTORY, file_kms.VARIABLE: str(keys.path)}
    done = subprocess.run(
        [sys.executable, encrypting_app.__file__, str(root)],
        env={**os.environ, **variables, "PYTHONPATH": str(project)},
        capture_output=True,
        timeout=300,
        check=True,
    )
    events = json.loads(done.stdout.splitlines()[-1])["events"]
    assert events == sorted(f"MARKER{n}" for n in range(40))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if b"MARKER" in path.read_bytes()] == []
