"""Errors on the command line and in REST advise commands, and no calls of Python."""

from __future__ import annotations

from pathlib import Path

from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.manager import StreamManager
from pravega_spark.values.segments import StreamCut
from tests.harness.web_world import changing_client, new_manager
from tests.unit.cli.conftest import Shell


def test_errors_of_the_library_name_options_and_commands(shell: Shell) -> None:
    shell.manager.create_stream("s/a")
    shell.ok("stream", "append", "s/a", stdin=b"1\n2\n")
    shell.manager.subscribe("s/a", "slow", StreamCut("s/a", 1, {0: 0}))
    for argv, advice in (
        (("scope", "delete", "s", "-y"), "`pravega-spark scope delete --recursive`"),
        (("stream", "truncate", "s/a", "--before", "+1", "-y"), "--past-subscribers`"),
        (("stream", "update", "s/a"), "give --scaling, --retention, --setting, --add-tag or"),
        (("cut", "save", "s/a", "x", "--at", "s/a@9:0#0=1"), "`pravega-spark stream describe`"),
    ):
        error = shell.failed(*argv)
        assert advice in error
        assert not any(word in error for word in ("=True", "StreamConfiguration", "tail()"))
    large = shell.failed("stream", "append", "s/a", stdin=b"x" * (8 * 1_024 * 1_024 + 1))
    assert (
        "split it, or append it with `pravega-spark stream append --large-events`, which" in large
    )


def test_a_root_without_its_marker_names_the_command_that_writes_another(
    shell: Shell, tmp_path: Path
) -> None:
    StreamManager(tmp_path).create_scope("a")
    (tmp_path / MARKER_KEY).unlink()
    error = shell.failed("scope", "ls", "--root", str(tmp_path))
    assert "`pravega-spark scope create a` probes the storage" in error
    shell.ok("scope", "create", "a", "--root", str(tmp_path))
    assert shell.ok("scope", "ls", "-q", "--root", str(tmp_path)) == "a\n"


def test_errors_of_rest_name_commands_and_policies_as_texts() -> None:
    manager = new_manager()
    manager.create_stream("nyc/f")
    manager.seal_stream("nyc/f")
    with changing_client(manager) as client:
        refused = client.delete("/v1/scopes/nyc").json()["error"]["message"]
        assert "delete the scope with `pravega-spark scope delete --recursive`." in refused
        scaling = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 3}
        answer = client.put("/v1/scopes/nyc/streams/f", json={"scalingPolicy": scaling})
    assert answer.status_code == 409
    assert "or give the present one, fixed:1." in answer.json()["error"]["message"]
