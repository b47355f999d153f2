"""The picture of a run: a panel for each measure, in which each peer is a dot on a log scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from bench.harness.report import number
from bench.peers.measures import BY_NAME
from bench.peers.record import Record
from bench.peers.runner import Result

OURS = "pravega_spark"
PANELS = (
    ("append", "p50"),
    ("end_to_end", "p50"),
    ("pipelined", "rate"),
    ("writers", "rate"),
    ("transaction", "p50"),
    ("catch_up", "rate"),
    ("spark_write", "rate"),
    ("spark_read", "rate"),
    ("backlog", "rate"),
    ("micro_batch", "p50"),
    ("to_delta", "delta_rs"),
    ("single_rows", "rate"),
)
_WIDTH, _GAP, _MARGIN = 440, 20, 20
_ROW, _HEAD, _FOOT = 20, 52, 16
_LABEL, _LEFT, _RIGHT = 124, 138, 350
_STYLE = """\
<style>
  text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 13px; fill: #1f2933; }
  .title { font-weight: 600; }
  .small { font-size: 12px; fill: #52606d; }
  .panel { fill: #f7f9fb; stroke: #d5dce4; }
  .track { stroke: #e4e7eb; }
  .span { stroke: #7b8794; stroke-width: 3; stroke-linecap: round; }
  .dot { fill: #52606d; }
  .ours .span { stroke: #2f6fad; }
  .ours .dot { fill: #2f6fad; }
  .ours text { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e7eb; }
    .small { fill: #a9b4c0; }
    .panel { fill: #1b2127; stroke: #3e4c59; }
    .track { stroke: #323f4b; }
    .span { stroke: #7b8794; }
    .dot { fill: #a9b4c0; }
    .ours .span { stroke: #7fb5e8; }
    .ours .dot { fill: #7fb5e8; }
  }
</style>"""  # noqa: E501


def drawn(run: Record) -> str:
    """Return the picture as SVG, which a dark page shows in its own colours."""
    names = [peer.name for peer in run.peers if peer.name not in run.absent]
    found = {(r.measure, r.figure, r.peer): r for r in run.results if r.value is not None}
    panels = [
        (measure, figure, rows)
        for measure, figure in PANELS
        if (rows := [found[measure, figure, n] for n in names if (measure, figure, n) in found])
    ]
    lines: list[str] = []
    top = _MARGIN
    for pair in (panels[first : first + 2] for first in range(0, len(panels), 2)):
        height = _HEAD + _ROW * max(len(rows) for _, _, rows in pair) + _FOOT
        for column, (measure, figure, rows) in enumerate(pair):
            left = _MARGIN + column * (_WIDTH + _GAP)
            lines += _panel(measure, figure, rows, left, top, height)
        top += height + _GAP
    width = 2 * _MARGIN + 2 * _WIDTH + _GAP
    size = f'viewBox="0 0 {width} {top}" width="{width}" height="{top}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t d">',
        '<title id="t">Peers side by side</title>',
        f'<desc id="d">Run of {run.about.day}, size {run.about.size}: the figures of the table '
        "below. Each dot is a median of rounds on a logarithmic scale; its line goes from the "
        "lowest to the highest round.</desc>",
        _STYLE,
    ]
    return "\n".join([*head, *lines, "</svg>", ""])


def _panel(
    measure: str, figure: str, rows: Sequence[Result], left: int, top: int, height: int
) -> Iterator[str]:
    shown = BY_NAME[measure].shown[figure]
    title = shown.title[0].upper() + shown.title[1:]
    better = "more is better" if shown.more_is_better else "less is better"
    yield f'<g transform="translate({left} {top})">'
    yield f'<rect class="panel" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>'
    yield f'<text class="title" x="14" y="24">{escape(title)}</text>'
    yield f'<text class="small" x="14" y="42">{escape(shown.unit)}, {better}</text>'
    lows = [math.log10(max(row.low or 0.0, 1e-9)) for row in rows]
    highs = [math.log10(max(row.high or 0.0, 1e-9)) for row in rows]
    low, high = min(lows), max(*highs, min(lows) + 0.3)
    for index, row in enumerate(rows):
        assert row.value is not None
        y = _HEAD + _ROW * index + _ROW // 2
        dot, first, last = (
            _LEFT + (math.log10(max(value, 1e-9)) - low) / (high - low) * (_RIGHT - _LEFT)
            for value in (row.value, row.low or 0.0, row.high or 0.0)
        )
        yield f'<g class="{"ours" if row.peer == OURS else "peer"}">'
        yield f'<text x="{_LABEL}" y="{y + 4}" text-anchor="end">{escape(row.peer)}</text>'
        yield f'<line class="track" x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>'
        yield f'<line class="span" x1="{first:.1f}" y1="{y}" x2="{last:.1f}" y2="{y}"/>'
        yield f'<circle class="dot" cx="{dot:.1f}" cy="{y}" r="5"/>'
        yield f'<text x="{_WIDTH - 14}" y="{y + 4}" text-anchor="end">{number(row.value)}</text>'
        yield "</g>"
    yield "</g>"
