"""What a job of import or export says of an error: the cause, and the job's own way on."""

from __future__ import annotations

import re

from pravega_spark.limits import DELTA_PACKAGE, KAFKA_PACKAGE

PACKAGES = {"kafka": KAFKA_PACKAGE, "delta": DELTA_PACKAGE}
"""What a format needs of Maven; other formats are Spark's own."""
_OWN_ERROR = re.compile(r"pravega_spark\.errors\.\w+: (.+)")
"""An error of a task or of the driver's Python process, in Spark's text of it."""
_MISSING = ("DATA_SOURCE_NOT_FOUND", "STREAM_FAILED_TO_FIND_DATA_SOURCE")
_FILE = re.compile(r"\[FAILED_READ_FILE\S*\] (Encountered error while reading file \S+)")
_ROW = re.compile(r"\[MALFORMED_RECORD_IN_PARSING\S*\] (Malformed records .+?)\.\s+Parse Mode")
_HEADER = re.compile(r"CSV header does not conform to the schema\.\s+(.+?CSV file: \S+)", re.DOTALL)
_WIDTH = re.compile(r"Number of column in CSV header is not equal.+?CSV file: \S+", re.DOTALL)
_OF_A_QUERY = re.compile(r"\[STREAM_FAILED\] Query \[.+?\] terminated with exception: ")
_WAYS_ON = {
    "column headers is not empty": "the job leaves them out with --drop-headers, and keeps them "
    "as a column with --typed",
    "option nullValues": "for the job that is --null-values",
    "option keyEncoding": "for the job that is --key-encoding percent, or --key 'hex(key)'",
    "of the option scope": "for the job that is --scope; import a topic whose name is no name of "
    "a stream by itself, into --stream",
    "option failOnDataLoss": "for the job that is --option failOnDataLoss=false",
    "UnknownTopicOrPartitionException": "a topic does not exist: create it, or correct --topics",
    "Wrong basePath": "the checkpoint is of an import from another folder: move the files back "
    "there, and name it by --path; or take a new checkpoint, which reads all files again",
}
"""What the job adds to an error that names an option of the data source, or no name at all."""


def text_of(error: Exception, prog: str, kind: str, what: str) -> str:
    """Return what the user needs of an error of Spark, or of this package.

    ``kind`` is the format that the job reads or writes, and ``what`` says what it copies.
    """
    text = str(error).strip()
    if kind in PACKAGES and (f"data source: {kind}" in text or any(n in text for n in _MISSING)):
        return f"Spark has no format {kind}: start it with --packages {PACKAGES[kind]}."
    if "INVALID_UTF8_STRING" in text:
        return f"{_not_a_text(prog)} ({text.splitlines()[0]})"
    found = _misfit(text)
    if found is not None:
        return found
    own = _OWN_ERROR.findall(text)
    shown = str(own[-1]) if own else _cause(text)
    ways = [way for cause, way in _WAYS_ON.items() if cause in shown]
    return " ".join([shown, *(f"Copying {what}, {way}." for way in ways)])


def _cause(text: str) -> str:
    """Return Spark's text of an error without the query, its plan and the stack."""
    first = text.partition("\n\n")[0].partition("\n=== Streaming Query ===")[0]
    return _OF_A_QUERY.sub("", first).strip()


def _not_a_text(prog: str) -> str:
    if prog == "export_stream":
        return "an event is not text: use --event-as base64."
    return "a key is not UTF-8, and a routing key is text: use --key, such as --key 'hex(key)'."


def _misfit(text: str) -> str | None:
    """Return what to do about a file whose rows or header are not those of the schema."""
    header = _HEADER.search(text) or _WIDTH.search(text)
    if header is not None:
        found = " ".join(header[header.lastindex or 0].split())
        return (
            f"the header of a file is not that of the others, or of --schema: {found}. Correct "
            "the file; or --option enforceSchema=true, which takes columns by their place."
        )
    row = _ROW.search(text)
    if row is None:
        return None
    file = _FILE.search(text)
    return (
        f"a row does not fit the columns of its file: {row[1]}{f'; {file[1]}' if file else ''}. "
        "Correct the file, or give --schema; or --option mode=PERMISSIVE, which makes null of "
        "values that do not fit, and drops what a row has too much."
    )
