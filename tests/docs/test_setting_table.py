"""The table of docs/settings.md is that of the code.

``PRAVEGA_SPARK_WRITE_DOCS=1 pytest tests/docs`` writes the table again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from pravega_spark.config.root_settings import SETTING_NAMES, STREAM_SETTING_NAMES, rule_of

PAGE = Path(__file__).parents[2] / "docs/settings.md"
READ_BY = {
    "grace": "`sweep_stream`, `sweep_scope`",
    "retain": "`sweep_stream`, `sweep_scope`",
    "sample_every": "`retention(stream).run`",
    "expire": "`retention(stream).run` and `explain`",
    "keep_completed": "`sweep_stream`",
    "keep_records": "`sweep_stream`",
    "prepared_limit": "`sweep_transactions`, `sweep_stream`, transactional writers",
    "compact_target": "`compact_stream`",
    "compact_head_after": "`compact_stream`",
    "timestamp_aggregation_timeout": "`event_time(stream).update`, `includeWatermark`",
    "maintain": "a `StreamManager` that was opened without `maintain`",
}
"""The calls that read a setting, besides maintenance; a retention run sweeps, too."""


def _readers(name: str) -> str:
    return READ_BY.get(name, '`maintain="auto"`, `--interval`')


def _table() -> str:
    lines = [
        "| setting | default | limits | of a stream | read by | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in SETTING_NAMES:
        rule, of_stream = rule_of(name), "yes" if name in STREAM_SETTING_NAMES else "no"
        cells = (f"`{name}`", rule.default, rule.limits, of_stream, _readers(name), rule.meaning)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_table_of_settings_is_the_code_s() -> None:
    pattern = re.compile(r"(<!-- settings: [^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)
    text = PAGE.read_text()
    if os.environ.get("PRAVEGA_SPARK_WRITE_DOCS"):
        text = pattern.sub(lambda found: found[1] + _table() + found[3], text)
        PAGE.write_text(text)
    found = pattern.search(text)
    assert found is not None
    assert found[2] == _table()
