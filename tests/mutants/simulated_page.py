"""The part of docs/reliability.md that says which faults the simulator shows, from the record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.mutants.faults import FAULTS, NOT_SHOWN

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("simulated.json")
"""What the last recorded run found."""
PAGE = ROOT / "docs/reliability.md"
_BEGIN, _END = "<!-- simulated faults -->\n", "<!-- end of simulated faults -->\n"


def kept() -> Mapping[str, Any]:
    """Return the record."""
    found: Mapping[str, Any] = json.loads(RECORD.read_text())
    return found


def keep(faults: Sequence[Mapping[str, Any]], seeds: int, most: int) -> None:
    """Write the record, and the page's part from it."""
    ordered = sorted(faults, key=lambda one: str(one["promise"]))
    record = {"seeds": seeds, "most": most, "faults": ordered}
    RECORD.write_text(f"{json.dumps(record, indent=1, sort_keys=True)}\n")
    page = PAGE.read_text()
    before, _, rest = page.partition(_BEGIN)
    PAGE.write_text(f"{before}{_BEGIN}{text(kept())}{_END}{rest.partition(_END)[2]}")


def on_page() -> str:
    """Return the part that the page has."""
    return PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0]


def text(record: Mapping[str, Any]) -> str:
    """Return the part as Markdown."""
    faults = record["faults"]
    caught = [one for one in faults if one["verdict"] == "caught"]
    unshown = sum(map(len, NOT_SHOWN.values()))
    share = round(100 * len(caught) / len(faults))
    lines = [
        f"Of the {len(FAULTS)} faults of `make mutants`, {unshown} can show in no history "
        f"(`NOT_SHOWN` in `tests/mutants/faults.py` has the reasons). Of the other {len(faults)} "
        f"the simulator catches {len(caught)}, {share} %: with each, at most {record['most']} of "
        f"the first {record['seeds']} seeds were played, those that reach its place. The rest is "
        "caught by the tests that the table of faults names, and is what seeds do not try hard "
        "enough:",
        "",
        "| fault: it breaks that | in the simulator |",
        "| --- | --- |",
    ]
    for one in faults:
        if one["verdict"] != "caught":
            lines.append(f"| {one['promise']} | {_why(one)} |")
    return "\n".join(["", *lines, "", ""])


def _why(one: Mapping[str, Any]) -> str:
    if one["verdict"] in ("unreached", "absent"):
        return "no seed reaches its place"
    if one["verdict"] == "error":
        return f"{one['played']} seeds; some end in an error of Python, which does not count"
    return f"{one['played']} seeds reach its place, and no checker refuses one"
