"""Errors are data: each stands in the branch that says what to do, and its fields travel along."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from pravega_spark import errors
from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.errors import PravegaSparkError
from pravega_spark.manager import StreamManager
from pravega_spark.values.segments import EventPointer, SegmentRange, StreamCut

CLASSES = [
    found
    for found in vars(errors).values()
    if inspect.isclass(found) and issubclass(found, PravegaSparkError)
]
BRANCHES = {
    errors.InvalidInput,
    errors.NotFound,
    errors.IllegalState,
    errors.TryAgain,
    errors.Reopen,
    errors.TruncatedData,
    errors.Damaged,
    errors.StoreError,
}
CUT = StreamCut("s/t", 1, {0: 5})
RANGE = SegmentRange("s/t", 1, 0, 3, 5)
SAMPLES: dict[str, Any] = {
    "int | None": 7,
    "str | None": "s/t",
    "bytes | str | int | None": b"key",
    "tuple[str, ...]": ("s/g", "s/h"),
    "tuple[Any, ...]": (RANGE, TransactionStatus.COMMITTED),
    "Any": (CUT, EventPointer("s/t", 1, 0, 4), StreamConfiguration(tags={"eu"})),
}
"""By type. Fields that hold values of streams are ``Any``: those stand above errors."""


def fields_of(kind: type[PravegaSparkError]) -> dict[str, str]:
    return {f.name: str(f.type) for f in dataclasses.fields(kind) if f.name != "message"}


def named_in_docs() -> dict[str, str]:
    """The tree of the module's docstring: each class, with the one that it is drawn under."""
    assert errors.__doc__ is not None
    parents, path = {}, ["PravegaSparkError"]
    for indent, name in re.findall(r"^    ([│├└─ ]+)(\w+)", errors.__doc__, re.MULTILINE):
        depth = len(indent) // 4
        path[depth:] = [name]
        parents[name] = path[depth - 1]
    return parents


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_pickle_and_copy_keep_type_message_and_fields(kind: type[PravegaSparkError]) -> None:
    fields = {name: SAMPLES[text] for name, text in fields_of(kind).items()}
    error = kind("stream s/t: why, and what next.", **fields)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert str(again) == again.message == "stream s/t: why, and what next."
        assert {name: getattr(again, name) for name in fields} == fields


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_fields_are_optional_and_given_by_name(kind: type[PravegaSparkError]) -> None:
    error = kind("why")
    assert {getattr(error, name) for name in fields_of(kind)} <= {None, ()}
    assert (str(error), error.args, repr(error)) == ("why", ("why",), f"{kind.__name__}('why')")
    with pytest.raises(TypeError):
        kind("why", 1)  # type: ignore[call-arg]


def test_docstring_draws_the_tree_as_it_is() -> None:
    parents = {kind.__name__: kind.__bases__[0].__name__ for kind in CLASSES}
    del parents["PravegaSparkError"]
    assert named_in_docs() == parents
    assert {kind for kind in CLASSES if kind.__bases__[0] is PravegaSparkError} == BRANCHES


def test_every_class_says_what_it_means() -> None:
    assert [kind for kind in CLASSES if not (kind.__doc__ or "").rstrip().endswith(".")] == []


def test_caller_acts_on_fields_without_reading_texts(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    with pytest.raises(errors.NoSuchStream) as missing:
        manager.stream_info("s/t")
    assert missing.value.stream == "s/t"
    manager.create_stream("s/t")
    with manager.create_writer("s/t", "w") as writer:
        writer.write_events([b"a", b"b"])
    manager.create_writer("s/t", "w").close()
    manager.truncate_stream("s/t", "s/t@1:0#0=1")
    with pytest.raises(errors.TruncatedData) as truncated:
        list(manager.read("s/t", "s/t@1:0#0=0"))
    assert truncated.value.head == manager.head("s/t")
    assert truncated.value.lost == (SegmentRange("s/t", 1, 0, 0, 1),)
    assert truncated.value.head is not None
    assert [event.data for event in manager.read("s/t", truncated.value.head)] == [b"b"]


@pytest.mark.parametrize(
    ("path", "stream"),
    [
        ("file:///data/s/t/events", "s/t"),
        ("s3://bucket/root/s/t/events/data/v7/x.parquet", "s/t"),
        ("memory://s/t/events/_delta_log/00000000000000000001.json", "s/t"),
        ("/data/s/t/metadata/data/v0/segment-1.parquet", "s/t"),
        ("/data/a/b/events/s/_scope", None),
        ("/data/a/b/events/s/_reader_groups/g/data/v0/1.parquet", None),
        ("/data/a/b/events/s/t/events/data/v7/x.parquet", "s/t"),
        ("/data/_settings", None),
        (None, None),
    ],
)
def test_damage_names_the_stream_of_its_path(path: str | None, stream: str | None) -> None:
    for error in (errors.CorruptLog("x", path=path), errors.CorruptChunk("x", path=path)):
        assert (error.stream, error.path) == (stream, path)
        assert pickle.loads(pickle.dumps(error)).stream == stream
    assert errors.DataLoss("x", path=path, stream="a/b").stream == "a/b"
