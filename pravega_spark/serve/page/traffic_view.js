// What came into a stream over 15 minutes, an hour or a day: events, bytes, commits, and its size.

import { card, column, h } from "./dom.js";
import { chart, rangeSwitch, RANGES } from "./charts.js";
import { get } from "./server.js";
import * as format from "./format.js";

const NAMES = new Map(RANGES.map(([, ms], index) => [ms, ["15m", "1h", "24h"][index]]));
const POINTS = { "15m": "means of 15 s", "1h": "means of a minute", "24h": "means of 5 minutes" };
const CHARTS = [
  ["events_per_second", "events", "Events a second", { unit: "events/s", format: format.rate, height: 200 }, "accent"],
  ["bytes_per_second", "bytes", "Bytes a second", { unit: "a second", format: format.bytes, height: 200 }, "accent"],
  ["commits_per_second", "commits", "Commits a second", { unit: "commits/s", format: format.rate, height: 130 }, "muted"],
  ["size_bytes", "size", "Size of readable events", { format: format.bytes, height: 130 }, "good"],
];

/** Return the cards, how to begin, and to ask at once: they ask again while the page is seen, faster while the past is read. */
export function trafficCards(base) {
  const drawn = CHARTS.map(([key, name, label, options, colour]) => ({ key, name, label, colour, ...chart({ label, ...options }) }));
  const said = h("span", { class: "small muted", role: "status" });
  const range = rangeSwitch(RANGES, () => load());
  let waiting = null;
  let signal = null;

  const say = (text) => { if (said.textContent !== format.printable(text)) said.textContent = format.printable(text); }; // a screen reader reads each change

  async function load() {
    clearTimeout(waiting);
    const last = NAMES.get(range.chosen);
    let pause = Math.max(3000, range.chosen / 240);
    if (said.offsetParent === null || said.closest("[data-gone]")) pause = 1000; // the stream does not exist yet, was deleted, or cannot be read
    else if (!document.hidden) {
      try {
        const found = await get(`${base}/traffic`, { last });
        if (last !== NAMES.get(range.chosen)) return;
        for (const { key, name, colour, update } of drawn)
          update({ times_ms: found.times_ms, series: [{ name, values: found[key], colour }] });
        const { created_ms: created, times_ms: times } = found;
        const isGap = found.events_per_second.some((value, index) => value === null && times[index] >= created);
        say(POINTS[last] + (found.is_reading ? "; the past is being read" : isGap ? "; the log does not tell the shaded times" : "")
          + (created > times[0] ? `; the stream was created ${format.when(created)}` : ""));
        if (found.is_reading) pause = 2000;
      } catch (error) {
        if (error.type !== "NoSuchStream") say(error.message);
      }
    }
    if (!signal?.aborted) waiting = setTimeout(load, pause);
  }

  const [events, bytes, commits, size] = drawn;
  return {
    element: [
      h("div", { class: "ranges" }, range.element, said),
      column("half", card(events.label, "", events.element)), column("half", card(bytes.label, "", bytes.element)),
      column("half", card(commits.label, "", commits.element)), column("half", card(size.label, "", size.element)),
    ],
    begin(given) {
      signal = given;
      signal.addEventListener("abort", () => clearTimeout(waiting));
      load();
    },
    again: load,
  };
}
