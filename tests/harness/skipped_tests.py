"""``python -m tests.harness.skipped_tests REPORT...`` says which tests were skipped, and why.

The reports are those that pytest writes for ``--junitxml``. A reason says in brackets what brings
the tests back, as in ``(apt install strace)``. The variable PRAVEGA_SPARK_NEEDED_PACKAGES names
packages, separated by blanks, for whose want no test may be skipped: then the status is 1.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

NEEDED = "PRAVEGA_SPARK_NEEDED_PACKAGES"
_SHOWN = 3


def skipped(report: Path) -> Iterator[tuple[str, str]]:
    """Yield the reason and the name of each skipped test of a report."""
    for case in ElementTree.parse(report).iter("testcase"):
        found = case.find("skipped")
        if found is None or found.get("type") == "pytest.xfail":
            continue
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        reason = found.get("message", "")
        if reason == "collection skipped":  # of a whole file: the text ends with "Skipped: WHY')"
            reason = (found.text or "").rpartition("Skipped: ")[2][:-2]
        yield reason, name


def main(reports: list[str]) -> int:
    """Print the skipped tests by reason; return 1 if a needed package was missing."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for report in reports:
        for reason, name in skipped(Path(report)):
            by_reason[reason].append(name)
    total = sum(map(len, by_reason.values()))
    print(f"skipped tests: {total}" if total else "no test was skipped")
    for reason, names in sorted(by_reason.items()):
        more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        print(f"  {len(names)}: {reason}\n      {', '.join(names[:_SHOWN])}{more}")
    missing = [
        package
        for package in os.environ.get(NEEDED, "").split()
        if any(re.search(rf"apt install {re.escape(package)}\b", reason) for reason in by_reason)
    ]
    if missing:
        print(
            f"this run may skip no test for want of {', '.join(missing)}: install what is missing "
            f"(apt install {' '.join(missing)}), and run it again.",
            file=sys.stderr,
        )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
