"""Bytes: records of one size, each an event of its stream, whose offset is its number."""

from __future__ import annotations

from typing import Any

from tests.sim.lives import Body, Life, OpenCall
from tests.sim.workloads.common import stream_of

SIZE = 64
"""Bytes of a record."""


def _bytes_of(life: Life) -> Any:
    return stream_of(life, life.bytes, scaling=life.package.ScalingPolicy.fixed(1))


def _record(author: str, number: int) -> str:
    return f"{author}-{number}".ljust(SIZE, ".")


def byte_writer(records: int) -> Body:
    """Return a program that uploads records under an id, and goes on behind what is durable.

    What a kill cuts off in the middle of a record, the next life continues at its byte.
    """

    def body(life: Life) -> None:
        stream, draw = _bytes_of(life), life.source
        while True:
            try:
                writer = stream.create_byte_writer(f"{life.author}-id")
            except life.errors.PravegaSparkError:
                life.wait(1.0)
                continue
            if _upload(life, writer, records, draw):
                life.until_it_works(writer.close)
                return

    return body


def _upload(life: Life, writer: Any, records: int, draw: Any) -> bool:
    """Write records until all are durable; return False when the writer fails."""
    at = writer.acknowledged_bytes
    while at < records * SIZE:
        first, last = at // SIZE, min(records, at // SIZE + draw.randint(1, 4))
        calls: list[OpenCall] = [
            life.begin(
                "write",
                stream=life.bytes,
                writer=f"{life.author}-id",
                events=[[None, _record(life.author, number)]],
            )
            for number in range(first, last)
        ]
        data = "".join(_record(life.author, number) for number in range(first, last)).encode()
        try:
            writer.write(data[at - first * SIZE :])
            writer.flush()
        except life.errors.PravegaSparkError as error:
            for call in calls:
                call.ended_with(error)
            return False
        for number, call in enumerate(calls, first):
            call.ok([["0", number]])
        at = last * SIZE
        life.wait(draw.choice((0.0, 0.1, 1.0)))
    return True


def byte_reader(rounds: int) -> Body:
    """Return a program that reads all bytes up to the tail, perhaps a part of the last record."""

    def body(life: Life) -> None:
        stream = _bytes_of(life)

        def read() -> Any:
            with stream.create_byte_reader(follow=False) as reader:
                return reader.read()

        for _ in range(rounds):
            life.wait(life.source.choice((0.3, 2.0)))
            life.call("read", read, told=_told, stream=life.bytes)

    return body


def _told(data: bytes) -> Any:
    count = len(data) // SIZE
    records = [data[n * SIZE : (n + 1) * SIZE].decode() for n in range(count)]
    rows = [["0", number, None, record] for number, record in enumerate(records)]
    return {"from": {"0": 0}, "to": {"0": count}, "events": rows}
