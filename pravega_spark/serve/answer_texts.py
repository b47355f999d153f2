"""What answers say of errors: no credentials, no path of the server's host, no calls of Python."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

from pravega_spark.advice import command_line_advice
from pravega_spark.errors import without_credentials
from pravega_spark.primitives.printable import printable


def said(error: object, root_url: str) -> str:
    """Return what an answer says of an error: a path in it is one below the root."""
    text = without_credentials(command_line_advice(str(error)))
    for start in _starts(root_url):
        text = text.replace(f"{start}/", "").replace(start, "the root")
    return text


@lru_cache(64)
def _starts(url: str) -> tuple[str, ...]:
    """Return how paths of the root may begin in a text, the longest first."""
    whole = without_credentials(url).partition("?")[0].rstrip("/")
    found = {whole}
    if whole.startswith("file:"):
        path = "/" + whole.removeprefix("file:").lstrip("/")
        for one in (path, unquote(path), quote(path)):
            found |= {one, f"file://{one}", f"file:{one}"}
    texts = {text for start in found for text in (start, printable(start))}
    return tuple(sorted((t for t in texts if len(t.strip("/:")) > 1), key=len, reverse=True))
