"""Declared roots: what differs, what is done, and what a repeated apply does: nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pravega_spark.config.encryption import EncryptionPolicy
from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.errors import StoreError
from tests.harness.failpoints import at_failpoint
from tests.unit.cli.conftest import Shell

SPEC = b"""
settings: {grace: 2 days}
scopes:
  nyc:
    streams:
      flights: {scaling: "events:1000,minimum=2", retention: "consumption:1h..7d", tags: [gold]}
      plain:
    key-value-tables:
      prices: {key_type: string, ttl: 7 days, tags: [silver]}
    reader-groups:
      dashboards: {streams: [nyc/flights], retention: automatic}
"""


def test_an_empty_root_gets_all_that_is_declared_once(shell: Shell) -> None:
    status, text, _ = shell("diff", "-", stdin=SPEC)
    assert status == 1
    assert [line.split()[0] for line in text.splitlines()] == [
        "+",
        "~",
        "grace:",
        "+",
        "+",
        "+",
        "+",
    ]
    assert shell.manager.list_scopes() == ["other", "s"]  # a diff changes nothing
    assert "Pass --yes" in shell.failed("apply", "-", stdin=SPEC)
    shell.ok("apply", "-", "--yes", stdin=SPEC)
    found = shell.manager.stream_info("nyc/flights").configuration
    assert found.scaling == ScalingPolicy.by_event_rate(1_000, minimum=2)
    assert found.retention == RetentionPolicy.by_consumption("1 hour", "7 days")
    assert shell.manager.settings().text("grace") == "2 days"
    assert shell.manager.list_key_value_tables("nyc", tag="silver") == ["nyc/prices"]
    assert shell.manager.reader_group("nyc/dashboards").configuration.retention.value == "automatic"
    assert shell("diff", "-", stdin=SPEC)[:2] == (0, "")
    assert shell.ok("apply", "-", stdin=SPEC) == "Nothing to change.\n"


def test_only_declared_fields_change_and_nothing_is_deleted(shell: Shell) -> None:
    shell.ok("apply", "-", "-y", stdin=SPEC)
    changed = b"""
scopes:
  nyc:
    streams:
      flights: {tags: [iron], settings: {grace: 5 hours}}
    key-value-tables:
      prices: {key_type: string, ttl: 7 days}
    reader-groups:
      dashboards: {streams: [nyc/plain], retention: none}
"""
    status, text, _ = shell("diff", "-", "--output", "json", stdin=changed)
    assert status == 1
    fields = {
        change["name"]: {f["field"]: (f["from"], f["to"]) for f in change["fields"]}
        for change in json.loads(text)
    }
    assert fields == {
        "nyc/flights": {"tags": ("gold", "iron"), "settings": ("none", "grace=5 hours")},
        "nyc/prices": {"tags": ("silver", "none")},
        "nyc/dashboards": {
            "streams": ("nyc/flights", "nyc/plain"),
            "retention": ("automatic", "none"),
        },
    }
    shell.ok("apply", "-", "-y", stdin=changed)
    assert shell("diff", "-", stdin=changed)[0] == 0
    found = shell.manager.stream_info("nyc/flights").configuration
    assert found.tags == {"iron"}
    assert found.retention is not None
    assert list(shell.manager.reader_group("nyc/dashboards").configuration.streams) == ["nyc/plain"]
    assert shell.manager.list_streams("nyc") == ["nyc/flights", "nyc/plain"]


def test_a_table_that_exists_with_another_configuration_is_refused(shell: Shell) -> None:
    shell.ok("apply", "-", "-y", stdin=SPEC)
    other = b"scopes: {nyc: {key-value-tables: {prices: {key_type: long}}}}"
    error = shell.failed("diff", "-", stdin=other)
    assert "key-value table nyc/prices exists, and its configuration never changes" in error


@pytest.mark.medium
@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"scopes: [", "is not valid YAML"),
        (b"scopes: 5", "must be a table"),
        (b"stream: {}", "unknown field 'stream'"),
        (b"scopes: {a: {streems: {}}}", "did you mean 'streams'?"),
        (b"scopes: {a: {streams: {b: {scaling: 5}}}}", "must be a text"),
        (b"scopes: {a: {streams: {b: {retention: soon}}}}", "not a valid retention policy"),
        (b"scopes: {a: {streams: {b: {tags: gold}}}}", "must be a list"),
        (b"scopes: {a: {reader-groups: {g: {}}}}", "needs `streams`"),
        (b"scopes: {a: {key-value-tables: {t: {key_type: x}}}}", "key type"),
        (b"settings: {grease: 1 day}", "grease"),
        (b"\xff", "is not valid UTF-8"),
        (b"[" * 1_000, "is nested too deeply"),
        (b"scopes: {a: {}, b: {}, a: {}}", "'a' occurs twice in"),
        (b"scopes: {a: 2026-13-45}", "is not valid YAML: month must be"),
        (b"scopes: {../x: {}}", "scope name '../x' is not allowed"),
        (b"scopes: {a: {streams: {../x: }}}", "got 'a/../x'"),
        (b"scopes: {a: {key-value-tables: {x_y: }}}", "table name 'x_y' is not allowed"),
        (b"scopes: {a: {reader-groups: {'': {streams: [s/t]}}}}", "reader group name ''"),
        (b"scopes: {a: {reader-groups: {g: {streams: [t]}}}}", "got 't'"),
        (b"scopes: {a: {reader-groups: {g: {streams: [s/t]}}}}", "reads stream s/t, which neither"),
        (b"scopes: {s: {reader-groups: {g: {streams: [s/a, s/t]}}}}", "reads stream s/t, which"),
        (b"scopes: {a: {reader-groups: {g: {streams: [s/a], retention: x}}}}", "retention"),
        (b"scopes: {s: {streams: {a: {encryption_key: k}}}}", "s/a is not encrypted, and stays so"),
        (b"scopes: {s: {streams: {e: {encryption_key: }}}}", "encrypted stream stays so"),
        (b"scopes: {s: {streams: {z: {scaling: 'fixed:2'}}}}", "give the present one, fixed:1."),
    ],
)
def test_wrong_declarations_are_named_and_nothing_is_done(
    shell: Shell, text: bytes, part: str
) -> None:
    shell.manager.create_stream("s/a")
    shell.manager.create_stream("s/e", StreamConfiguration(encryption=EncryptionPolicy("first")))
    shell.manager.create_stream("s/z")
    shell.manager.seal_stream("s/z")
    for command in (("diff", "-"), ("apply", "-", "-y")):
        error = shell.failed(*command, stdin=text)
        assert part in error
    assert shell.manager.list_scopes() == ["other", "s"]


def test_groups_may_read_what_exists_or_is_declared_and_logs_of_tables(shell: Shell) -> None:
    shell.manager.create_stream("s/a")
    spec = b"""
scopes:
  nyc:
    streams: {flights: }
    key-value-tables: {prices: }
    reader-groups: {all: {streams: [s/a, nyc/flights, nyc/_kv_tables/prices]}}
"""
    shell.ok("apply", "-", "-y", stdin=spec)
    assert len(shell.manager.reader_group("nyc/all").configuration.streams) == 3


def test_an_apply_that_fails_in_the_middle_says_what_it_did_and_may_be_repeated(
    shell: Shell,
) -> None:
    def fail() -> None:
        raise StoreError("the disk is full.")

    with at_failpoint("group.create.row", fail):
        error = shell.failed("apply", "-", "-y", stdin=SPEC)
    assert "reader group nyc/dashboards failed: the disk is full. Carried out before it:" in error
    assert "scope nyc, settings of the root, stream nyc/flights," in error
    assert "(5 of 6 changes). A repeated apply goes on" in error
    shell.ok("apply", "-", "-y", stdin=SPEC)
    assert shell("diff", "-", stdin=SPEC)[0] == 0


# ------------------------------------------------------------------------------- typed streams


def declared(schema: object) -> bytes:
    """Return the declaration of a stream with this schema, as YAML that JSON is."""
    return json.dumps({"scopes": {"s": {"streams": {"flights": {"schema": schema}}}}}).encode()


FLIGHTS = "carrier string not null comment 'two letters', stops array<struct<airport:string>>"


def test_a_typed_stream_is_declared_in_sql_and_grows(shell: Shell) -> None:
    shell.ok("apply", "-", "-y", stdin=declared(FLIGHTS))
    assert shell.manager.stream_info("s/flights").configuration.schema == StreamSchema.from_ddl(
        FLIGHTS
    )
    assert shell("diff", "-", stdin=declared(FLIGHTS))[:2] == (0, "")
    grown = f"{FLIGHTS}, gate string"
    status, text, _ = shell("diff", "-", stdin=declared(grown))
    assert status == 1
    assert text == f"~ stream s/flights\n    schema: {FLIGHTS} -> {grown}\n"
    assert len(shell.manager.schemas("s/flights")) == 1  # a diff changes nothing
    shell.ok("apply", "-", "-y", stdin=declared(grown))
    assert len(shell.manager.schemas("s/flights")) == 2
    commented = grown.replace("two letters", "IATA")
    shell.ok("apply", "-", "-y", stdin=declared(commented))
    found = shell.manager.stream_info("s/flights").configuration.schema
    assert found is not None
    assert found.to_ddl() == commented
    assert shell.ok("apply", "-", stdin=declared(commented)) == "Nothing to change.\n"


def test_a_schema_is_declared_by_a_file_beside_the_declaration(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = StreamSchema.from_ddl("carrier string not null, delay bigint")
    documents = {
        "spark.json": json.loads(wanted.to_json()),
        "schema.json": {
            "properties": {"carrier": {"type": "string"}, "delay": {"type": "integer"}},
            "required": ["carrier"],
        },
        "flight.avsc": {
            "type": "record",
            "name": "Flight",
            "fields": [
                {"name": "carrier", "type": "string"},
                {"name": "delay", "type": ["null", "long"], "default": None},
            ],
        },
    }
    (tmp_path / "schemas").mkdir()
    for name, document in documents.items():
        (tmp_path / "schemas" / name).write_text(json.dumps(document))
        (tmp_path / "streams.yaml").write_bytes(declared(f"schemas/{name}"))
        shell.ok("apply", str(tmp_path / "streams.yaml"), "-y")
        assert shell.manager.stream_info("s/flights").configuration.schema == wanted
        assert shell("diff", str(tmp_path / "streams.yaml"))[0] == 0
    monkeypatch.chdir(tmp_path)
    assert shell("diff", "-", stdin=declared("schemas/flight.avsc"))[0] == 0


def test_what_describe_prints_of_the_columns_is_a_schema(shell: Shell) -> None:
    shell.ok("apply", "-", "-y", stdin=declared(FLIGHTS))
    (printed,) = shell.json("stream", "describe", "s/flights")
    assert shell("diff", "-", stdin=declared(printed["columns"]))[:2] == (0, "")
    by_list = [{"column": "carrier", "type": "string", "required": True}]
    other = declared(by_list).replace(b"flights", b"other")
    shell.ok("apply", "-", "-y", stdin=other)
    found = shell.manager.stream_info("s/other").configuration.schema
    assert str(found) == "carrier string not null"


def test_what_a_schema_cannot_become_is_refused_before_anything_changes(shell: Shell) -> None:
    shell.ok("apply", "-", "-y", stdin=declared(FLIGHTS))
    shell.ok("stream", "create", "s/raw")
    raw = declared(FLIGHTS).replace(b"flights", b"raw")
    new = b"scopes: {s: {streams: {new: , flights: {schema: %s}}}}"
    for spec, reason in (
        (declared("carrier string not null"), "column stops would be dropped or renamed"),
        (declared(FLIGHTS.replace(" not null", "")), "column carrier would become nullable"),
        (declared(f"{FLIGHTS}, gate string not null"), "is new and required"),
        (new % b"'carrier int not null, stops string'", "would change from string to int32"),
        (new % b"null", "stream s/flights is typed, and stays so"),
        (raw, "stream s/raw is raw, and stays so"),
    ):
        for command in (("diff", "-"), ("apply", "-", "-y")):
            assert reason in shell.failed(*command, stdin=spec)
    assert not shell.manager.stream_exists("s/new")
    assert len(shell.manager.schemas("s/flights")) == 1


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (7, "schema must declare columns, such as"),
        ({"carrier": "string"}, "schema must declare columns, such as"),
        ("carrier", "'carrier' declares no columns, at its end"),
        ("missing.json", "schema missing.json cannot be read"),
        ([], "a schema has at least one column"),
        (["carrier"], "a column has column, type, required, comment"),
        ([{"column": "a"}], "of which the first two are needed"),
        ([{"column": "a", "type": "int", "nullable": True}], "a column has column, type"),
        ([{"column": "a", "type": "int", "required": "yes"}], "required is true or false"),
        ([{"column": True, "type": "int"}], "put texts in quotes"),
        ([{"column": "a", "type": "int8"}], "column a of type int8 has no place"),
        ([{"column": "a", "type": "array<"}], "declares no columns"),
    ],
)
def test_a_schema_that_is_none_is_named_with_its_stream(
    shell: Shell, schema: object, reason: str
) -> None:
    error = shell.failed("apply", "-", "-y", stdin=declared(schema))
    assert "stream flights: schema" in error
    assert reason in error
    assert not shell.manager.stream_exists("s/flights")
