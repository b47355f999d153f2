// Charts of values over time, and the switch of their range.
//
//   const lag = chart({ label: "Lag of the group", unit: "events", format: format.short, height: 180 });
//   card("Lag", "", lag.element);
//   lag.update({ times_ms: [...], series: [{ name: "behind", values: [3, null, 5], colour: "warn" }] });
//
// `times_ms` ascends, in ms since 1970, and has one entry for each value; null is a gap, which is
// shaded and said. Colours: accent, good, warn, bad, muted. `format` makes a text of a value; `unit`
// follows it where there is room. An element draws itself once it has a width, and again when that
// changes. Pointers and the keys left, right, Home, End show a time with its values; to a screen
// reader the chart is a slider over its times, described by a summary.
//
// It is SVG, and no library such as uPlot: those draw on a canvas, which takes no colours of the
// page's styles, and has no text that a screen reader, or axe, could meet.
//
//   const range = rangeSwitch(RANGES, (ms) => load(ms));   // range.element, range.chosen: ms
//
// The drawing is SVG: its colours are those of the style sheet, so light and dark need no new drawing.

import { choice, h, svg } from "./dom.js";
import * as format from "./format.js";
import { tipAt } from "./tips.js";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
export const RANGES = [["15 min", 15 * MINUTE], ["1 h", HOUR], ["24 h", 24 * HOUR]];

const [TOP, BOTTOM, LEFT, RIGHT] = [12, 22, 62, 8];
const TIME_STEPS = [1000, 5000, 10_000, 30_000, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
  HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR, 48 * HOUR, 168 * HOUR, 720 * HOUR];
const TICK_WIDTH = 76;

/** Return a round step of at least `least`: in seconds, in powers of 1024, or of 1000. */
function roundStep(least, form) {
  if (form === format.span && least > 1) {
    const found = TIME_STEPS.find((step) => step >= least * 1000);
    if (found) return found / 1000;
  }
  const base = form === format.bytes ? 1024 : 1000;
  const power = base ** Math.floor(Math.log(least) / Math.log(base));
  return power * ([1, 2, 5, 10, 20, 50, 100, 200, 500].find((times) => times * power >= least) || base);
}

function valueTicks(most, form) {
  const least = form === format.rate ? 0.01 : form === format.bytes ? 1 : 0; // what two texts can tell apart
  const step = Math.max(least, roundStep(Math.max(most, 1e-9) / 4, form));
  return Array.from({ length: Math.max(1, Math.ceil(most / step - 1e-9)) + 1 }, (_, index) => index * step);
}

function timeTicks(first, last, width) {
  const step = TIME_STEPS.find((found) => (last - first) / found <= width / TICK_WIDTH) || last - first + 1;
  const shift = new Date(last).getTimezoneOffset() * MINUTE;
  const found = [];
  for (let time = Math.ceil((first - shift) / step) * step + shift; time <= last; time += step) found.push(time);
  return [found, step < MINUTE ? format.exactClock : step < 24 * HOUR && last - first <= 26 * HOUR ? format.clock : format.dayAndClock];
}

/** Return the runs of known values as [first, last] indexes. */
function runs(values) {
  const found = [];
  values.forEach((value, index) => {
    if (value === null || value === undefined) return;
    if (found.length && found.at(-1)[1] === index - 1) found.at(-1)[1] = index;
    else found.push([index, index]);
  });
  return found;
}

/** Return the runs of indexes at which nothing is known, each with its known neighbours. */
function gaps(data) {
  const isKnown = data.times_ms.map((_, index) => data.series.some(({ values }) => (values[index] ?? null) !== null));
  return runs(isKnown.map((known) => (known ? null : true)))
    .map(([from, to]) => [Math.max(0, from - 1), Math.min(isKnown.length - 1, to + 1)]);
}

export function chart({ label, unit = "", format: form = format.short, height = 200 }) {
  let data = { times_ms: [], series: [] };
  let at = null; // the time that a pointer or key shows
  let [width, x, y] = [0, null, null];
  const said = h("p", { class: "unseen", id: `chart-${(chart.made = (chart.made || 0) + 1)}` });
  const plot = h("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": label, "aria-describedby": said.id,
    "aria-orientation": "horizontal", "aria-valuemin": 0,
    onpointermove: (event) => show(event), onpointerdown: (event) => show(event), onpointerleave: hide, onblur: hide,
    onkeydown: (event) => step(event) });
  const legend = h("div", { class: "legend" });
  const element = h("div", { class: "chart" }, plot, legend, said);
  const tip = tipAt(element);
  const valueText = (value) => (value === null || value === undefined ? "not known" : `${form(value)}${unit && ` ${unit}`}`);
  const timeText = (time) => {
    const whole = data.times_ms.at(-1) - data.times_ms[0];
    return whole > 20 * HOUR ? format.dayAndClock(time) : whole > 30 * MINUTE ? format.clock(time) : format.exactClock(time);
  };

  function draw() {
    width = plot.clientWidth;
    if (!width) return;
    const { times_ms: times, series } = data;
    if (!times.length) return plot.replaceChildren(h("p", { class: "empty" }, "Nothing is known yet."));
    const [first, last, bottom] = [times[0], times.at(-1), height - BOTTOM];
    const ticks = valueTicks(Math.max(0, ...series.flatMap(({ values }) => values.map((value) => value ?? 0))), form);
    x = (time) => LEFT + (last > first ? (time - first) / (last - first) : 1) * (width - LEFT - RIGHT);
    y = (value) => bottom - (value / ticks.at(-1)) * (bottom - TOP);
    const [moments, momentText] = timeTicks(first, last, width - LEFT);
    const point = (values, index) => `${x(times[index]).toFixed(1)},${y(values[index]).toFixed(1)}`;
    const path = (values, [from, to]) => Array.from({ length: to - from + 1 }, (_, step) => point(values, from + step)).join("L");
    plot.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
      gaps(data).map(([from, to]) => svg("rect", { class: "gap", x: x(times[from]), y: TOP, width: Math.max(1, x(times[to]) - x(times[from])), height: bottom - TOP })),
      ticks.map((value) => [svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, form(value))]),
      moments.filter((time) => x(time) < width - 24).map((time) =>
        svg("text", { x: Math.max(LEFT, x(time)), y: height - 5, "text-anchor": x(time) < LEFT + 16 ? "start" : "middle" }, momentText(time))),
      series.map(({ values, colour }) => runs(values).map((run) => [
        series.length === 1 && svg("path", { class: `fill ${colour || "accent"}`, d: `M${x(times[run[0]])},${bottom}L${path(values, run)}L${x(times[run[1]])},${bottom}Z` }),
        svg("path", { class: colour || "accent", d: `M${path(values, run)}h0` })])),
      svg("g", { class: "marks" })));
    if (at !== null) mark();
  }

  function nearest(time) {
    let found = 0;
    data.times_ms.forEach((known, index) => { if (Math.abs(known - time) < Math.abs(data.times_ms[found] - time)) found = index; });
    return found;
  }

  /** Show the values at a time: a line, a dot on each series, and a tip beside it. */
  function mark() {
    if (!data.times_ms.length || !width) return;
    const index = nearest(at);
    const left = x(data.times_ms[index]);
    plot.querySelector(".marks").replaceChildren(
      svg("line", { x1: left, x2: left, y1: TOP, y2: height - BOTTOM }),
      ...data.series.filter(({ values }) => (values[index] ?? null) !== null).map(({ values, colour }) =>
        svg("circle", { class: colour || "accent", cx: left, cy: y(values[index]), r: 3.5 })));
    const rows = data.series.map(({ name, values }) => [name, valueText(values[index])]);
    say(index);
    const box = plot.getBoundingClientRect();
    tip.show(timeText(data.times_ms[index]), rows, box.left + left, box.top + TOP);
  }

  function say(index) {
    const values = data.series.map((one) => `${data.series.length > 1 ? `${one.name} ` : ""}${valueText(one.values[index])}`);
    plot.setAttribute("aria-valuemax", Math.max(0, data.times_ms.length - 1));
    plot.setAttribute("aria-valuenow", Math.max(0, index));
    plot.setAttribute("aria-valuetext", index < 0 ? "nothing is known yet" : `${timeText(data.times_ms[index])}: ${values.join(", ")}`);
  }

  function show(event) {
    if (!data.times_ms.length || !width) return;
    const [first, last] = [data.times_ms[0], data.times_ms.at(-1)];
    at = first + ((event.clientX - plot.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT)) * (last - first);
    mark();
  }

  function hide() {
    at = null;
    tip.hide();
    plot.querySelector(".marks")?.replaceChildren();
  }

  function step(event) {
    const last = data.times_ms.length - 1;
    const now = at === null ? last + 1 : nearest(at);
    const wanted = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 10, PageDown: now + 10, Home: 0, End: last }[event.key];
    if (event.key === "Escape" && at !== null) { event.stopPropagation(); return hide(); }
    if (wanted === undefined || last < 0 || event.metaKey || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    at = data.times_ms[Math.max(0, Math.min(last, wanted))];
    mark();
  }

  function summary() {
    const { times_ms: times, series } = data;
    if (!times.length) return "Nothing is known yet.";
    const each = series.map(({ name, values }) => {
      const known = values.filter((value) => (value ?? null) !== null);
      return known.length ? `${name} between ${valueText(Math.min(...known))} and ${valueText(Math.max(...known))}, last ${valueText(values.at(-1))}` : `${name} not known`;
    });
    const missing = gaps(data).map(([from, to]) => `${timeText(times[from])} to ${timeText(times[to])}`);
    return `From ${timeText(times[0])} to ${timeText(times.at(-1))}: ${each.join("; ")}.${missing.length ? ` Not known: ${missing.join(", ")}.` : ""}`;
  }

  new ResizeObserver(() => { if (plot.clientWidth !== width) draw(); }).observe(plot);
  return {
    element,
    update(found) {
      data = found;
      said.textContent = format.printable(summary());
      const isShown = data.series.length > 1 || gaps(data).length > 0;
      legend.replaceChildren(...(isShown ? [
        ...(data.series.length > 1 ? data.series.map(({ name, colour, values }) => h("span", { class: `key ${colour || "accent"}` }, `${name} ${valueText(values.at(-1))}`)) : []),
        gaps(data).length > 0 && h("span", { class: "key gap" }, "not known")].filter(Boolean) : []));
      say(at === null ? data.times_ms.length - 1 : nearest(at));
      draw();
    },
  };
}

/** Return a switch of ranges: its element, and the chosen ms, which the tab remembers. */
export function rangeSwitch(ranges = RANGES, onChange = () => {}) {
  const kept = Number(sessionStorage.getItem("range"));
  let chosen = ranges.some(([, ms]) => ms === kept) ? kept : ranges[Math.min(1, ranges.length - 1)][1];
  const element = choice("Range of time", ranges, chosen, (ms) => {
    chosen = ms;
    sessionStorage.setItem("range", ms);
    onChange(ms);
  });
  return { element, get chosen() { return chosen; } };
}

/** Return a small line of the last hour, for a row of a list. */
export function spark(series, name) {
  const [width, height] = [150, 29];
  const most = Math.max(...series.map((value) => value ?? 0), 1e-9);
  const x = (index) => (index / Math.max(1, series.length - 1)) * width;
  const lines = runs(series).map(([from, to]) => [x(from), x(to), Array.from({ length: to - from + 1 }, (_, step) =>
    `${x(from + step).toFixed(1)},${(height - (series[from + step] / most) * (height - 3)).toFixed(1)}`).join("L")]);
  return svg("svg", { class: "spark", viewBox: "0 0 150 30", preserveAspectRatio: "none", role: "img",
    "aria-label": `${name}: up to ${format.rate(most)} events a second in the last hour` },
    svg("path", { class: "fill", d: lines.map(([left, right, line]) => `M${left},${height}L${line}L${right},${height}Z`).join("") }),
    svg("path", { d: lines.map(([, , line]) => `M${line}h0`).join("") }));
}
