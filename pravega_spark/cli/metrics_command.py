"""``pravega-spark metrics``: the metrics of a root in Prometheus' form, printed or in a file."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pravega_spark.cli.output import say
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.metrics.catalog import MAX_MEASURED_STREAMS
from pravega_spark.metrics.textfile import check_textfile


@click.command("metrics")
@click.option(
    "--textfile",
    metavar="PATH",
    help="Write a file *.prom for node_exporter's textfile collector, in one step, instead of "
    "printing.",
)
@click.option("--scope", "scopes", multiple=True, help="Only of this scope; may be repeated.")
@click.option(
    "--max-streams",
    type=int,
    default=MAX_MEASURED_STREAMS,
    show_default=True,
    help="The most streams, and the most groups, with metrics; pravega_scrape_skipped counts the "
    "others.",
)
@root_option
def metrics(root: str | None, textfile: str | None, scopes: Sequence[str], max_streams: int) -> int:
    """Print the metrics of the root for Prometheus, computed from its logs.

    From cron: pravega-spark metrics --textfile /var/lib/node_exporter/streams.prom, where
    node_exporter runs with --collector.textfile.directory=/var/lib/node_exporter.
    """
    if textfile is not None:
        check_textfile("--textfile", textfile)
    from pravega_spark.metrics.prometheus import root_metrics

    try:
        found = root_metrics(open_root(root).manager, max_streams=max_streams, scopes=scopes)
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        say(str(error), err=True)
        return 1
    if textfile is None:
        click.echo(found.text(), nl=False)
    else:
        try:
            found.write_textfile(textfile)
        except OSError as error:  # it names the temporary file beside the given one
            reason = f"--textfile {textfile} is not written: {error.strerror}."
            raise type(error)(reason) from error
    return 0
