"""Byte streams keep the contract of raw files: the same program over a real file is the model."""

from __future__ import annotations

import array
import bz2
import gzip
import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from pravega_spark.errors import InvalidInput, SegmentTruncated
from pravega_spark.manager import StreamManager

S = "s/file"
DATA = bytes(range(256)) * 40
Call = Callable[[Any], Any]


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    made = StreamManager(tmp_path / "root")
    made.create_scope("s")
    made.create_stream(S)
    return made


def reader_of(manager: StreamManager) -> Any:
    return manager.create_byte_reader(S, follow=False)


def outcome(file: Any, calls: list[Call]) -> list[Any]:
    """Return what each call returns, or the base classes of its error that files raise."""
    found = []
    for call in calls:
        try:
            found.append(call(file))
        except (io.UnsupportedOperation, ValueError, TypeError) as error:
            kinds = io.UnsupportedOperation, ValueError, TypeError
            found.append(next(kind for kind in kinds if isinstance(error, kind)))
    return found


def filled(file: Any, buffer: Any) -> tuple[int, bytes]:
    return file.readinto(buffer), bytes(buffer)


READS: list[Call] = [
    lambda f: (f.readable(), f.writable(), f.seekable(), f.closed),
    lambda f: f.read(7),
    lambda f: f.tell(),
    lambda f: filled(f, bytearray(9)),
    lambda f: filled(f, array.array("i", [0] * 4)),
    lambda f: filled(f, memoryview(bytearray(10))[2:7]),
    lambda f: f.readinto(np.zeros((2, 3), np.uint8)),
    lambda f: f.readinto(np.zeros((0, 3), np.uint8)),
    lambda f: f.readinto(bytearray()),
    lambda f: f.readinto(b"read only"),
    lambda f: f.read(0),
    lambda f: (f.seek(np.int64(5)), f.read(np.int64(3))),
    lambda f: (f.seek(-20, os.SEEK_CUR), f.tell()) if f.tell() >= 20 else None,
    lambda f: (f.seek(-5, os.SEEK_END), f.read()),
    lambda f: (f.read(), f.read(5), f.readall(), f.readinto(bytearray(3))),
    lambda f: (f.seek(7, os.SEEK_END), f.tell(), f.read(3), f.read()),
    lambda f: (f.seek(3), f.readline(), f.readlines(30)),
    lambda f: (f.seek(0), sum(map(len, f))),
    lambda f: (f.seek(0), f.readall() == DATA),
    lambda f: f.write(b"x"),
    lambda f: f.truncate(),
    lambda f: f.isatty(),
    lambda f: f.flush(),
    lambda f: f.close(),
    lambda f: f.close(),
    lambda f: f.closed,
    *[
        lambda f, name=name: getattr(f, name)()
        for name in ("read", "readall", "readline", "tell", "readable", "seekable", "writable")
    ],
    lambda f: f.seek(0),
    lambda f: f.readinto(bytearray(1)),
    lambda f: f.__enter__(),
]

WRITES: list[Call] = [
    lambda f: (f.readable(), f.writable(), f.closed),
    lambda f: f.write(b"abc"),
    lambda f: f.write(bytearray(b"de")),
    lambda f: f.write(np.arange(3, dtype=np.int16)),
    lambda f: f.write(b""),
    lambda f: f.writelines([b"x", memoryview(b"yz")]),
    lambda f: f.tell(),
    lambda f: f.write("text"),
    lambda f: f.write(None),
    lambda f: f.read(),
    lambda f: f.read(3),
    lambda f: f.readinto(bytearray(3)),
    lambda f: f.readline(),
    lambda f: f.flush(),
    lambda f: f.close(),
    lambda f: f.close(),
    lambda f: f.closed,
    *[lambda f, name=name: getattr(f, name)() for name in ("tell", "flush", "writable", "read")],
    lambda f: f.write(b""),
    lambda f: f.__enter__(),
]


def test_every_read_has_the_outcome_of_a_files(manager: StreamManager, tmp_path: Path) -> None:
    with manager.create_byte_writer(S) as writer:
        writer.write(DATA)
    path = tmp_path / "plain"
    path.write_bytes(DATA)
    plain = path.open("rb", buffering=0)
    expected, found = outcome(plain, READS), outcome(reader_of(manager), READS)
    for number, pair in enumerate(zip(expected, found, strict=True)):
        assert pair[0] == pair[1], f"call {number}"


def test_every_write_has_the_outcome_of_a_files(manager: StreamManager, tmp_path: Path) -> None:
    path = tmp_path / "plain"
    plain = path.open("wb", buffering=0)
    expected, found = outcome(plain, WRITES), outcome(manager.create_byte_writer(S), WRITES)
    for number, pair in enumerate(zip(expected, found, strict=True)):
        assert pair[0] == pair[1], f"call {number}"
    assert reader_of(manager).read() == path.read_bytes()


def test_refusals_name_the_stream_and_the_way_on(manager: StreamManager) -> None:
    with manager.create_byte_writer(S) as writer:
        with pytest.raises(io.UnsupportedOperation, match=r"create_byte_reader\('s/file'\)"):
            writer.read(1)
        with pytest.raises(io.UnsupportedOperation, match="cannot read"):
            writer.readall()
        with pytest.raises(io.UnsupportedOperation, match="seek"):
            writer.seek(0)
    with reader_of(manager) as reader:
        with pytest.raises(io.UnsupportedOperation, match=r"create_byte_writer\('s/file'\)"):
            reader.write(b"x")
        with pytest.raises(InvalidInput, match="negative"):
            reader.seek(-1)
        with pytest.raises(InvalidInput, match="size of a read must be a whole number"):
            reader.read(1.5)
        with pytest.raises(InvalidInput, match="whole number of at least 0, got -1"):
            reader.skip(-1)


def _tar(mode: str) -> tuple[Call, Call]:
    def write(file: Any) -> None:
        with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
            for name in ("a", "b"):
                member = tarfile.TarInfo(name)
                member.size = len(DATA)
                tar.addfile(member, io.BytesIO(DATA))

    def read(file: Any) -> bool:
        with tarfile.open(fileobj=file, mode=mode.replace("w", "r")) as tar:  # type: ignore[call-overload]
            return [tar.extractfile(member).read() for member in tar] == [DATA, DATA]

    return write, read


def _zip(file: Any) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", DATA)
        archive.writestr("b", b"b")


def _packed(module: Any) -> tuple[Call, Call]:
    def write(file: Any) -> None:
        with module.open(file, "wb") as packed:
            packed.write(DATA)

    def read(file: Any) -> bool:
        with module.open(file, "rb") as packed:
            return bool(packed.read() == DATA)

    return write, read


FRAME = pd.DataFrame({"n": range(500), "text": [f"é{n}" for n in range(500)]})
PROGRAMS: dict[str, tuple[Call, Call]] = {
    "tar": _tar("w:"),
    "tar stream": _tar("w|"),
    "tar gz": _tar("w:gz"),
    "tar gz stream": _tar("w|gz"),
    "zip": (_zip, lambda f: zipfile.ZipFile(f).read("a") == DATA),
    "gzip": _packed(gzip),
    "bz2": _packed(bz2),
    "csv": (lambda f: FRAME.to_csv(f, index=False), lambda f: pd.read_csv(f).equals(FRAME)),
    "csv gzip": (
        lambda f: FRAME.to_csv(f, index=False, compression="gzip"),
        lambda f: pd.read_csv(f, compression="gzip").equals(FRAME),
    ),
    "json lines": (
        lambda f: FRAME.to_json(f, orient="records", lines=True),
        lambda f: pd.read_json(f, lines=True).equals(FRAME),
    ),
    "parquet": (FRAME.to_parquet, lambda f: pd.read_parquet(f).equals(FRAME)),
    "pickle": (lambda f: pickle.dump([DATA], f, 5), lambda f: pickle.load(f) == [DATA]),
    "numpy": (lambda f: np.savez(f, a=np.arange(9)), lambda f: np.load(f)["a"].sum() == 36),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_that_take_files_take_byte_streams(manager: StreamManager, program: str) -> None:
    write, read = PROGRAMS[program]
    with manager.create_byte_writer(S) as writer:
        write(writer)
        assert not writer.closed
    with reader_of(manager) as reader:
        assert read(reader)


def test_a_buffered_reader_at_an_open_tail_gets_what_is_there_and_then_none(
    manager: StreamManager,
) -> None:
    with manager.create_byte_writer(S) as writer:
        writer.write(b"a\nb\n")
    buffered = io.BufferedReader(manager.create_byte_reader(S, timeout=0))
    assert buffered.read() == b"a\nb\n"
    assert buffered.read(1) is None
    lines = io.TextIOWrapper(io.BufferedReader(manager.create_byte_reader(S, timeout=0)))
    assert list(lines) == ["a\n", "b\n"]
    raw = manager.create_byte_reader(S, timeout=0)
    assert raw.seek(2, os.SEEK_END) == 6
    assert raw.read(1) is None
    with manager.create_byte_writer(S) as writer:
        writer.write(b"c\nd\n")
    assert raw.read() == b"d\n"
    assert buffered.read() == b"c\nd\n"


def test_every_kind_of_read_below_the_head_says_where_it_is(manager: StreamManager) -> None:
    with manager.create_byte_writer(S) as writer:
        writer.write(DATA)
        writer.flush()
        writer.truncate_before(1_000)
    reader = reader_of(manager)
    for call in (
        lambda: reader.read(1),
        lambda: reader.readinto(bytearray(5)),
        reader.readall,
        reader.readline,
    ):
        reader.seek(999)
        with pytest.raises(SegmentTruncated) as raised:
            call()
        assert raised.value.head_offset == 1_000
        assert reader.tell() == 999
    reader.seek(raised.value.head_offset)
    assert reader.read() == DATA[1_000:]
