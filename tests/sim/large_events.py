"""Events too large for a chunk, which a history has as short texts."""

from __future__ import annotations

LEAST_BYTES = (8 << 20) + 1
"""What the package takes for a large event, in every release."""


def large_event(text: str, least: int = LEAST_BYTES) -> bytes:
    """Return the payload of a text, of at least so many bytes: lines that say both."""
    line = f"{text} {least}\n".encode()
    return line * (least // len(line) + 1)


def text_of(data: bytes) -> str:
    """Return the text of a payload; one that is not whole has a text that nobody wrote."""
    text, _, least = data.partition(b"\n")[0].decode(errors="replace").rpartition(" ")
    is_whole = least.isdigit() and data == large_event(text, int(least))
    return text if is_whole else f"{text}, not whole"
