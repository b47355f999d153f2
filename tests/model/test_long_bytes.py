"""A large file goes through a byte stream in bounded memory, however long it is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager

MIB = 1 << 20
SIZE_MIB = 2_048 if os.environ.get("PRAVEGA_SPARK_TESTS") == "long" else 256
COPY = textwrap.dedent("""
    import hashlib, resource, sys
    from pravega_spark import StreamManager
    root, size = sys.argv[1], int(sys.argv[2])
    manager = StreamManager(root)
    written, read = hashlib.blake2b(), hashlib.blake2b()
    with manager.create_byte_writer("s/bytes") as writer:
        for number in range(size):
            piece = number.to_bytes(8, "big") * (1 << 17)
            written.update(piece)
            writer.write(piece)
        writer.close_and_seal()
    with manager.create_byte_reader("s/bytes") as reader:
        while piece := reader.read(1 << 20):
            read.update(piece)
        assert reader.tell() == size << 20
    assert read.digest() == written.digest()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
""")


def peak_mib(root: Path, size_mib: int) -> int:
    """Return the memory of a process that writes and reads so much."""
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/bytes", StreamConfiguration(ScalingPolicy.fixed(1)))
    command = [sys.executable, "-c", COPY, str(root), str(size_mib)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


@pytest.mark.long
@pytest.mark.slow
def test_a_file_of_2_gb_needs_no_more_memory_than_the_buffers(tmp_path: Path) -> None:
    base = peak_mib(tmp_path / "base", 1)
    assert peak_mib(tmp_path / "large", SIZE_MIB) - base <= 240
