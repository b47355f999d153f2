"""Events in Confluent's wire format: what Kafka's clients write is read, and the reverse."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from pydantic import BaseModel

import pravega_spark
from pravega_spark import StreamManager, json_deserializer, json_serializer
from pravega_spark.errors import InvalidInput, InvalidSchema, RegistryUnavailable
from pravega_spark.serializers import deserializer, serializer
from tests.harness.schema_registry import FIRST_ID, Registry, running_registry

AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
    ],
}
JSON_SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Flight",
    "type": "object",
    "properties": {"carrier": {"type": "string"}, "delay": {"type": "integer"}},
    "required": ["carrier"],
}
ROW = {"carrier": "UA", "delay": 5}
HEADER = b"\x00" + FIRST_ID.to_bytes(4, "big")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as found:
        yield found


@pytest.fixture(scope="module")
def messages() -> tuple[Any, Any]:
    """The classes of a message, and of the second one that is nested in it."""
    text = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    file = descriptor_pb2.FileDescriptorProto(name="nyc/flight.proto", package="nyc")
    file.message_type.add(name="Other")
    flight = file.message_type.add(name="Flight")
    flight.field.add(name="carrier", number=1, type=text, label=1)
    flight.nested_type.add(name="Empty")
    flight.nested_type.add(name="Plane").field.add(name="tail", number=1, type=text, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"nyc.Flight{name}") for name in ("", ".Plane")]
    first, second = map(message_factory.GetMessageClass, found)
    return first, second


def test_avro_values_have_confluent_s_form_and_come_back(registry: Registry) -> None:
    encode = serializer("avro", registry=registry.url, subject="flights-value", schema=AVRO)
    decode = deserializer("avro", registry=registry.url)
    data = encode(ROW)
    assert data[:5] == HEADER
    assert schemaless_reader(io.BytesIO(data[5:]), parse_schema(AVRO), None) == ROW
    assert data[5:] == b"\x04UA\x02\x0a"  # Avro's own bytes: a length, a branch, a zigzag
    assert decode(data) == ROW
    assert encode({"carrier": "B6"}) == HEADER + b"\x04B6\x00"
    assert registry.subjects == {"flights-value": [FIRST_ID]}
    written = [request for request in registry.requests if request.startswith("POST")]
    assert written == ["POST /subjects/flights-value/versions"]  # once, however many events


def test_topic_s_values_are_events_as_they_are(registry: Registry) -> None:
    registry.answer("POST", "/subjects/flights-value/versions", {"schema": json.dumps(AVRO)})
    body = io.BytesIO()
    schemaless_writer(body, parse_schema(AVRO), ROW)
    manager = StreamManager("memory://serializers")
    manager.create_scope("nyc")
    manager.create_stream("nyc/flights")
    options = {"auto.register.schemas": False, "use.latest.version": True}
    encode = serializer(
        "avro",
        registry={"url": registry.url},
        subject="flights-value",
        schema=AVRO,
        options=options,
    )
    with manager.create_writer("nyc/flights") as writer:
        writer.write_event(HEADER + body.getvalue(), routing_key="UA")
    with manager.create_writer("nyc/flights", serializer=encode) as writer:
        writer.write_event({"carrier": "B6"}, routing_key="B6")
    decode = deserializer("avro", registry=registry.url)
    read = [event.data for event in manager.read("nyc/flights", deserializer=decode)]
    assert read == [ROW, {"carrier": "B6", "delay": None}]


def test_avro_is_read_as_a_newer_schema_if_one_is_given(registry: Registry, tmp_path: Path) -> None:
    encode = serializer("avro", registry=registry.url, subject="flights-value", schema=AVRO)
    newer = {
        **AVRO,
        "fields": [*AVRO["fields"], {"name": "gate", "type": "string", "default": "?"}],
    }
    path = tmp_path / "flight.avsc"
    path.write_text(json.dumps(newer))
    decode = deserializer("avro", registry=registry.url, schema=path)
    assert decode(encode(ROW)) == {**ROW, "gate": "?"}


def test_protobuf_messages_have_the_indexes_of_their_type(
    registry: Registry, messages: tuple[Any, Any]
) -> None:
    for message, indexes, fields in (
        (messages[0], b"\x02\x02", {"carrier": "UA"}),  # one index, 1, as zigzags
        (messages[1], b"\x04\x02\x02", {"tail": "N1"}),  # two: the second in the second
    ):
        encode = serializer(
            "protobuf", registry=registry.url, subject="flights-value", message=message
        )
        data = encode(message(**fields))
        assert data == HEADER + indexes + message(**fields).SerializeToString()
        decode = deserializer("protobuf", registry=registry.url, message=message)
        assert decode(data) == message(**fields)
    assert registry.schemas[FIRST_ID]["schemaType"] == "PROTOBUF"


def test_json_is_plain_without_a_registry_and_in_confluent_s_form_with_one(
    registry: Registry,
) -> None:
    assert serializer("json") is json_serializer
    assert deserializer("json") is json_deserializer
    encode = serializer("json", registry=registry.url, subject="flights-value", schema=JSON_SCHEMA)
    data = encode(ROW)
    assert (data[:5], json.loads(data[5:])) == (HEADER, ROW)
    assert deserializer("json", registry=registry.url)(data) == ROW
    with pytest.raises(InvalidInput, match=r"subject flights-value: .*carrier"):
        encode({"delay": 5})


def test_dataclasses_and_models_are_values(registry: Registry) -> None:
    @dataclass
    class Flight:
        carrier: str
        delay: int | None = None

    class FlightModel(BaseModel):
        carrier: str
        delay: int | None = None

    encode = serializer("avro", registry=registry.url, subject="flights-value", schema=AVRO)
    assert encode(Flight("UA", 5)) == encode(FlightModel(carrier="UA", delay=5)) == encode(ROW)


def test_serializer_travels_to_other_processes(registry: Registry) -> None:
    encode = serializer("avro", registry=registry.url, subject="flights-value", schema=AVRO)
    data = encode(ROW)
    again = pickle.loads(pickle.dumps(encode))
    assert again == encode
    assert again(ROW) == data
    decode = pickle.loads(pickle.dumps(deserializer("avro", registry=registry.url)))
    assert decode(data) == ROW
    with SchemaRegistryClient({"url": registry.url}) as client:
        assert deserializer("avro", registry=client)(data) == ROW


def test_value_that_does_not_fit_its_schema_is_refused(registry: Registry) -> None:
    encode = serializer("avro", registry=registry.url, subject="flights-value", schema=AVRO)
    with pytest.raises(InvalidInput, match=r"subject flights-value: .*'carrier': 7"):
        encode({"carrier": 7})
    with pytest.raises(InvalidInput, match="must not be None"):
        encode(None)


@pytest.mark.parametrize("data", [b"", b"\x00", b"UA1545 2013-01-01", b"\x05" + HEADER[1:] + b"x"])
def test_event_that_is_not_in_the_wire_format_is_refused(registry: Registry, data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"avro events: .*; the value is b'"):
        deserializer("avro", registry=registry.url)(data)


EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "n", "type": "int", "default": 0},
        {"name": "l", "type": ["null", "long"], "default": None},
        {"name": "f", "type": "float", "default": 0},
        {"name": "d", "type": "double", "default": 0},
        {"name": "s", "type": "string", "default": ""},
        {"name": "b", "type": ["null", "bytes"], "default": None},
        {"name": "yes", "type": "boolean", "default": False},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
        {"name": "us", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 0},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}, "default": 0},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal",
                                    "precision": 9, "scale": 2}], "default": None},
        {"name": "ids", "type": {"type": "array", "items": "int"}, "default": []},
        {"name": "tags", "type": {"type": "map", "values": ["int", "string"]}, "default": {}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"},
         "default": "00000000-0000-0000-0000-000000000000"},
    ],
}  # fmt: skip
AT = datetime(2026, 3, 1, 12, 0, 0, 123_000, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "row",
    [
        {"n": 1.7},
        {"n": 2.0},
        {"n": True},
        {"n": 2**40},
        {"l": 2**63},
        {"f": 1e300},
        {"f": 2**24 + 1},
        {"d": 2**53 + 1},
        {"s": 5},
        {"b": "text"},
        {"yes": 1},
        {"ms": AT.replace(tzinfo=None)},
        {"ms": AT + timedelta(microseconds=1)},
        {"us": AT.replace(tzinfo=None)},
        {"day": AT},
        {"at": AT.time().replace(microsecond=1)},
        {"price": Decimal("1.234")},
        {"price": Decimal("12345678.90")},
        {"price": 1.5},
        {"ids": [1, 2.5]},
        {"tags": {"a": 1.5}},
        {"unknown": 1},
        {"n": 1, "unknown": None},
    ],
)
def test_avro_value_that_would_come_back_as_another_is_refused(
    registry: Registry, row: dict[str, Any]
) -> None:
    encode = serializer("avro", registry=registry.url, subject="all-value", schema=EVERYTHING)
    with pytest.raises(InvalidInput, match="all-value"):
        encode(row)


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"f": 0.1, "d": 0.1, "n": -(2**31), "l": None},
        {"f": float("nan"), "d": float("-inf")},
        {"b": bytearray(b"x"), "ids": (1, 2), "tags": {"a": 1, "b": "x"}},
        {"ms": AT.astimezone(timezone(timedelta(hours=5))), "us": AT + timedelta(microseconds=1)},
        {"ms": 5, "day": date(2026, 3, 1), "at": AT.time()},
        {"price": Decimal("1.5"), "id": UUID(int=7)},
        {"id": str(UUID(int=10**30)).upper(), "l": ("long", 5)},
    ],
)
def test_avro_value_of_its_schema_is_taken_in_every_form(
    registry: Registry, row: dict[str, Any]
) -> None:
    encode = serializer("avro", registry=registry.url, subject="all-value", schema=EVERYTHING)
    decode = deserializer("avro", registry=registry.url)
    assert decode(encode(row)).keys() == {field["name"] for field in EVERYTHING["fields"]}


def test_values_of_the_other_formats_come_back_or_are_refused(
    registry: Registry, messages: tuple[Any, Any]
) -> None:
    encode = serializer("json", registry=registry.url, subject="json-value", schema=JSON_SCHEMA)
    assert encode({"carrier": "UA", "more": (1, 2.5)}).endswith(b'{"carrier":"UA","more":[1,2.5]}')
    for lost in ({"delay": float("nan")}, {"more": {1: "a"}}, {"delay": 1.5}, {"carrier": None}):
        with pytest.raises(InvalidInput, match="json-value"):
            encode({"carrier": "UA", **lost})
    flight, plane = messages
    encode = serializer("protobuf", registry=registry.url, subject="p-value", message=flight)
    with pytest.raises(InvalidInput, match="p-value"):
        encode(plane(tail="N1"))


def test_event_of_an_unknown_schema_is_refused(registry: Registry) -> None:
    with pytest.raises(InvalidSchema, match="the schema registry refused: Schema not found"):
        deserializer("avro", registry=registry.url)(HEADER + b"\x04UA\x00")


def test_schema_that_the_registry_refuses_is_invalid(registry: Registry) -> None:
    encode = serializer("avro", registry=registry.url, subject="flights-value", schema=AVRO)
    registry.failure = (409, {"error_code": 409, "message": "Schema being registered is incompat"})
    with pytest.raises(InvalidSchema, match=r"subject flights-value: .* refused: Schema being reg"):
        encode(ROW)
    registry.failure = None
    assert encode(ROW)[:5] == HEADER


def test_registry_that_does_not_answer_says_so_and_works_later(registry: Registry) -> None:
    conf = {"url": registry.url, "max.retries": 0}
    encode = serializer("avro", registry=conf, subject="flights-value", schema=AVRO)
    registry.failure = (503, {"error_code": 50301, "message": "no leader"})
    with pytest.raises(RegistryUnavailable, match=r"subject flights-value: .* failed: no leader"):
        encode(ROW)
    registry.failure = None
    assert encode(ROW)[:5] == HEADER
    with running_registry() as stopped:
        url = stopped.url
    lost = deserializer("avro", registry={"url": url, "max.retries": 0})
    with pytest.raises(RegistryUnavailable, match=r"avro events: .* does not answer: ConnectError"):
        lost(HEADER + b"x")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"name": "xml"}, "no serializer 'xml'; there are json, avro, protobuf"),
        ({"name": "avro", "schema": AVRO}, "needs a schema registry: give registry="),
        ({"name": "avro", "registry": "http://x", "schema": AVRO}, "needs the subject under which"),
        ({"name": "avro", "registry": "http://x", "subject": "s"}, "needs schema="),
        ({"name": "avro", "registry": "http://x", "subject": "s", "message": 1}, "no use for me"),
        ({"name": "json", "schema": AVRO}, "no use for a schema without a registry"),
        ({"name": "protobuf", "registry": "http://x", "subject": "s"}, "needs message="),
        ({"name": "avro", "registry": "http://x", "subject": "s", "schema": "none.avsc"},
         "no schema can be read from 'none.avsc'"),
        ({"name": "avro", "registry": "ftp://x", "subject": "s", "schema": AVRO}, "Invalid url"),
        ({"name": "avro", "registry": "http://x", "subject": "s", "schema": {"type": "x"}},
         "subject s: "),
        ({"name": "avro", "registry": "http://x", "subject": "s", "schema": AVRO,
          "options": {"use.latest": True}}, "Unrecognized properties: use.latest"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_serializer_are_refused(
    arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        pravega_spark.serializer(**arguments)(ROW)
