// One stream: what comes in, its segments over time, who reads, what is kept, and what was done.

import { deletedChip, unlessAbsent } from "./absent.js";
import { ago, card, choice, column, h } from "./dom.js";
import { get } from "./server.js";
import { drawPicture } from "./picture.js";
import { panelsOf } from "./stream_panels.js";
import { stateChip, tagChips, tile } from "./streams_view.js";
import { trafficCards } from "./traffic_view.js";
import * as format from "./format.js";

const PAUSE = 4000;

function scalingText(scaling) {
  if (scaling.type === "fixed") return `fixed: ${format.plural(scaling.minimum, "segment")}`;
  const unit = scaling.type === "event_rate" ? "events/s" : "KiB/s";
  return `by rate: ${format.count(scaling.target)} ${unit} a segment, split by ${scaling.factor}, at least ${scaling.minimum}`;
}

export function streamView(scope, stream) {
  const base = `/api/streams/${encodeURIComponent(scope)}/${encodeURIComponent(stream)}`;
  const marks = h("span");
  const trouble = h("div", { role: "status" });
  const tiles = h("div", { class: "tiles" });
  const traffic = trafficCards(base);
  const picture = h("div", { class: "loading" });
  const facts = h("dl", { class: "facts" });
  const panels = panelsOf(base);
  const grid = h("div", { class: "grid" });
  const body = unlessAbsent(h("div", {}, trouble, tiles, grid), "/streams", "All streams");
  let data = null;
  const shown = { byEpoch: false, isRelative: false };
  let version = null;
  let loadedAt = 0;
  let waiting = null;
  let details = null;
  let shownMs = 0; // when what is shown was so
  let problem = null;

  /** Say why the stream cannot be read, and of when that is which goes on to be shown. */
  function drawTrouble() {
    const age = details && problem ? ` What is shown is of ${format.exactClock(shownMs)}, ${format.ago(shownMs)}.` : "";
    trouble.replaceChildren(...(problem ? [h("p", { class: "problem card" }, problem + age)] : []));
    grid.hidden = problem !== null && !details;
  }

  function drawRow(row) {
    const isMended = problem !== null && row.problem === null;
    problem = row.problem;
    if (problem === null) { shownMs = Date.now(); body.isThere(); }
    drawTrouble();
    if (isMended) traffic.again(); // its caption says why it could not be read
    if (problem !== null) return marks.replaceChildren(stateChip(row.state));
    marks.replaceChildren(stateChip(row.state) || h("span", { class: "chip good" }, "active"), " ",
      row.future_ms && h("span", { class: "chip warn", title: "Times of commits never decrease, so those of this log tell nothing until then." },
        `a commit of the future: ${format.when(row.future_ms)}`) || "", " ", ...tagChips(row.tags));
    drawTiles(row);
  }

  function drawTiles(row) {
    tiles.replaceChildren(
      tile(format.rate(row.events_per_second), "in the last minute", "events/s"),
      tile(format.bytes(row.bytes_per_second), "a second"),
      tile(format.count(row.events), "readable events"),
      tile(format.bytes(row.size_bytes), "of events"),
      tile(format.count(row.segments), `segments, epoch ${row.epoch}`),
      tile(ago(row.updated_ms), `last commit, version ${format.count(row.version)}`));
  }

  function drawFacts() {
    const rows = [
      ["scaling", scalingText(details.scaling)],
      ["retention", details.retention],
      ["created", format.when(details.row.created_ms)],
      ["life", String(details.life)],
      ["head", h("code", {}, details.head)],
      ["tail", h("code", {}, details.tail)],
      ["files", `${format.count(details.files)}, ${format.bytes(details.file_bytes)}`],
    ];
    if (details.truncated_ms) rows.push(["truncated", `${format.when(details.truncated_ms)} by ${details.truncated_by}`]);
    if (details.encryption_key) rows.push(["encrypted with", details.encryption_key]);
    for (const [name, value] of Object.entries(details.settings)) rows.push([name, value]);
    facts.replaceChildren(...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  }

  function drawSegments() {
    if (data && picture.isConnected) { picture.className = ""; drawPicture(picture, data, shown); }
  }

  async function load() {
    loadedAt = Date.now();
    try {
      details = await get(base);
      version = details.row.version;
      drawRow(details.row);
      drawFacts();
      panels.segments(details.segments);
    } catch (error) {
      problem = body.isAbsent(error) ? null : error.message;
      drawTrouble();
      if (!body.isGone) return;
      marks.replaceChildren(deletedChip());
      drawTiles(details.row); // with their ages
      return;
    }
    get(`${base}/segments`).then((found) => { data = found; drawSegments(); })
      .catch((error) => picture.replaceChildren(h("p", { class: "problem" }, error.message)));
    panels.load();
  }

  function soon() {
    if (waiting) return;
    waiting = setTimeout(() => { waiting = null; if (grid.isConnected) load(); }, Math.max(0, loadedAt + PAUSE - Date.now()));
  }

  grid.append(
    ...traffic.element,
    card("Segments over time", "keys upwards, time to the right, colour by rate", picture,
      [choice("Colours", [["rates", false], ["compared", true]], false, (value) => { shown.isRelative = value; drawSegments(); }),
      choice("Width of epochs", [["time", false], ["epochs", true]], false, (value) => { shown.byEpoch = value; drawSegments(); })]),
    column("two-thirds", ...panels.left),
    column("third", card("Configuration", "", facts), ...panels.right));

  return {
    title: `${scope}/${stream}`,
    stream: `${scope}/${stream}`,
    up: "/streams",
    element: h("div", {}, h("div", { class: "head" },
      h("h1", {}, h("a", { class: "crumb", href: `/streams?q=${encodeURIComponent(`${scope}/`)}`, "data-link": true }, `${scope} / `), stream), marks), body.element),
    begin(signal) {
      load();
      traffic.begin(signal);
      new ResizeObserver(drawSegments).observe(grid);
      body.repeat(load, signal);
      const timer = setInterval(() => { if (problem !== null) drawTrouble(); else if (!body.isGone) panels.age(); }, 10000);
      signal.addEventListener("abort", () => { clearInterval(timer); clearTimeout(waiting); });
    },
    reload: load,
    onLive(kind, data) { if (kind === "gone" && data.streams.includes(`${scope}/${stream}`)) load(); },
    onRows(rows) {
      const row = rows.find((found) => found.scope === scope && found.stream === stream);
      if (!row) return;
      const isBack = (problem !== null || body.isGone) && row.problem === null;
      drawRow(row);
      if (row.problem === null && (isBack || (version !== null && row.version !== version))) soon();
    },
  };
}
