"""Names that a shell completes."""

from __future__ import annotations

import pytest

from pravega_spark.cli import main
from pravega_spark.manager import StreamManager


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("stream describe ", ["other/", "s/"]),
        ("stream describe s", ["s/fares", "s/flights", "s/rides"]),
        ("stream describe s/f", ["s/fares", "s/flights"]),
        ("reader-group describe s/", ["s/readers"]),
        ("kvt scan s/", ["s/prices"]),
        ("fsck s/", ["s/fares", "s/flights", "s/prices", "s/readers", "s/rides"]),
        ("scope delete ", ["other", "s"]),
        ("stream ls o", ["other"]),
        ("stream describe --root memory://elsewhere s", []),
        ("stream describe --output j", ["json"]),
        ("kv", ["kvt"]),
    ],
)
def test_shell_completes_the_names_of_the_root(
    manager: StreamManager,
    line: str,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("fares", "flights", "rides"):
        manager.create_stream(f"s/{name}")
    manager.create_reader_group("s/readers", ["s/rides"])
    manager.create_key_value_table("s/prices")
    monkeypatch.setenv("PRAVEGA_SPARK_ROOT", manager.root)
    monkeypatch.setenv("_PRAVEGA_SPARK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"pravega-spark {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(f"pravega-spark {line}".split(" ")) - 1))
    with pytest.raises(SystemExit):
        main([])
    out, err = capsys.readouterr()
    assert [text.partition(",")[2] for text in out.split()] == expected
    assert not err
