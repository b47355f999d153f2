"""Serializers by name: JSON, and with a schema registry Avro, Protobuf and JSON Schema.

With a registry, the bytes of an event are those of a Kafka message in Confluent's wire format: a
zero byte, the schema's id in four bytes, for Protobuf the indexes of the message's type, and the
encoded value. So a topic's values can become events as they are, and back. Confluent's own client
writes and reads them; it is in the extra ``registry``.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pravega_spark.engine.writing.encode import Serializer, json_serializer
from pravega_spark.errors import InvalidInput, InvalidSchema, RegistryUnavailable
from pravega_spark.event_reader import json_deserializer
from pravega_spark.primitives.lazy_property import lazy_property
from pravega_spark.values.checks import shown
from pravega_spark.values.events import Deserializer
from pravega_spark.values.package import install_extra

_NAMES: Final = ("json", "avro", "protobuf")
_BUSY: Final = (408, 429)


def serializer(
    name: str,
    *,
    registry: Any = None,
    subject: str | None = None,
    schema: Any = None,
    message: Any = None,
    options: Mapping[str, Any] | None = None,
) -> Serializer:
    """Return the serializer ``json``, ``avro`` or ``protobuf``, to give to a writer.

    ``json`` needs nothing else: it writes plain JSON. The others, and ``json`` with a registry,
    write Confluent's wire format. They need the ``registry``, as a URL, as the options of
    Confluent's client, or as such a client, and the ``subject`` under which it keeps the schema,
    such as ``flights-value`` for the topic ``flights``.

    ``schema`` is an Avro schema or a JSON Schema: parsed, as JSON, or as the path of a file;
    ``message`` is the class of a Protobuf message. ``options`` are those of Confluent's serializer,
    such as ``{"auto.register.schemas": False, "use.latest.version": True}``.

    Events are dicts, dataclasses or pydantic models; for Protobuf they are messages. An event that
    does not fit its schema raises InvalidInput, and a schema that the registry refuses
    InvalidSchema. RegistryUnavailable says that the registry does not answer. The serializer
    can be pickled, unless the registry is a client.
    """
    _check(name, registry, schema, message)
    if name == "json" and registry is None:
        return json_serializer
    if not isinstance(subject, str) or not subject:
        raise InvalidInput(
            f"the serializer {name!r} needs the subject under which the registry keeps its schema, "
            f"such as 'flights-value' for the topic flights; got {shown(subject)}."
        )
    text = _schema_text(schema)
    return _RegistrySerializer(
        name=name,
        registry=registry,
        subject=subject,
        schema=text,
        message=message,
        options=dict(options or {}),
    )


def deserializer(
    name: str,
    *,
    registry: Any = None,
    schema: Any = None,
    message: Any = None,
    options: Mapping[str, Any] | None = None,
) -> Deserializer:
    """Return the deserializer ``json``, ``avro`` or ``protobuf``, to give to a reader.

    The arguments are those of :func:`serializer`. Events become dicts, and messages for Protobuf,
    which needs ``message``. Avro reads with the schema that an event was written with, which the
    registry knows, or as ``schema`` if that is given. An event that is not in Confluent's wire
    format, or not of its schema, raises InvalidInput.
    """
    _check(name, registry, schema, message, reads=True)
    if name == "json" and registry is None:
        return json_deserializer
    text = _schema_text(schema)
    return _RegistryDeserializer(
        name=name,
        registry=registry,
        subject="",
        schema=text,
        message=message,
        options=dict(options or {}),
    )


def _check(name: Any, registry: Any, schema: Any, message: Any, *, reads: bool = False) -> None:
    if name not in _NAMES:
        raise InvalidInput(f"there is no serializer {shown(name)}; there are {', '.join(_NAMES)}.")
    if registry is None and name != "json":
        raise InvalidInput(
            f"the serializer {name!r} needs a schema registry: give registry='http://host:8081', "
            "the options of Confluent's client, or such a client."
        )
    if name == "protobuf":
        if not hasattr(message, "DESCRIPTOR") or schema is not None:
            raise InvalidInput(
                "the serializer 'protobuf' needs message=, the class of the message that protoc "
                f"generated, and no schema; got {shown(message)}."
            )
    elif message is not None or (registry is None and schema is not None):
        raise InvalidInput(
            f"the serializer {name!r} has no use for {'message' if message is not None else 'a'}"
            f"{'' if message is not None else ' schema without a registry'}; leave it out."
        )
    elif schema is None and registry is not None and not reads:
        raise InvalidInput(f"the serializer {name!r} needs schema=: a dict, JSON, or a path.")


def _schema_text(schema: Any) -> str | None:
    """Return a schema as the JSON that a registry keeps."""
    if schema is None:
        return None
    if isinstance(schema, (Mapping, list)):
        return json.dumps(schema)
    try:
        text: str = os.fspath(schema)
        if not text.lstrip().startswith(("{", "[", '"')):
            with open(text, encoding="utf-8") as file:
                text = file.read()
        json.loads(text)
    except (OSError, TypeError, ValueError, AttributeError) as error:
        raise InvalidSchema(
            f"no schema can be read from {shown(schema)}: {error}; give a dict, JSON, or a path."
        ) from None
    return text


@dataclass(frozen=True)
class _RegistryFormat:
    """A format of events whose schemas are in a registry; opened when it is first used."""

    name: str
    registry: Any
    subject: str
    schema: str | None
    message: Any
    options: dict[str, Any] = field(hash=False)

    @lazy_property
    def _client(self) -> Any:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ModuleNotFoundError as error:
            raise InvalidInput(
                f"a schema registry needs Confluent's client ({error}): "
                f"{install_extra('registry')}."
            ) from None
        if isinstance(self.registry, str):
            return SchemaRegistryClient({"url": self.registry})
        if isinstance(self.registry, Mapping):
            return SchemaRegistryClient(dict(self.registry))
        return self.registry

    @lazy_property
    def _context(self) -> Any:
        from confluent_kafka.serialization import MessageField, SerializationContext

        return SerializationContext(self.subject or "events", MessageField.VALUE)

    @lazy_property
    def _settings(self) -> dict[str, Any]:
        subject = self.subject
        return {"subject.name.strategy": lambda *_: subject or None, **self.options}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is opened."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}


class _RegistrySerializer(_RegistryFormat):
    """Encodes events with the schema of its subject."""

    def __call__(self, event: Any) -> bytes:
        with _explained(self, event):
            given = event if self.name == "protobuf" else _as_dict(event)
            found = self._encode(given, self._context)
            if not isinstance(found, bytes):
                raise InvalidInput(f"an event for subject {self.subject} must not be None.")
            if self.name != "protobuf":  # whose messages are of their type
                self._check_kept(given, found)
        return found

    def _check_kept(self, given: Any, found: bytes) -> None:
        """Raise InvalidInput unless the event comes back as it was given.

        Rules of a schema may change events on purpose: nothing is said of those.
        """
        from pravega_spark.schemas.kept_values import what_is_lost

        schema = self._client.get_schema(int.from_bytes(found[1:5], "big"))
        if found[:1] != b"\0" or getattr(schema, "rule_set", None) is not None:
            return
        if self.name == "avro" and not schema.references:
            from fastavro.validation import validate

            validate(given, self._parsed(schema.schema_str))
        lost = what_is_lost(given, self._decode(found, self._context))
        if lost is not None:
            raise InvalidInput(f"an event for subject {self.subject} is not of its schema: {lost}.")

    def _parsed(self, text: str) -> Any:
        from fastavro import parse_schema

        if self._schemas.get(text) is None:
            self._schemas.clear()
            self._schemas[text] = parse_schema(json.loads(text))
        return self._schemas[text]

    @lazy_property
    def _schemas(self) -> dict[str, Any]:
        return {}

    @lazy_property
    def _decode(self) -> Callable[[Any, Any], Any]:
        client = self._client  # reads with the schema that the event was written with
        return _RegistryDeserializer(
            name=self.name,
            registry=client,
            subject=self.subject,
            schema=None,
            message=None,
            options={},
        )._decode

    @lazy_property
    def _encode(self) -> Callable[[Any, Any], Any]:
        client, settings = self._client, self._settings
        if self.name == "avro":
            from confluent_kafka.schema_registry.avro import AvroSerializer

            return AvroSerializer(client, self.schema, conf=settings)  # type: ignore[no-any-return]
        if self.name == "protobuf":
            from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

            return ProtobufSerializer(self.message, client, conf=settings)  # type: ignore[no-any-return]
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        return JSONSerializer(self.schema, client, conf=settings)  # type: ignore[no-any-return]


class _RegistryDeserializer(_RegistryFormat):
    """Decodes events with the schema whose id they begin with."""

    def __call__(self, data: bytes) -> Any:
        """Return the value of an event in the wire format."""
        with _explained(self, data):
            return self._decode(data, self._context)

    @lazy_property
    def _decode(self) -> Callable[[Any, Any], Any]:
        client, settings = self._client, self._settings
        if self.name == "avro":
            from confluent_kafka.schema_registry.avro import AvroDeserializer

            return AvroDeserializer(client, self.schema, conf=settings)  # type: ignore[no-any-return]
        if self.name == "protobuf":
            from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

            return ProtobufDeserializer(self.message, settings, client)  # type: ignore[no-any-return]
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        return JSONDeserializer(self.schema, None, client, settings)  # type: ignore[no-any-return]


def _as_dict(event: Any) -> Any:
    """Return a dataclass or a model of pydantic as a dict, and anything else as it is."""
    if dataclasses.is_dataclass(event) and not isinstance(event, type):
        return dataclasses.asdict(event)
    dump = getattr(event, "model_dump", None)
    return event if dump is None else dump()


@contextmanager
def _explained(of: _RegistryFormat, value: Any) -> Iterator[None]:
    """Raise the errors of Confluent's client as ours."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:
        status = getattr(error, "http_status_code", None)
        what = f"subject {of.subject}" if of.subject else f"{of.name} events"
        if status is None and _is_transport(error):
            raise RegistryUnavailable(
                f"{what}: the schema registry does not answer: {error!r}; call again, or check its "
                "URL."
            ) from error
        if status is not None and (status >= 500 or status in _BUSY):
            raise RegistryUnavailable(
                f"{what}: the schema registry failed: {error}; call again."
            ) from error
        if status is not None:
            raise InvalidSchema(f"{what}: the schema registry refused: {error}.") from error
        raise InvalidInput(
            f"{what}: {type(error).__name__}: {error}; the value is {shown(value)}. It must be of "
            f"the schema, and in Confluent's wire format where it is read."
        ) from error


def _is_transport(error: BaseException) -> bool:
    """Return True if no answer came: an error of the HTTP client, or of a socket."""
    names = {base.__name__ for base in type(error).__mro__}
    return isinstance(error, OSError) or "TransportError" in names
