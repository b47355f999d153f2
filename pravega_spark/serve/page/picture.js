// The picture of segments over time: keys upwards, time to the right, colour by rate.

import { h, svg } from "./dom.js";
import * as format from "./format.js";
import { tipAt } from "./tips.js";

const HEIGHT = 320;
const LEFT = 40;
const BOTTOM = 34;
const TOP = 8;
const STEPS = 8;
const SKEW_MS = 5000; // so much may the clocks of hosts differ

/** Return the functions from a time to x: by the clock, or all epochs equally wide. */
function scaleOf(data, width, byEpoch) {
  const times = [...data.epochs.map((epoch) => epoch.created_ms), data.now_ms];
  const inner = width - LEFT - 4;
  if (!byEpoch) {
    const whole = Math.max(1, data.now_ms - data.start_ms);
    return (ms) => LEFT + ((ms - data.start_ms) / whole) * inner;
  }
  const each = inner / (times.length - 1);
  return (ms) => {
    let index = times.findIndex((time, i) => i > 0 && ms <= time);
    if (index < 0) index = times.length - 1;
    const [from, to] = [times[index - 1], times[index]];
    return LEFT + each * (index - 1 + (to > from ? Math.max(0, ms - from) / (to - from) : 1));
  };
}

/** Return the least rate of each colour: round numbers, or parts of the busiest segment's rate. */
function leastRates(most, isRelative) {
  if (!isRelative) return [0, 0, 0.1, 1, 10, 100, 1000, 10_000];
  return Array.from({ length: STEPS }, (_, step) => (step < 2 ? 0 : most * ((step - 0.5) / (STEPS - 1)) ** 2));
}

const heat = (rate, least) => (rate > 0 ? Math.max(1, least.findLastIndex((bound) => rate >= bound)) : 0);

function facts(box) {
  const rows = [
    ["keys", `[${box.low}, ${box.high})`],
    ["open from", format.when(box.start_ms)],
    ["until", box.end_ms ? format.when(box.end_ms) : "now: it is open"],
    ["events", box.events === null ? "truncated and forgotten" : `${format.count(box.events)} (${format.bytes(box.size_bytes)})`],
    ["a second", `${format.rate(box.events_per_second)} over its life`],
  ];
  if (box.events !== null && box.readable_events < box.events)
    rows.push(["truncated", format.plural(box.events - box.readable_events, "event")]);
  return rows;
}

const describe = (box) =>
  `Segment ${box.segment}: ${facts(box).map(([name, value]) => `${name} ${value}`).join(", ")}`;

function boxOf(box, x, y, least, now, tip) {
  const [left, right] = [Math.max(LEFT, x(box.start_ms)), x(Math.min(box.end_ms ?? now, now))];
  const [top, bottom] = [y(box.high), y(box.low)];
  const [width, height] = [Math.max(1, right - left), Math.max(1, bottom - top)];
  const step = heat(box.events_per_second, least);
  const kind = box.events === null ? "unknown"
    : `heat-${step}${box.events > 0 && box.readable_events === 0 ? " gone" : ""}`;
  const show = (pageX, pageY) => tip.show(`Segment ${box.segment}`, facts(box), pageX, pageY);
  return svg("g", {
    tabindex: 0, role: "img", "aria-label": describe(box), "data-segment": box.segment,
    onmousemove: (event) => show(event.clientX, event.clientY), onmouseleave: tip.hide, onblur: tip.hide,
    onfocus: (event) => {
      const at = event.currentTarget.getBoundingClientRect();
      if (event.currentTarget.matches(":focus-visible")) show(at.left + at.width / 2, at.top + at.height / 2);
    },
  },
  svg("rect", { class: `box ${kind}`, x: left, y: top, width, height, rx: Math.min(4, width / 4) }),
  box.is_active && svg("rect", { class: "open", x: right - 3, y: top + 2, width: 3, height: Math.max(1, height - 4), rx: 1.5 }),
  width > 44 && height > 15 && svg("text", { class: step > 4 ? "name strong" : "name",
    x: left + 8, y: Math.min(top + height / 2 + 4, bottom - 4) }, box.segment));
}

function axes(data, x, y, width) {
  const found = [];
  for (const key of [0, 0.25, 0.5, 0.75, 1])
    found.push(svg("line", { class: "grid", x1: LEFT - 4, x2: width, y1: y(key), y2: y(key) }),
      svg("text", { x: LEFT - 8, y: y(key) + 4, "text-anchor": "end" }, key));
  const isLong = data.now_ms - data.start_ms > 72000000;
  let last = -Infinity;
  for (const epoch of data.epochs) {
    const at = x(epoch.created_ms);
    found.push(svg("line", { class: "grid", x1: at, x2: at, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 5 }));
    if (at - last < 84 || width - at < 60) continue;
    last = at;
    found.push(svg("text", { x: at, y: HEIGHT - BOTTOM + 16 }, isLong ? format.dayAndClock(epoch.created_ms) : format.clock(epoch.created_ms)),
      svg("text", { x: at, y: HEIGHT - BOTTOM + 29 }, `epoch ${epoch.epoch}`));
  }
  found.push(svg("text", { x: width - 2, y: HEIGHT - BOTTOM + 16, "text-anchor": "end" }, "now"));
  return found;
}

function legend(least, data) {
  const text = (bound, step) => (step === 0 ? "0" : step === 1 ? `under ${format.rate(least[2])}` : `${format.rate(bound)}+`);
  return h("div", { class: "legend" }, "events a second:",
    least.map((bound, step) => h("span", { class: "heat" },
      svg("svg", { viewBox: "0 0 12 10", "aria-hidden": "true" }, svg("rect", { class: `heat-${step}`, width: 12, height: 10, rx: 2 })), text(bound, step))),
    h("span", {}, "· blue edge: open"),
    data.segments.some((box) => box.readable_events === 0 && box.events !== 0) && h("span", {}, "· pale: truncated"),
    data.omitted_epochs > 0 && h("span", {}, `· ${format.plural(data.omitted_epochs, "older epoch")} not shown`));
}

/** Return the data without what begins in the future, and a sentence of that, or null. */
function untilNow(data) {
  const isThere = (ms) => ms <= data.now_ms + SKEW_MS;
  const epochs = data.epochs.filter((epoch) => isThere(epoch.created_ms));
  if (epochs.length === data.epochs.length) return [data, null];
  const first = data.epochs.find((epoch) => !isThere(epoch.created_ms));
  const later = format.plural(data.epochs.length - epochs.length, "epoch");
  return [{ ...data, epochs, segments: data.segments.filter((box) => isThere(box.start_ms)) },
    `Not drawn: ${later} from ${format.when(first.created_ms)} on, in the future: the clock of a host that wrote was wrong.`];
}

/** Draw the picture into an element, as wide as that is. */
export function drawPicture(element, every, { byEpoch, isRelative }) {
  const [data, future] = untilNow(every);
  const said = future && h("p", { class: "small muted" }, future);
  if (!data.epochs.length) return element.replaceChildren(said);
  const tip = tipAt(element);
  const width = Math.max(320, element.clientWidth);
  const most = Math.max(...data.segments.map((box) => box.events_per_second ?? 0), 0);
  const least = leastRates(most, isRelative);
  const x = scaleOf(data, width, byEpoch);
  const y = (key) => TOP + (1 - key) * (HEIGHT - BOTTOM - TOP);
  const boxes = data.segments.map((box) => boxOf(box, x, y, least, data.now_ms, tip));
  const drawing = svg("svg", { class: "picture", viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "group",
    "aria-label": `Segments over time: ${data.segments.length} segments in ${data.epochs.length} epochs` },
    axes(data, x, y, width), boxes);
  element.replaceChildren(drawing, legend(least, data), said || "");
}
