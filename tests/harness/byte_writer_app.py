"""A process that writes known bytes under an id, and records what was durable; it may be killed."""

from __future__ import annotations

import sys

from pravega_spark.manager import StreamManager

STREAM = "s/bytes"
STEP = 16


def known_bytes(first: int, last: int) -> bytes:
    """Return the bytes [first, last) of an endless text of numbers, each of 16 digits."""
    begin = first // STEP
    text = b"".join(b"%016d" % number for number in range(begin, -(-last // STEP)))
    return text[first - begin * STEP : last - begin * STEP]


def main(root: str, ledger: str, total: int) -> None:
    """Continue behind what the log has, up to ``total`` bytes."""
    with (
        open(ledger, "a", buffering=1, encoding="utf-8") as durable,
        StreamManager(root).create_byte_writer(STREAM, "upload") as writer,
    ):
        at, turn = writer.acknowledged_bytes, 0
        while at < total:
            turn += 1
            size = min(total - at, 1 + turn * 7_919 % 90_000)
            writer.write(known_bytes(at, at + size))
            at += size
            if turn % 5 == 0:
                writer.flush()
                durable.write(f"{at}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
