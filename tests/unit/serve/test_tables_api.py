"""Key-value tables by the page's API: entries by key, one entry, and the changes of the log."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from pravega_spark import KeyValueTableConfiguration, StreamManager
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.snapshot import table_snapshot
from pravega_spark.manager import manager_over, root_of
from pravega_spark.serve import tables as serve_tables
from pravega_spark.values.names import table_log
from tests.harness.fake_runtime import SkippingRuntime
from tests.harness.spy_store import Spy
from tests.harness.web_world import new_manager, web_client

TABLE = "/api/tables/nyc/t"


def get(client: TestClient, path: str, **query: Any) -> Any:
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: TestClient, path: str, **query: Any) -> tuple[int, str, str]:
    answer = client.get(path, params=query)
    error = answer.json()["error"]
    return answer.status_code, error["type"], error["message"]


def table_of(
    entries: dict[Any, Any], manager: StreamManager | None = None, **configuration: Any
) -> StreamManager:
    """Return a manager with the table nyc/t."""
    manager = manager or new_manager()
    configuration = {"key_type": "string"} | configuration
    manager.create_key_value_table("nyc/t", KeyValueTableConfiguration(**configuration))
    put(manager, entries)
    return manager


def put(manager: StreamManager, entries: dict[Any, Any]) -> None:
    with manager.key_value_table("nyc/t") as table:
        for key, value in entries.items():
            if value is None:
                table.remove(key)
            else:
                table.put(key, value)
        table.flush()


def fold_table(manager: StreamManager, *, file_bytes: int | None = None) -> None:
    stream = root_of(manager).stream(table_log("nyc", "t"))
    folded = folded_table(stream, manager.key_value_table("nyc/t").configuration)
    folded.file_bytes = file_bytes or folded.file_bytes
    fold(stream, folded)


def keys_of(client: TestClient, **query: Any) -> list[str]:
    """Return the keys of all pages."""
    keys: list[str] = []
    after = None
    while True:
        page = get(client, f"{TABLE}/entries", after=after or "", **query)
        keys += [row["key"] for row in page["entries"]]
        after = page["next"]
        if after is None:
            return keys


@pytest.mark.parametrize("folded", [False, True])
def test_entries_are_paged_in_the_order_of_their_keys_by_prefix_and_range(folded: bool) -> None:
    manager = table_of({f"{letter}{n:02}": f"{n}" for letter in "abc" for n in range(20)})
    if folded:
        fold_table(manager)
    put(manager, {"a05": None, "b07": "new", "d": "late"})
    expected = sorted({f"{x}{n:02}" for x in "abc" for n in range(20)} - {"a05"} | {"d"})
    with web_client(manager) as client:
        assert keys_of(client, limit=7) == expected
        assert keys_of(client, limit=7, prefix="b") == [f"b{n:02}" for n in range(20)]
        assert keys_of(client, low="a18", high="b01") == ["a18", "a19", "b00", "b01"]
        assert keys_of(client, prefix="nothing") == []
        page = get(client, f"{TABLE}/entries", prefix="b07")
        (row,) = page["entries"]
        assert (row["text"], row["size_bytes"], page["is_current"]) == ("new", 3, True)
        entry = get(client, f"{TABLE}/entry", id=row["id"])["entry"]
        assert entry == row
        assert get(client, f"{TABLE}/entry", key="b07")["entry"] == row
        with manager.key_value_table("nyc/t") as table:
            found = table.get("b07")
            assert found is not None
            assert row["version"] == str(found.version)
        for gone in ("a05", "none"):
            assert get(client, f"{TABLE}/entry", key=gone)["entry"] is None


@pytest.mark.parametrize(
    ("key_type", "keys", "shown"),
    [
        ("long", [-5, 0, 7], ["-5", "0", "7"]),
        ("bytes", [b"\x01\xff", b"a\x00", b"text"], ["0x01ff", '"a\\u0000"', "text"]),
        ("string", ["a\u202eb", "ä" * 4_000], ['"a\\u202eb"', "ä" * 256]),
    ],
)
def test_keys_of_every_type_and_length_have_an_address(
    key_type: str, keys: list[Any], shown: list[str]
) -> None:
    manager = table_of({key: f"of {n}" for n, key in enumerate(keys)}, key_type=key_type)
    with web_client(manager) as client:
        rows = get(client, f"{TABLE}/entries")["entries"]
        assert [row["key"] for row in rows] == shown
        assert [row["is_key_cut"] for row in rows] == [len(str(key)) > 300 for key in keys]
        assert keys_of(client, limit=1) == shown
        for number, row in enumerate(rows):
            assert get(client, f"{TABLE}/entry", id=row["id"])["entry"] == row
            (change,) = get(client, f"{TABLE}/changes", id=row["id"])["changes"]
            assert (change["id"], change["text"]) == (row["id"], f"of {number}")


def test_a_key_of_bytes_is_typed_back_as_it_is_shown_and_is_no_other_key() -> None:
    keys = [b"ab", b"0x6162", b"0x", b"0xzz", b"\xff\xfe", b"0xfffe", b"x"]
    manager = table_of({key: key.hex() for key in keys}, key_type="bytes")
    with web_client(manager) as client:
        rows = get(client, f"{TABLE}/entries")["entries"]
        assert len({row["key"] for row in rows}) == len(keys)
        for row in rows:
            assert get(client, f"{TABLE}/entry", key=row["key"])["entry"] == row
            assert row["key"] in keys_of(client, prefix=row["key"])


STRANGE = [
    "a\0b",
    "\x1b[31m",
    "two\nlines",
    "a\u202eb",
    '"quoted"',
    "back\\slash",
    "\\x1b[31m",
    " a ",
]


@pytest.mark.parametrize("key_type", ["string", "bytes"])
def test_a_key_that_nobody_can_type_is_shown_and_taken_in_a_form_that_one_can(
    key_type: str,
) -> None:
    keys = STRANGE if key_type == "string" else [key.encode() for key in STRANGE]
    manager = table_of({key: f"of {number}" for number, key in enumerate(keys)}, key_type=key_type)
    with web_client(manager) as client:
        rows = get(client, f"{TABLE}/entries")["entries"]
        assert len({row["key"] for row in rows}) == len(keys)
        assert [row["key"] for row in rows if not row["key"].isprintable()] == []
        assert '"a\\u0000b"' in [row["key"] for row in rows]
        for row in rows:
            found = get(client, f"{TABLE}/entry", key=row["key"])
            assert (found["entry"], found["key"]) == (row, row["key"])
            assert row["key"] in keys_of(client, prefix=row["key"])
            assert keys_of(client, low=row["key"], high=row["key"]) == [row["key"]]
        assert keys_of(client, prefix='"a\\u0000"') == ['"a\\u0000b"']
        status, kind, message = refused(client, f"{TABLE}/entries", prefix='"quo')
        assert (status, kind) == (400, "InvalidInput")
        assert '"\\"quo"' in message  # how to write it
        assert keys_of(client, prefix='"\\"quo"') == ['"\\"quoted\\""']


def test_a_secondary_key_that_nobody_can_type_is_taken_as_it_is_shown() -> None:
    manager = table_of({}, key_type="string", secondary_key_length=2)
    with manager.key_value_table("nyc/t") as table:
        for secondary in (b"\x00\x01", b"ab", b"\xff\x00", b"0x"):
            table.put("k", secondary.hex(), secondary).result()
    with web_client(manager) as client:
        for row in get(client, f"{TABLE}/entries")["entries"]:
            query = {"key": "k", "secondary": row["secondary_key"]}
            assert get(client, f"{TABLE}/entry", **query)["entry"] == row


@pytest.mark.medium
def test_an_opened_key_is_whole() -> None:
    key = "ä" * 3_000 + "\n"
    with web_client(table_of({key: "x"})) as client:
        (row,) = get(client, f"{TABLE}/entries")["entries"]
        assert (len(row["key"]), row["is_key_cut"]) == (256, True)
        found = get(client, f"{TABLE}/entry", id=row["id"])
        assert (found["key"], found["is_key_cut"]) == (f'"{key[:-1]}\\n"', False)


@pytest.mark.parametrize("folded", [False, True])
def test_a_page_of_an_older_version_shows_what_the_table_held_then(folded: bool) -> None:
    manager = table_of({f"{n:02}": f"old {n}" for n in range(10)})
    if folded:
        fold_table(manager)
    with web_client(manager) as client:
        first = get(client, f"{TABLE}/entries", limit=4)
        assert first["as_of_ms"] is None
        put(manager, {"00a": "came later", "05": None, "06": "changed"})
        asked = {"version": first["version"]}
        assert get(client, f"{TABLE}/entries", limit=4, **asked)["entries"] == first["entries"]
        rest = get(client, f"{TABLE}/entries", after=first["next"], **asked)
        assert [row["text"] for row in rest["entries"]] == [f"old {n}" for n in range(4, 10)]
        assert (rest["version"], rest["as_of_ms"] is None) == (first["version"], False)
        assert get(client, f"{TABLE}/entry", key="06", **asked)["entry"]["text"] == "old 6"
        assert get(client, f"{TABLE}/entry", key="00a", **asked)["entry"] is None
        value = client.get(f"{TABLE}/entry/value", params={"key": "05", **asked})
        assert value.content == b"old 5"
        assert len(keys_of(client)) == 10
        assert "05" not in keys_of(client)
        assert refused(client, f"{TABLE}/entries", version=99)[:2] == (400, "InvalidInput")


def test_a_version_that_was_folded_away_says_so_and_names_the_way_on() -> None:
    manager = table_of({"a": "1"})
    with web_client(manager) as client:
        first = get(client, f"{TABLE}/entries")
        put(manager, {"b": "2"})
        fold_table(manager)
        stream = root_of(manager).stream(table_log("nyc", "t"))
        truncate(stream, stream.view().tail, life=1)
        stored = folded_table(stream, manager.key_value_table("nyc/t").configuration)
        assert stored.read_before(first["version"]) is None
        status, kind, message = refused(client, f"{TABLE}/entries", version=first["version"])
        assert (status, kind) == (410, "TruncatedData")
        assert "Read a newer version" in message


def test_an_older_version_shows_no_entry_that_has_expired_since() -> None:
    runtime = SkippingRuntime()
    manager = StreamManager("memory://tables-api/expired-since", runtime=runtime)
    manager.create_scope("nyc")
    runtime.skip(-7_200)
    table_of({"old": "x"}, manager, ttl="1 hour")
    runtime.skip(5_400)
    put(manager, {"young": "y"})
    version = manager.key_value_table("nyc/t").at().version
    runtime.skip(1_800)
    put(manager, {"later": "z"})
    with web_client(manager) as client:
        assert keys_of(client, version=version) == ["young"]
        assert keys_of(client) == ["later", "young"]


def test_a_sound_page_of_an_older_version_hides_no_damage_of_the_newest_one() -> None:
    manager = table_of({"a": "1"})
    old = manager.key_value_table("nyc/t").at().version
    put(manager, {"b": "2"})
    fold_table(manager)
    stream = root_of(manager).stream(table_log("nyc", "t"))
    folded = table_snapshot(stream).folded
    assert folded is not None
    path = f"{stream.path.rpartition('/')[0]}/table/{folded.files[0].path}"
    data = root_of(manager).store.get(path)
    root_of(manager).store.put(path, b"torn")
    with web_client(manager) as client:
        assert get(client, f"{TABLE}/entries")["lost"]
        assert get(client, f"{TABLE}/entries", version=old)["lost"] is None
        assert attention(client)["kind"] == "table_entries_damaged"
        root_of(manager).store.put(path, data)
        assert get(client, f"{TABLE}/entries")["lost"] is None
        assert attention(client) is None


@pytest.mark.medium
def test_keys_are_given_as_a_person_writes_them() -> None:
    with web_client(table_of({5: "five", 6: "six"}, key_type="long")) as client:
        assert get(client, f"{TABLE}/entry", key="5")["entry"]["text"] == "five"
        assert keys_of(client, low="6") == ["6"]
        assert refused(client, f"{TABLE}/entries", low="x")[:2] == (400, "InvalidInput")
        assert refused(client, f"{TABLE}/entries", prefix="5")[:2] == (400, "InvalidInput")
    with web_client(table_of({b"\x01\xff": "bytes"}, key_type="bytes")) as client:
        assert get(client, f"{TABLE}/entry", key="0x01ff")["entry"]["text"] == "bytes"
        assert keys_of(client, prefix="0x01") == ["0x01ff"]
        assert refused(client, f"{TABLE}/entries", prefix="0x0")[:2] == (400, "InvalidInput")
    pair = KeyValueTableConfiguration(key_type="string", secondary_key_length=2)
    manager = new_manager()
    manager.create_key_value_table("nyc/t", pair)
    with manager.key_value_table("nyc/t") as table:
        table.put("k", "v", b"\x00\xff").result()
    with web_client(manager) as client:
        found = get(client, f"{TABLE}/entry", key="k", secondary="0x00ff")["entry"]
        assert (found["text"], found["secondary_key"]) == ("v", "0x00ff")


def test_addresses_that_name_no_key_are_400() -> None:
    queries = ({"after": "!"}, {"after": "AA"}, {"prefix": "a", "low": "b"})
    with web_client(table_of({7: "x"}, key_type="long")) as client:
        for query in queries:
            found = refused(client, f"{TABLE}/entries", **query)
            assert found[:2] == (400, "InvalidInput"), query
        assert refused(client, f"{TABLE}/entry")[:2] == (400, "InvalidInput")
        assert refused(client, f"{TABLE}/entry", id="????")[:2] == (400, "InvalidInput")


def test_paths_of_a_table_without_one_are_404() -> None:
    tables = ("nyc/none", "none/t", "nyc/a_b", f"nyc/{'x' * 300}")
    with web_client(new_manager()) as client:
        for path in ("entries", "entry?key=k", "entry/value?key=k", "changes"):
            for table in tables:
                found = refused(client, f"/api/tables/{table}/{path}")
                assert found[:2] == (404, "NoSuchTable"), (table, path)


def test_values_are_shown_by_their_beginning_and_downloaded_whole() -> None:
    manager = table_of({"text": "ä" * 50_000, "bytes": b"\xff\x00" * 9})
    with web_client(manager) as client:
        bytes_row, text_row = get(client, f"{TABLE}/entries")["entries"]
        assert (bytes_row["text"], bytes_row["base64"][:4]) == (None, "/wD/")
        assert (len(text_row["text"].encode()), text_row["is_cut"]) == (1_024, True)
        opened = get(client, f"{TABLE}/entry", id=text_row["id"])["entry"]
        assert (len(opened["text"].encode()), opened["size_bytes"]) == (65_536, 100_000)
        answer = client.get(f"{TABLE}/entry/value", params={"id": text_row["id"]})
        assert answer.content.decode() == "ä" * 50_000
        assert answer.headers["Content-Disposition"] == 'attachment; filename="nyc-t-value.bin"'
        assert refused(client, f"{TABLE}/entry/value", key="none")[:2] == (404, "NoSuchKey")


def test_a_page_ends_after_so_many_bytes_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_tables, "PAGE_BYTES", 1_000)
    manager = table_of({f"{n}": "x" * 400 for n in range(9)})
    with web_client(manager) as client:
        assert len(get(client, f"{TABLE}/entries")["entries"]) == 3
        assert keys_of(client) == [f"{n}" for n in range(9)]


def test_expired_entries_are_not_shown_and_bound_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_tables, "PAGE_ENTRIES", 10)
    runtime = SkippingRuntime()
    manager = StreamManager("memory://tables-api/expired", runtime=runtime)
    manager.create_scope("nyc")
    runtime.skip(-7_200)
    table_of({f"old{n:02}": "x" for n in range(25)}, manager, ttl="1 hour")
    runtime.skip(7_200)
    put(manager, {"young": "y"})
    with web_client(manager) as client:
        first = get(client, f"{TABLE}/entries")
        assert (first["entries"], first["looked"]) == ([], 10)
        assert keys_of(client) == ["young"]
        assert get(client, f"{TABLE}/entry", key="old03")["entry"] is None


def test_too_many_changes_after_the_fold_are_said_and_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve_tables, "UNFOLDED_CHANGES", 5)
    manager = table_of({"a": "1", "b": "2"})
    with web_client(manager) as client:
        assert get(client, f"{TABLE}/entries")["is_current"] is True
        fold_table(manager)
        put(manager, {f"new{n}": "x" for n in range(6)})
        page = get(client, f"{TABLE}/entries")
        assert [row["key"] for row in page["entries"]] == ["a", "b"]
        assert (page["is_current"], page["missing_changes"]) == (False, 6)
        assert page["as_of_ms"] > 0
        assert get(client, f"{TABLE}/entry", key="new1")["entry"] is None
        fold_table(manager)
        assert len(keys_of(client)) == 8


@pytest.mark.medium
def test_the_calls_of_a_page_do_not_grow_with_the_table() -> None:
    def calls(entries: int) -> tuple[int, int]:
        store = MemoryStore()
        manager = manager_over(store)
        manager.create_scope("nyc")
        table_of({f"{n:06}": f"value {n}" for n in range(entries)}, manager)
        fold_table(manager)
        put(manager, {"000001": "changed"})
        spy = Spy(store)
        with web_client(manager_over(spy)) as client:
            get(client, f"{TABLE}/entries")
            first = len(spy.calls)
            page = get(client, f"{TABLE}/entries", prefix=f"{entries // 2:06}"[:5])
            assert len(page["entries"]) == 10
            return first, len(spy.calls) - first

    few, many = calls(1_000), calls(10_000)
    assert many[1] == few[1] < 6
    assert many[0] < 3 * few[0]  # the log is opened: by commits, which vary, not by entries


def test_changes_are_puts_and_removals_with_the_way_back() -> None:
    manager = table_of({"a": "1", "b": "2"}, partitions=3)
    put(manager, {"a": None})
    put(manager, {"a": "3"})
    with web_client(manager) as client:
        page = get(client, f"{TABLE}/changes", limit=3)
        seen = [(row["key"], row["text"], row["is_removal"]) for row in page["changes"]]
        assert seen[:2] == [("a", "3", False), ("a", "", True)]
        rest = get(client, f"{TABLE}/changes", order="newest", at=page["older"])
        assert len(page["changes"]) + len(rest["changes"]) == 4
        assert rest["is_done"]
        (row,) = get(client, f"{TABLE}/entries", prefix="a")["entries"]
        mine = get(client, f"{TABLE}/changes", id=row["id"])["changes"]
        assert [(row["text"], row["is_removal"]) for row in mine] == [
            ("3", False),
            ("", True),
            ("1", False),
        ]
        assert mine[0]["version"] == row["version"]
        tail = str(manager.key_value_table("nyc/t").changelog.tail())
        assert get(client, f"{TABLE}/changes", at=tail)["changes"] == []
        put(manager, {"b": "later"})
        (later,) = get(client, f"{TABLE}/changes", at=tail)["changes"]
        assert later["text"] == "later"


def test_changes_that_were_folded_away_say_where_the_log_goes_on() -> None:
    manager = table_of({f"{n}": "x" for n in range(20)})
    with web_client(manager) as client:
        first = get(client, f"{TABLE}/changes", at="head", limit=1)
        fold_table(manager)
        stream = root_of(manager).stream(table_log("nyc", "t"))
        truncate(stream, stream.view().tail, life=1)
        status, kind, message = refused(client, f"{TABLE}/changes", at=first["newer"])
        assert (status, kind) == (410, "TruncatedData")
        assert str(stream.view().head) in message
        assert "folded" in message
        page = get(client, f"{TABLE}/changes")
        assert (page["changes"], page["is_done"]) == ([], True)
        assert len(keys_of(client)) == 20


def test_a_damaged_file_of_the_fold_is_said_and_the_rest_is_there() -> None:
    manager = table_of({f"{n:05}": "x" * 100 for n in range(12_000)})
    fold_table(manager, file_bytes=1)
    stream = root_of(manager).stream(table_log("nyc", "t"))
    folded = table_snapshot(stream).folded
    assert folded is not None
    assert len(folded.files) > 2
    store, path = root_of(manager).store, f"{stream.path.rpartition('/')[0]}/table"
    key = f"{path}/{folded.files[1].path}"
    data = bytearray(store.get(key))
    data[len(data) // 4] ^= 0xFF
    store.put(key, bytes(data))
    with web_client(manager) as client:
        firsts = [str(file.first, "utf-8") for file in folded.files]
        page = get(client, f"{TABLE}/entries", low=firsts[1])
        assert page["entries"] == []
        assert "damaged" in page["lost"]
        after = get(client, f"{TABLE}/entries", after=page["next"])
        assert after["entries"][0]["key"] == firsts[2]
        assert get(client, f"{TABLE}/entries")["entries"][0]["key"] == "00000"
        first = attention(client)
        assert (first["kind"], first["name"]) == ("table_entries_damaged", "nyc/t")
        path, _, query = first["address"].partition("?")
        assert path == "/tables/nyc/t"
        data[len(data) // 4] ^= 0xFF
        store.put(key, bytes(data))
        page = client.get(f"/api{path}/entries?{query}").json()
        assert page["lost"] is None
        assert attention(client) is None


def attention(client: TestClient) -> Any:
    """Return what needs attention of a table, if anything does."""
    found = client.get("/api/attention").json()["findings"]
    return next((finding for finding in found if finding["subject"] == "table"), None)
