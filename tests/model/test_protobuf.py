"""Random Protobuf messages through a stream: what comes back is what was written, as Kafka has it.

Files of nested types are drawn, with fields of all scalar types, lists and messages. An event is
Confluent's header, the indexes of its type in the file, and the message, whoever reads it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

from pravega_spark import StreamManager
from pravega_spark.errors import InvalidInput
from pravega_spark.serializers import deserializer, serializer
from tests.harness.schema_registry import Registry, running_registry
from tests.harness.tiers import sized

F = descriptor_pb2.FieldDescriptorProto
TEXTS = ("", "a", "é\n", "\u202e", "x" * 300)
DRAWS: dict[int, Any] = {
    F.TYPE_STRING: lambda dice: dice.choice(TEXTS),
    F.TYPE_BYTES: lambda dice: dice.randbytes(dice.choice((0, 1, 300))),
    F.TYPE_BOOL: lambda dice: dice.random() < 0.5,
    F.TYPE_INT32: lambda dice: dice.choice((0, -1, 2**31 - 1, -(2**31))),
    F.TYPE_SINT64: lambda dice: dice.choice((0, -1, 2**63 - 1, -(2**63))),
    F.TYPE_FIXED64: lambda dice: dice.choice((0, 1, 2**64 - 1)),
    F.TYPE_DOUBLE: lambda dice: dice.choice((0.0, -0.0, 1e-320, 1.5, float("inf"))),
}
_files = itertools.count()


class Drawn:
    """A file of drawn types; each class with the indexes that lead to it."""

    def __init__(self, dice: random.Random) -> None:
        number = next(_files)
        self.dice, self.package = dice, f"drawn{number}"
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{self.package}.proto", package=self.package, syntax="proto3"
        )
        self.paths: dict[str, tuple[int, ...]] = {}
        for index in range(dice.randint(1, 3)):
            self._draw(file.message_type.add(name=f"M{index}"), (index,), self.package)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self.classes = {
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
            for name in self.paths
        }

    def _draw(self, found: Any, path: tuple[int, ...], parent: str) -> None:
        name = f"{parent}.{found.name}"
        self.paths[name] = path
        for number in range(1, self.dice.randint(1, 5)):
            label = self.dice.choice((F.LABEL_OPTIONAL, F.LABEL_OPTIONAL, F.LABEL_REPEATED))
            kind = self.dice.choice(list(DRAWS))
            found.field.add(name=f"f{number}", number=number, type=kind, label=label)
        for index in range(self.dice.randint(0, 2) if len(path) < 3 else 0):
            nested = found.nested_type.add(name=f"N{index}")
            self._draw(nested, (*path, index), name)
            found.field.add(
                name=f"n{index}", number=20 + index, type=F.TYPE_MESSAGE, label=1,
                type_name=f".{name}.N{index}",
            )  # fmt: skip

    def message(self, made: Any) -> Any:
        """Return a message of a class with drawn fields; each may be left out."""
        for field in made.DESCRIPTOR.fields:
            if self.dice.random() < 0.3:
                continue
            if field.type == F.TYPE_MESSAGE:
                self.message(getattr(made, field.name)).SetInParent()
            elif hasattr(getattr(made, field.name), "extend"):
                draws = [DRAWS[field.type](self.dice) for _ in range(self.dice.randint(0, 3))]
                getattr(made, field.name).extend(draws)
            else:
                setattr(made, field.name, DRAWS[field.type](self.dice))
        return made


def header(schema_id: int, path: tuple[int, ...]) -> bytes:
    """Return Confluent's prefix: a zero, the schema's id, the indexes as zigzags; (0,) is short."""
    indexes = b"\x00" if path == (0,) else bytes(2 * n for n in (len(path), *path))
    return b"\x00" + schema_id.to_bytes(4, "big") + indexes


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with running_registry() as found:
        yield found


def play(seed: int, registry: Registry) -> None:
    dice = random.Random(seed)
    drawn = Drawn(dice)
    manager = StreamManager(f"memory://protobuf-{seed}")
    manager.create_scope("s")
    chosen = dice.sample(list(drawn.classes.items()), min(4, len(drawn.classes)))
    for number, (name, kind) in enumerate(chosen):
        stream = f"s/t{number}"
        manager.create_stream(stream)
        encode = serializer(
            "protobuf", registry=registry.url, subject=f"{name}-value", message=kind
        )
        written = [drawn.message(kind()) for _ in range(dice.randint(1, 4))]
        with manager.create_writer(stream, serializer=encode) as writer:
            for message in written:
                writer.write_event(message, "key")
            others = [other for other in drawn.classes.values() if other is not kind]
            if others:
                with pytest.raises(InvalidInput, match=name):
                    writer.write_event(drawn.message(others[0]()))
        decode = deserializer("protobuf", registry=registry.url, message=kind)
        reader = manager.create_reader(stream, deserializer=decode)
        assert [event.data for event in reader.events()] == written
        [schema_id] = registry.subjects[f"{name}-value"]
        plain = [event.data for event in manager.read(stream)]
        starts = header(schema_id, drawn.paths[name])
        for data, message in zip(plain, written, strict=True):
            assert data.startswith(starts), f"{name}: {data[:12]!r}, not {starts!r}"
            assert kind.FromString(data[len(starts) :]) == message


@pytest.mark.long
def test_messages_of_drawn_types_come_back(registry: Registry) -> None:
    for seed in range(sized(3, 2_000, "PROTOBUF_SEEDS")):
        try:
            play(seed, registry)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
