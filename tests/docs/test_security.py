"""What docs/security.md says of hostile bytes: forged with sound digests, as a writer could."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

import pravega_spark
from pravega_spark import StreamManager
from pravega_spark.cli.declare import read_yaml
from pravega_spark.engine.chunks.footer import digest_of
from pravega_spark.errors import CorruptChunk, CorruptLog, InvalidInput, InvalidName, StoreRefused

PACKAGE = Path(pravega_spark.__file__).parent

EVENTS, SCOPE = "s/t/events", "s/_scope"
PATHS = [
    "../../../../secret",
    "/etc/passwd",
    "file:///etc/passwd",
    "data/../../x",
    "data//x",
    "data/a\0b",
]

Action = dict[str, Any]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"event", "key").result()
    (tmp_path / "secret").write_bytes(b"outside of the root")
    return tmp_path / "root"


def newest(root: Path, table: str) -> Path:
    return max((root / table / "_delta_log").glob("0*.json"))


def forge(root: Path, table: str, change: Callable[[list[Action]], object]) -> None:
    """Change the newest commit of a table, and give it a digest that matches."""
    path = newest(root, table)
    first, _, rest = path.read_bytes().partition(b"\n")
    head = first.rpartition(b',"digest":"')[0]
    actions = [json.loads(line) for line in rest.splitlines()]
    change(actions)
    rest = b"".join(json.dumps(action).encode() + b"\n" for action in actions)
    digest = xxhash.xxh3_64_hexdigest(head + rest)
    path.write_bytes(b'%b,"digest":"%b"}}\n%b' % (head, digest.encode(), rest))


def opened(root: Path, tmp_path: Path) -> StreamManager:
    """Rename the root and return a manager without any cached state of it."""
    return StreamManager(root.rename(tmp_path / "forged"))


@pytest.mark.parametrize("path", PATHS)
def test_path_that_leaves_the_root_is_refused(root: Path, tmp_path: Path, path: str) -> None:
    def lead_away(actions: list[Action]) -> None:
        for action in actions:
            if "add" in action:
                action["add"]["path"] = path

    forge(root, EVENTS, lead_away)
    manager = opened(root, tmp_path)
    with pytest.raises(InvalidInput, match="is not a valid key"):
        list(manager.read("s/t"))
    manager.sweep_stream("s/t", grace=0, retain=0)
    assert (tmp_path / "secret").exists()


@pytest.mark.parametrize("path", PATHS)
def test_rows_outside_the_root_are_refused(root: Path, tmp_path: Path, path: str) -> None:
    def lead_away(actions: list[Action]) -> None:
        for action in actions:
            if action.get("domainMetadata", {}).get("domain") == "pravega.rows":
                forged = json.dumps({"path": path, "size": 1})
                action["domainMetadata"]["configuration"] = forged

    forge(root, SCOPE, lead_away)
    with pytest.raises(InvalidInput, match="is not a valid key"):
        opened(root, tmp_path).list_streams("s")


def _set(domain: str, value: str) -> Action:
    return {"domainMetadata": {"domain": domain, "configuration": value, "removed": False}}


def test_transaction_outside_the_root_is_refused(root: Path, tmp_path: Path) -> None:
    begun = _set("pravega.open.../../../../x", "[0,0,60000,1,null,0,1]")
    forge(root, EVENTS, lambda actions: actions.insert(0, begun))
    before = sorted(tmp_path.rglob("*"))
    manager = opened(root, tmp_path)
    with pytest.raises(InvalidInput, match="is not a valid key"):
        manager.list_transactions("s/t")
    assert len(sorted(tmp_path.rglob("*"))) == len(before)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "_delta_log", "a\0", "a\n", ""])
def test_name_is_never_a_path(root: Path, name: str) -> None:
    manager = StreamManager(root)
    with pytest.raises(InvalidName):
        manager.create_scope(name)
    with pytest.raises(InvalidName):
        manager.create_stream(f"s/{name}")
    with pytest.raises(InvalidName):
        manager.create_writer("s/t", writer_id=name)


@pytest.mark.parametrize("value", ["[" * 100_000 + "]" * 100_000, "9" * 100_000])
def test_json_that_no_parser_likes_is_damage(root: Path, tmp_path: Path, value: str) -> None:
    path = newest(root, EVENTS)
    first, _, rest = path.read_bytes().partition(b"\n")
    head = first.rpartition(b',"digest":"')[0]
    rest = b'{"domainMetadata":%b}\n%b' % (value.encode(), rest)
    digest = xxhash.xxh3_64_hexdigest(head + rest).encode()
    path.write_bytes(b'%b,"digest":"%b"}}\n%b' % (head, digest, rest))
    with pytest.raises(CorruptLog, match="torn or damaged"):
        list(opened(root, tmp_path).read("s/t"))


def test_small_chunk_that_unpacks_to_a_gigabyte_is_refused(root: Path, tmp_path: Path) -> None:
    count, event = 256, b"\0" * (4 << 20)
    (file,) = (root / EVENTS / "data").rglob("*.parquet")
    schema = pq.ParquetFile(file).schema_arrow
    dictionary = pa.DictionaryArray.from_arrays(
        pa.array([0] * count, pa.int32()), pa.array([event], pa.binary())
    )
    columns = [
        pa.array(range(count), pa.int32()),
        pa.array(["key"] * count),
        pa.array([0] * count, pa.timestamp("us", "UTC")),
        dictionary,
    ]
    fields = [*list(schema)[:3], pa.field("event", dictionary.type)]
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    pq.write_table(
        table, file, compression="zstd", store_schema=False, dictionary_pagesize_limit=1 << 30
    )
    size = file.stat().st_size
    assert size < 10_000

    digest = digest_of(pa.py_buffer(file.read_bytes()))

    def fit(actions: list[Action]) -> None:
        for action in actions:
            if "add" in action:
                action["add"]["size"] = size
                action["add"]["tags"].update(rows=str(count), bytes="100", footer=digest)
            elif action["domainMetadata"]["domain"] == "pravega.segment.0":
                action["domainMetadata"]["configuration"] = json.dumps([count, 100, None])

    forge(root, EVENTS, fit)
    with pytest.raises(CorruptChunk, match="would unpack to"):
        list(opened(root, tmp_path).read("s/t"))


@pytest.mark.parametrize("content", [b"[1]", b'{"format": 1, "storage": 5}', b"\xff", b"{}", b""])
def test_marker_of_another_shape_is_refused(root: Path, tmp_path: Path, content: bytes) -> None:
    (root / "_pravega_spark.json").write_bytes(content)
    with pytest.raises(StoreRefused):
        opened(root, tmp_path).list_scopes()


@pytest.mark.parametrize("content", [b"[1]", b'{"state": "x"}', b"\xff", b"[" * 100_000, b""])
def test_hints_of_another_shape_are_ignored(root: Path, tmp_path: Path, content: bytes) -> None:
    folder = root / EVENTS / "_pravega"
    folder.mkdir(exist_ok=True)
    (folder / "latest.json").write_bytes(content)
    (folder / "sweep.json").write_bytes(content)
    (folder / "compaction.json").write_bytes(content)
    (root / "_pravega_clock.json").write_bytes(content)
    manager = opened(root, tmp_path)
    assert [event.data for event in manager.read("s/t")] == [b"event"]
    manager.compact_stream("s/t")
    manager.sweep_stream("s/t", grace=0, retain=0)


FORBIDDEN = {"eval", "exec", "compile", "__import__"}
MODULES = {"ctypes", "dill", "joblib", "marshal", "pickle", "shelve", "subprocess", "yaml"}

ALLOWED = {
    "cli/declare.py: yaml",  # a file that the caller names, by a SafeLoader
    "cli/doctor_spark.py: subprocess",  # the Python that PYSPARK_PYTHON names
    "cli/output.py: yaml",  # only writes
    "engine/store/root_url.py: pickle",  # tries whether a file system can be written
    "spark/frames/writing.py: pickle",  # what a task tells its own driver, through Spark
    "spark/jvm_start.py: subprocess",  # java -version
    "spark/mapped_tasks.py: pickle",  # what the driver gives to its own tasks, through Spark
}


@pytest.mark.medium
def test_nothing_of_the_package_runs_or_unpickles_bytes() -> None:
    found = []
    named = re.compile(rf"\b({'|'.join(FORBIDDEN | MODULES)})\b")
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if named.search(text) else ():
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found += [f"{path}: {node.func.id}()"] if node.func.id in FORBIDDEN else []
            found += [f"{path.relative_to(PACKAGE)}: {name}" for name in names if name in MODULES]
    assert set(found) == ALLOWED
    used = set(re.findall(r"\byaml\.(\w+)", (PACKAGE / "cli/declare.py").read_text()))
    assert used == {"SafeLoader", "ScalarNode", "YAMLError", "MarkedYAMLError"}
    with pytest.raises(InvalidInput, match="could not determine a constructor"):
        read_yaml(b"a: !!python/object/apply:os.getpid []", "here")
