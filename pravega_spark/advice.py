"""The advice of errors in words of the command line, for those who do not call Python.

Errors are written for callers of this package: ``delete the scope with recursive=True``. The
command line and the web server show the same errors to people who have commands instead.
"""

from __future__ import annotations

import re
from typing import Final

_UPDATE: Final = "`pravega-spark stream update`"
_PHRASES: Final = tuple(
    (re.compile(phrase), words)
    for phrase, words in (
        (r"recursive=True", "`pravega-spark scope delete --recursive`"),
        (r"past_subscribers=True", "`pravega-spark stream truncate --past-subscribers`"),
        (
            r"create the writer with large_events=True, which takes",
            "append it with `pravega-spark stream append --large-events`, which takes",
        ),
        (
            r"give a StreamConfiguration, or some of [a-z_, ]+",
            "give --scaling, --retention, --setting, --add-tag or --remove-tag",
        ),
        (
            r"A manager that was made before keeps to that root, even if it was never used",
            "This process keeps to that root",
        ),
        (r"through a new\s+StreamManager", "in a new process"),
        (r"by StreamManager\.seal_stream", "by `pravega-spark stream seal`"),
        (r"by remove_tags", f"by {_UPDATE} --remove-tag"),
        (
            r"create_scope\('([^']+)'\) of a new StreamManager",
            r"`pravega-spark scope create \1`",
        ),
        (
            r"take cuts from readers or `tail\(\)`",
            "take cuts from `pravega-spark stream describe` or `cut ls`",
        ),
    )
)


def command_line_advice(message: str) -> str:
    """Return the message of an error with commands instead of calls of Python."""
    for phrase, words in _PHRASES:
        message = phrase.sub(words, message)
    return message
