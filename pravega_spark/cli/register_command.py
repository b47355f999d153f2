"""``pravega-spark register``: the SQL that puts streams into a catalog."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pravega_spark.cli.output import TABLE, output_option, show_value
from pravega_spark.cli.root_option import check_begun, open_root, root_option


@click.command("register")
@click.argument("patterns", nargs=-1, required=True, metavar="SCOPE/STREAM|PATTERN...")
@click.option("--scheme", metavar="NAME", help="The scheme of the tables' URLs, such as s3a.")
@click.option("--catalog", metavar="NAME", help="The catalog, if it is not the current one.")
@root_option
@output_option
def register(
    patterns: Sequence[str],
    scheme: str | None,
    catalog: str | None,
    root: str | None,
    output: str,
) -> None:
    """Print SQL that makes streams tables of a catalog, with a view that has the column offset.

    Spark is not started: give the SQL to spark-sql, a notebook or a job. Safe to repeat; after a
    truncation, repeat it for the views.

    Example: pravega-spark register 'nyc/*' > tables.sql && spark-sql -f tables.sql
    """
    from pravega_spark.table_statements import streams_like, table_statements

    manager, store = open_root(root)
    check_begun(store, streams_like(manager, patterns))
    statements = list(table_statements(manager, patterns, scheme=scheme, catalog=catalog))
    if output == TABLE:
        for statement in statements:
            click.echo(f"{statement};")
    else:
        show_value(statements, output)
