from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.chunks import arrow_arrays

_READ_AND_WRITE = """
import sys
import pyarrow as pa
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.writer import encode, stage
from pravega_spark.engine.chunks.reader import read
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.store import open_store
from pravega_spark.engine.chunks.arrow_arrays import byte_ends, constant
from pravega_spark.values.segments import KeyRange, Segment

store = open_store(sys.argv[1])
text = constant("key", pa.string(), 10)
times = constant(1_700_000_000_000_000, pa.timestamp("us", "UTC"), 10)
events = pa.table({"routing_key": text, "timestamp": times, "event": text.cast(pa.binary())})
router = Router([Segment(0, KeyRange(0.0, 0.5)), Segment(1, KeyRange(0.5, 1.0))])
((segment_id, part),) = split(events, router)
(staged,) = stage(store, "t", "v0", segment_id, part, name="a")
ref = ChunkRef(
    staged.path, segment_id, 0, staged.rows, staged.size, staged.event_bytes, 0,
    staged.min_timestamp_us, staged.max_timestamp_us,
)
assert sum(batch.num_rows for batch in read(store, "t", ref, 0, 10)) == 10
print("pandas" in sys.modules)
"""


def test_chunks_are_written_and_read_without_pandas(tmp_path: object) -> None:
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", _READ_AND_WRITE, str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("length", [0, 1, 9])
def test_numbers_is_the_inverse_of_column(length: int) -> None:
    values = np.arange(length, dtype=np.int64)
    array = arrow_arrays.column(values, pa.int64())
    assert array.equals(pa.array(values))
    assert arrow_arrays.numbers(array).tolist() == values.tolist()
    assert arrow_arrays.numbers(array[1:]).tolist() == values[1:].tolist()


def test_chunks_are_joined() -> None:
    chunked = pa.chunked_array([[1, 2], [], [3]], pa.int32())
    assert arrow_arrays.numbers(chunked).tolist() == [1, 2, 3]
    assert arrow_arrays.numbers(pa.chunked_array([], pa.int32())).tolist() == []


def test_column_of_a_strided_view_has_its_values() -> None:
    assert arrow_arrays.column(np.arange(6)[::2], pa.int64()).to_pylist() == [0, 2, 4]


@pytest.mark.parametrize("length", [0, 1, 8, 9])
def test_mask_selects_the_rows_that_are_true(length: int) -> None:
    chosen = np.arange(length) % 3 == 0
    assert arrow_arrays.mask(chosen).to_pylist() == chosen.tolist()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("söme/text", pa.string()),
        ("", pa.string()),
        (-7, pa.int32()),
        (1 << 40, pa.int64()),
        (1_700_000_000_000_000, pa.timestamp("us", "UTC")),
    ],
)
@pytest.mark.parametrize("rows", [0, 3])
def test_constant_is_repeated(value: str | int, kind: pa.DataType, rows: int) -> None:
    array = arrow_arrays.constant(value, kind, rows)
    array.validate(full=True)
    scalar = pa.scalar(value, pa.int64() if isinstance(value, int) else kind).cast(kind)
    assert array.equals(pa.repeat(scalar, rows))


_FORK_AMID_FIRST_USE = """
import os, signal, sys, threading
from pravega_spark.engine.chunks import arrow_arrays
from pravega_spark.engine.chunks.chunk import encode_events
amid, go_on = threading.Event(), threading.Event()
real = arrow_arrays.pa.array
class Arrow:
    def __getattr__(self, name):
        return getattr(arrow, name)
    def array(self, *values):
        amid.set()
        go_on.wait({wait})
        return real(*values)
arrow, arrow_arrays.pa = arrow_arrays.pa, Arrow()
first = threading.Thread(target=encode_events, args=(["k"], [1], [b"e"]))
first.start()
amid.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    arrow_arrays.pa = arrow
    encode_events(["k"], [1], [b"e"])
    os._exit(0 if arrow_arrays.ready._done else 3)
first.join()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_process_does_not_fork_during_arrows_first_use() -> None:
    script = _FORK_AMID_FIRST_USE.replace("{wait}", "0.2")
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "0\n"


_FORK_AT_ONCE = """
import os, signal, sys
from pravega_spark import StreamManager
manager = StreamManager(sys.argv[1])
writer = manager.create_writer("s/a")
first = writer.write_event(b"mother", "k")
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    with StreamManager(sys.argv[1]).create_writer("s/a") as own:
        own.write_event(b"child", "k").result()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
first.result()
"""


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_child_that_was_forked_during_its_parents_first_commit_writes(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/a")
    command = [sys.executable, "-c", _FORK_AT_ONCE, root]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "0\n"
    assert sorted(event.data for event in manager.read("s/a")) == [b"child", b"mother"]


def test_byte_ends_of_slices_and_several_parts() -> None:
    one = pa.array([b"12345", b"", b"123", b"1" * 100], pa.binary())
    two = pa.array([b"12", b"1"], pa.binary())
    found = arrow_arrays.byte_ends(pa.chunked_array([one[1:], one[:0], two, one[:2]]))
    assert found.dtype == np.int64
    assert found.tolist() == [0, 3, 103, 105, 106, 111, 111]
    assert arrow_arrays.byte_ends(pa.chunked_array([], pa.binary())).tolist() == []
    assert arrow_arrays.byte_ends(pa.chunked_array([one[4:]])).tolist() == []


_FORK = """
import os
import sys
import pyarrow.compute
from pravega_spark.engine.chunks import arrow_arrays

calls = []
call_function = pyarrow.compute.call_function

def recorded(name, *arguments, **options):
    calls.append((os.getpid(), name))
    return call_function(name, *arguments, **options)

pyarrow.compute.call_function = recorded
parent = os.getpid()
for _ in range(2):
    child = os.fork()
    if child == 0:
        os._exit(0 if (parent, "dictionary_encode") in calls else 1)
    assert os.waitpid(child, 0)[1] == 0
print(*(name for _, name in calls), "pandas" in sys.modules)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_process_ends_its_first_computation_before_it_forks() -> None:
    """Else a child waits for ever if another thread of the parent was within it."""
    command = [sys.executable, "-c", _FORK]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "dictionary_encode" in said
    assert len(set(said)) == len(said), "only before the first fork"
    assert said[-1] == "False"


_FORK_BEFORE_ANY_ARRAY = """
import os
import pyarrow as pa
from pravega_spark.engine.chunks import arrow_arrays
before = pa.default_memory_pool().max_memory()
child = os.fork()
if child == 0:
    os._exit(0 if pa.default_memory_pool().max_memory() > before else 1)
print(before, os.waitpid(child, 0)[1])
"""


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_process_ends_its_first_allocation_before_it_forks() -> None:
    """Else a child waits for ever if another thread of the parent was within it."""
    command = [sys.executable, "-c", _FORK_BEFORE_ANY_ARRAY]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said == "0 0\n"
