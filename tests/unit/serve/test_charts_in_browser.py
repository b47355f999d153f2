"""A chart in a real browser: what keys, pointers, screen readers and colours get of its values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pravega_spark import StreamManager
from tests.harness.browser import BrowserTab, needs_browser
from tests.harness.page_server import page_server

pytestmark = [pytest.mark.slow, needs_browser]
MAKE = """
import('/static/charts.js').then(({ chart }) => {
  window.made = chart({ label: 'Lag', unit: 'events', format: (value) => String(value) });
  document.querySelector('main').replaceChildren(made.element);
  const start = Date.UTC(2026, 0, 1);
  made.update({ times_ms: [0, 1, 2, 3, 4, 5].map((step) => start + step * 1000), series: [
    { name: 'behind', values: [10, 20, null, null, 50, 60], colour: 'warn' },
    { name: 'read', values: [1, 2, null, null, 5, null], colour: 'good' }] });
})
"""
PLOT = "document.querySelector('.plot')"
SAID = f"{PLOT}.getAttribute('aria-valuetext').replace(/^.*?: /, '')"
TIP = "[...document.querySelectorAll('.tip dd')].map((cell) => cell.textContent)"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, tab: BrowserTab) -> Iterator[BrowserTab]:
    """Yield a tab that shows one chart, under the policy of the real server."""
    root = tmp_path_factory.mktemp("charts")
    StreamManager(root).create_scope("nyc")
    with page_server(root) as url:
        tab.open(f"{url}/tables")
        tab.wait_for("document.getElementById('live').dataset.state === 'on'")
        tab.run(MAKE)
        tab.wait_for(f"{PLOT}.querySelector('svg') !== null")
        yield tab
        assert tab.problems == []


def test_a_chart_leaves_gaps_and_tells_its_values_to_keys_pointers_and_readers(
    drawn: BrowserTab,
) -> None:
    assert drawn.run("document.querySelectorAll('.plot path.warn').length") == 2
    assert drawn.run("document.querySelectorAll('.plot rect.gap').length") == 1
    said = drawn.run(
        f"document.getElementById({PLOT}.getAttribute('aria-describedby')).textContent"
    )
    assert "behind between 10 events and 60 events, last 60 events" in said
    assert "last not known" in said
    assert said.count("Not known:") == 1

    drawn.run(f"{PLOT}.focus()")
    drawn.press("Home")
    assert drawn.run(SAID) == "behind 10 events, read 1 events"
    assert drawn.run(TIP) == ["10 events", "1 events"]
    drawn.press("ArrowRight")
    drawn.press("ArrowRight")
    assert drawn.run(TIP) == ["not known", "not known"]
    drawn.press("End")
    assert drawn.run(TIP) == ["60 events", "not known"]
    drawn.press("Escape")
    assert drawn.run(TIP) == []

    at = f"(({PLOT}.clientWidth - 70) * 0.8 + 62 + {PLOT}.getBoundingClientRect().left)"
    drawn.run(f"{PLOT}.dispatchEvent(new PointerEvent('pointermove', {{ clientX: {at} }}))")
    assert drawn.run(TIP) == ["50 events", "5 events"]


def test_the_lines_of_a_chart_change_with_the_colours_of_the_page(drawn: BrowserTab) -> None:
    stroke = "getComputedStyle(document.querySelector('.plot path.warn')).stroke"
    found = set()
    for colours in ("light", "dark"):
        drawn.colours(colours)
        found.add(drawn.run(stroke))
    assert len(found) == 2


DRAW = """
import('/static/picture.js').then(({ drawPicture }) => {
  const segment = { segment: '0#0', low: 0, high: 1, start_ms: 0, end_ms: null, events: 9,
    size_bytes: 9, readable_events: 9, events_per_second: 0.13, is_active: true };
  const data = { now_ms: 10000, start_ms: 0, epochs: [{ epoch: 0, created_ms: 0 }],
    omitted_epochs: 0, segments: [segment] };
  const main = document.querySelector('main');
  return ['', 'relative'].map((kind) => {
    drawPicture(main, data, { byEpoch: false, isRelative: Boolean(kind) });
    return [main.querySelector('rect.box').classList[1], main.querySelector('.legend').textContent];
  });
})
"""


def test_a_lone_slow_segment_is_red_only_when_segments_are_compared(drawn: BrowserTab) -> None:
    (by_rate, its_legend), (compared, other_legend) = drawn.run(DRAW)
    assert (by_rate, compared) == ("heat-2", "heat-7")
    assert "under 0.10" in its_legend
    assert "10K+" in its_legend
    assert "0.11+" in other_legend


FUTURE = """
import('/static/picture.js').then(({ drawPicture }) => {
  const segment = (name, start_ms) => ({ segment: name, low: 0, high: 1, start_ms, end_ms: null,
    events: 9, size_bytes: 9, readable_events: 9, events_per_second: 1, is_active: true });
  const main = document.querySelector('main');
  const [now_ms, later] = [Date.UTC(2026, 0, 1), Date.UTC(2030, 0, 1)];
  return [[now_ms - 10000, later], [later]].map((times) => {
    const data = { now_ms, start_ms: times[0], omitted_epochs: 0,
      epochs: times.map((created_ms, epoch) => ({ epoch, created_ms })),
      segments: times.map((time, number) => segment(`${number}#0`, time)) };
    drawPicture(main, data, { byEpoch: false, isRelative: false });
    return [main.querySelectorAll('g[data-segment]').length, main.textContent];
  });
})
"""


def test_segments_of_the_future_are_not_drawn_and_the_picture_says_why(
    drawn: BrowserTab,
) -> None:
    (some, beside), (none, alone) = drawn.run(FUTURE)
    assert (some, none) == (1, 0)
    for said in (beside, alone):
        assert "Not drawn: 1 epoch from" in said
        assert "2030" in said
