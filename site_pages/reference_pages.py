"""The reference: one page for each room of the package, and the tables of the code's own options.

Nothing here is written twice. Classes come from their docstrings, commands from click, jobs from
their parsers, and options from the tables that parse them.
"""

from __future__ import annotations

import contextlib
import io

import pravega_spark
from pravega_spark.jobs import (
    compaction,
    export_stream,
    import_stream,
    maintenance,
    retention,
    scaling,
    transactions,
)
from pravega_spark.spark import options

_ROOMS = {
    "streams": ("Streams and scopes", ("manager", "stream", "values", "config", "event_time")),
    "writers": ("Writers", ("event_writer", "engine.writing")),
    "readers": ("Readers", ("event_reader",)),
    "reader-groups": ("Reader groups", ("reader_groups",)),
    "transactions": ("Transactions", ("txn",)),
    "key-value-tables": ("Key-value tables", ("key_value", "spark.key_value")),
    "byte-streams": ("Byte streams", ("byte_streams",)),
    "shared-state": ("Shared state", ("shared_state",)),
    "scaling": ("Scaling", ("scaling",)),
    "retention": ("Retention", ("retention",)),
    "maintenance": (
        "Maintenance and storage",
        (
            "maintenance",
            "compaction",
            "backup",
            "config.root_settings",
            "engine.log",
            "engine.stream",
        ),
    ),
    "metrics": ("Metrics", ("metrics",)),
    "security": (
        "Encryption and principals",
        ("config.encryption", "engine.key_management", "engine.runtime.principal"),
    ),
    "spark": ("Spark helpers", ("spark",)),
    "more": ("More", ()),
}
"""Title and modules of each page; a name is on the page of the longest module that holds it.

What no page holds is on the last one.
"""
_ALSO = {"session": "spark"}
"""Names that ``pravega_spark`` itself defines."""
JOBS = (
    *(maintenance, retention, scaling, transactions, compaction),
    *(import_stream, export_stream),
)


def reference_pages() -> dict[str, tuple[str, str]]:
    """Return title and Markdown of each page of the reference, by its place in the site."""
    pages = {f"reference/{page}.md": rendered for page, rendered in _rooms().items()}
    pages["reference/errors.md"] = ("Errors", _errors())
    pages["reference/command-line.md"] = ("Command line", _command_line())
    pages["reference/jobs.md"] = ("Jobs", _jobs())
    pages["reference/options.md"] = ("Options of the data sources", _options())
    return pages


def _rooms() -> dict[str, tuple[str, str]]:
    names: dict[str, list[str]] = {page: [] for page in _ROOMS}
    for name in sorted(set(pravega_spark.__all__) - {"errors", "PravegaSparkError"}):
        names[_ALSO.get(name) or _page_of(pravega_spark._HOMES[name])].append(name)
    found = {}
    for page, (title, _) in _ROOMS.items():
        if not names[page]:
            continue
        blocks = "\n\n".join(f"::: pravega_spark.{name}" for name in names[page])
        found[page] = (title, f"# {title}\n\n{blocks}\n")
    return found


def _page_of(module: str) -> str:
    held = [
        (len(room), page)
        for page, (_, rooms) in _ROOMS.items()
        for room in rooms
        if module == room or module.startswith(f"{room}.")
    ]
    return max(held, default=(0, "more"))[1]


def _errors() -> str:
    return (
        "# Errors\n\n[Troubleshooting](../troubleshooting.md) has the causes and the way on.\n\n"
        "::: pravega_spark.errors\n    options:\n      show_root_heading: false\n"
        "      show_root_toc_entry: false\n"
    )


def _command_line() -> str:
    return (
        "# Command line\n\nThe command `pravega-spark` starts neither Spark nor a JVM.\n\n"
        "::: mkdocs-click\n    :module: pravega_spark.cli.commands\n"
        "    :command: commands\n    :prog_name: pravega-spark\n    :depth: 1\n"
        "    :style: table\n    :list_subcommands: True\n"
    )


def _jobs() -> str:
    text = (
        "# Jobs\n\nEach job runs with `python -m pravega_spark.jobs.NAME`, or with its file of "
        "`jobs/` by `spark-submit`. [Maintenance](../maintenance.md) says what runs when.\n"
    )
    for job in JOBS:
        text += f"\n## {job.PROG}\n\n```text\n{_help_of(job)}```\n"
    return text


def _help_of(job: object) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        job.main(["--help"])  # type: ignore[attr-defined]
    return output.getvalue()


def _options() -> str:
    text = (
        "# Options of the data sources\n\n[spark.md](../spark.md) shows them. Spark ignores the "
        "case of a name, and an empty text counts as not set.\n"
    )
    for title, use in (
        ("Read from `pravega`", options.READ),
        ("Write to `pravega`", options.WRITE),
        ("Read from `pravega_kvt`", options.TABLE_READ),
        ("Write to `pravega_kvt`", options.UPSERT),
    ):
        text += f"\n## {title}\n\n{option_table(use)}"
    return text


def option_table(use: options.Use, told: options.Use | None = None) -> str:
    """Return the options of a use as a table in Markdown; those of ``told`` by name alone."""
    found = options.options_of(use)
    known = [option for option in found if told is not None and option.use & told]
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    if known:
        names = ", ".join(f"`{option.name}`" for option in known)
        lines[:0] = ["", f"As in the tables above: {names}.", ""]
    for option in found:
        if option not in known:
            names = " ".join(f"`{name}`" for name in (option.name, *option.aliases))
            lines.append(f"| {names} | {option.default_text} | {option.meaning} |")
    return "\n".join(lines) + "\n"
