"""The parts of a page that a command makes, between two comments."""

from __future__ import annotations


def place(page: str, name: str, text: str) -> str:
    """Return the page with the text between the marks of a name."""
    before, mark, rest = page.partition(f"<!-- benchmarks: {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    assert end, f"the page has no place for {name}"
    return f"{before}{mark}{text}{end}{after}"
