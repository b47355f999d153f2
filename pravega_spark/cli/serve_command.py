"""``pravega-spark serve``: a page, Pravega's REST API, and more of our own, for one root."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from pravega_spark import __version__
from pravega_spark.cli.output import say
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.errors import InvalidOption
from pravega_spark.values.package import install_extra


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=int, default=9091, show_default=True, help="0 takes any free port.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the token that requests must have. Beyond this machine, and for changes, a "
    "token is needed; the variable PRAVEGA_SPARK_SERVE_TOKEN gives one, too.",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Also create, update, seal and delete by Pravega's REST API.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which requests may call this server; may be repeated.",
)
@click.option(
    "--poll",
    type=float,
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="The pause between looks at the root while a page is open.",
)
@click.option("--hide-events", is_flag=True, help="Show no payloads and no routing keys.")
@click.option(
    "--maintain", is_flag=True, help="Also do the maintenance of the root that is due meanwhile."
)
@root_option
def serve(
    root: str | None,
    host: str,
    port: int,
    token_file: Path | None,
    allow_changes: bool,
    allowed_hosts: Sequence[str],
    poll: float,
    hide_events: bool,
    maintain: bool,
) -> None:
    """Show the root as a page and by REST, at http://127.0.0.1:9091/ until Ctrl-C.

    It only reads, and asks the storage only while somebody looks, unless --maintain says more. If
    a token file or the variable PRAVEGA_SPARK_SERVE_TOKEN gives a token, every request must send
    it.
    """
    try:
        from pravega_spark.errors import without_credentials
        from pravega_spark.serve import web_server
        from pravega_spark.serve.serve_options import ServeOptions, host_names
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in (
            "fastapi",
            "pydantic",
            "starlette",
            "uvicorn",
        ):
            raise
        raise click.ClickException(f"serve needs {error.name}: {install_extra('serve')}.") from None
    options = ServeOptions(
        host=host,
        port=port,
        token=_token(token_file),
        allow_changes=allow_changes,
        allowed_hosts=host_names(allowed_hosts),
        poll_seconds=poll,
        hide_events=hide_events,
    )

    manager = open_root(root, maintain=maintain).manager

    def on_start(url: str) -> None:
        changes = "with changes" if allow_changes else "read-only"
        say(f"{url}  {without_credentials(manager.root)}, {changes}; Ctrl-C ends it")

    web_server.serve(manager, options, version=__version__, on_start=on_start)


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("PRAVEGA_SPARK_SERVE_TOKEN") or None
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"the token file {file} cannot be read: {error}.") from None
    if not text:
        raise InvalidOption(f"the token file {file} is empty; write a token into it.")
    return text
