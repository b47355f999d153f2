// The events of a stream: from an end, a time, a cut or an offset, along a key, with a text in them.
// What is shown is in the address, so a link shows the same events to somebody else.

import { unlessAbsent } from "./absent.js";
import { card, h, table } from "./dom.js";
import { get } from "./server.js";
import { beginning, copyButton, downloadButton, payload, save } from "./payload_view.js";
import * as format from "./format.js";

const NAMES = ["at", "order", "time_ms", "segment", "key", "key_of", "contains"];
const KEPT = ["segment", "key", "key_of", "contains"];
const MOST = "Files of at most 16 MiB";

/** Show another address of the page. */
export function open(address) {
  history.pushState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
}

export const address = (path, query) => {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
};

export const field = (label, input) => h("label", {}, h("span", {}, label), input);

const clockOf = (ms) => new Date(ms).toISOString().replace("T", " ").replace("Z", "");

/** How far a page looked, as a sentence. */
export function lookedText(looked, found, { total = null, what = "events" } = {}) {
  const of = total === null ? "" : ` of ${format.count(total)}`;
  const when = looked.from_ms === null ? "" : `, from ${clockOf(looked.from_ms)} to ${clockOf(looked.to_ms)} (UTC)`;
  const part = looked.partly_searched ? `; of ${format.plural(looked.partly_searched, "large event")} the beginning only` : "";
  const lost = looked.lost ? `; ${format.plural(looked.lost, "more event")} could not be read` : "";
  return `Looked at ${format.count(looked.events)}${of} ${what} (${format.plural(looked.chunks, "chunk")}, ${format.bytes(looked.size_bytes)})${when}${part}${lost}: ${format.count(found)} found.`;
}

export const lostRows = (rows) => rows.map((lost) => h("p", { class: "problem" },
  `Events [${lost.start}, ${lost.end}) of segment ${lost.segment} cannot be read (${lost.type}): ${lost.message}`));

/** The links to the pages beside one. */
export function pager(page, path, kept, isSearch) {
  const link = (text, order, at) => h("a", { href: address(path, { ...kept, order, at }), "data-link": true }, text);
  const onward = page.order === "newest" ? page.older : page.newer;
  return h("p", { class: "pager" },
    isSearch && !page.is_done && link("Look further", page.order, onward),
    page.order === "newest" && page.is_done ? h("span", {}, "The oldest are shown.") : link("Older", "newest", page.older),
    page.order === "oldest" && page.is_done ? h("span", {}, "Nothing newer yet.") : link("Newer", "oldest", page.newer));
}

function form(path, query) {
  const kinds = [["newest", "the newest"], ["oldest", "the oldest"], ["time", "a time (UTC)"], ["at", "a cut or an offset"]];
  let from = "newest";
  if (query.time_ms) from = "time";
  else if (query.at && !["head", "tail"].includes(query.at)) from = "at";
  else if (query.at === "head") from = "oldest";
  const time = h("input", { type: "datetime-local", step: "1", "aria-label": "Time (UTC)" });
  if (query.time_ms) time.value = new Date(Number(query.time_ms)).toISOString().slice(0, 19);
  const at = h("input", { type: "text", placeholder: "0#0=120", maxlength: 15000, "aria-label": "Cut or offset" });
  at.value = from === "at" ? query.at : "";
  const select = h("select", {}, kinds.map(([value, text]) => h("option", { value, selected: value === from }, text)));
  const segment = h("input", { type: "text", placeholder: "any", maxlength: 30 });
  const key = h("input", { type: "text", placeholder: "any", maxlength: 4000 });
  const contains = h("input", { type: "search", maxlength: 200 });
  segment.value = query.segment || "";
  key.value = query.key || "";
  contains.value = query.contains || "";
  const draw = () => { time.hidden = select.value !== "time"; at.hidden = select.value !== "at"; };
  select.addEventListener("change", draw);
  draw();
  return h("form", { class: "filters", onsubmit: (event) => {
    event.preventDefault();
    const given = { segment: segment.value.trim(), key: key.value, contains: contains.value };
    if (select.value === "oldest") Object.assign(given, { at: "head", order: "oldest" });
    if (select.value === "time") given.time_ms = time.value ? Date.parse(`${time.value}Z`) : null;
    if (select.value === "at") Object.assign(given, { at: at.value.trim(), order: (query.at === at.value.trim() && query.order) || "oldest" });
    open(address(path, given));
  } }, field("From", select), time, at, field("Segment", segment), field("Routing key", key),
  field("Text in the payload", contains), h("button", {}, "Show"));
}

function facts(found) {
  const { event, commit } = found;
  const rows = [["time", `${clockOf(event.timestamp_ms)} (UTC)`], ["segment", event.segment], ["offset", String(event.offset)]];
  if (event.size_bytes !== null) rows.push(["size", `${format.count(event.size_bytes)} bytes`]);
  if (event.routing_key !== null) rows.push(["routing key", event.routing_key]);
  rows.push(["writer", commit?.writer || (commit ? "without an id" : "not known any more")]);
  rows.push(["commit", commit ? `${commit.operation.toLowerCase()}, version ${commit.version}, ${clockOf(commit.time_ms)}`
    : "the log has it no longer, or it is in no folder of a version"]);
  if (found.transaction) rows.push(["transaction", found.transaction]);
  rows.push(["chunk", `${found.chunk}, ${format.plural(found.chunk_events, "event")}, ${format.bytes(found.chunk_bytes)}`], ["pointer", event.pointer]);
  return h("dl", { class: "facts" }, rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

async function details(row, base, path) {
  const at = `${row.segment}=${row.offset}`;
  try {
    const found = await get(`${base}/event`, { at });
    const file = `${base.split("/").slice(-2).map(decodeURIComponent).join("-")}-${at.replace("#", "-").replace("=", "-")}`.replace(/[^\w.-]+/g, "-");
    return h("div", { class: "opened" },
      payload(found.event, downloadButton("Download", `${base}/event/payload`, { at }, `${file}.${row.cells ? "json" : "bin"}`)),
      facts(found),
      h("p", { class: "buttons" }, copyButton("Copy pointer", found.event.pointer),
        found.event.routing_key !== null && copyButton("Copy key", found.event.routing_key),
        found.event.routing_key !== null && h("a", { href: address(path, { key_of: at, order: "oldest", at }), "data-link": true }, "This key from here on"),
        h("a", { href: address(path, { order: "oldest", at }), "data-link": true }, "This segment from here on")));
  } catch (error) {
    return h("p", { class: "problem", role: "alert" }, error.message);
  }
}

/** A button that opens what belongs to its row below it. */
export function opener(text, make, onToggle = null, at = null) {
  const button = h("button", { type: "button", class: "link", "aria-expanded": "false", "data-at": at, onclick: async () => {
    const row = button.closest("tr");
    const isOpen = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!isOpen));
    onToggle?.(!isOpen);
    if (isOpen) return row.nextElementSibling.remove();
    const body = h("td", { colspan: row.cells.length, class: "long" }, "…");
    row.after(h("tr", { class: "opened-row" }, body));
    body.replaceChildren(await make());
  } }, text);
  return button;
}

function rows(page, base, path, onToggle) {
  const isTyped = page.columns.length > 0;
  const heads = ["Time (UTC)", "Event", "Routing key", ["Size", "num"], ...(isTyped ? page.columns : ["Payload"])];
  return table(heads, page.events.map((row) => [
    h("span", { class: "nowrap" }, clockOf(row.timestamp_ms)),
    opener(`${row.segment}:${row.offset}`, () => details(row, base, path), (isOpen) => onToggle(`${row.segment}=${row.offset}`, isOpen), `${row.segment}=${row.offset}`),
    row.routing_key === null ? h("span", { class: "muted" }, row.unread ? "–" : "none") : h("span", { class: "short" }, row.routing_key, row.is_key_cut && "…"),
    format.bytes(row.size_bytes),
    ...(isTyped && row.cells ? row.cells.map((cell) => (cell === null ? h("span", { class: "muted" }, "null") : cell)) : [beginning(row)]),
    ...(isTyped && !row.cells ? page.columns.slice(1).map(() => "") : []),
  ]), { class: "events" });
}

export function eventsView(scope, stream) {
  const path = format.link("streams", scope, stream) + "/events";
  const base = `/api${format.link("streams", scope, stream)}`;
  const given = new URLSearchParams(location.search);
  const query = Object.fromEntries(NAMES.map((name) => [name, given.get(name)]));
  const kept = Object.fromEntries(KEPT.map((name) => [name, query[name]]));
  const isSearch = Boolean(query.key || query.key_of || query.contains);
  const isBack = query.order ? query.order === "newest" : !query.time_ms && (!query.at || query.at === "tail");
  const list = h("div", { class: "loading", "aria-live": "polite" }, "…");
  const newer = h("button", { type: "button", class: "small", hidden: true, onclick: () => (begins.at === query.at ? open(address(path, kept)) : load()) }, "There are newer events: show them");
  const shown = unlessAbsent(h("div", {},
    card("Which events", query.key_of ? `with the routing key of ${query.key_of}` : "", form(path, query)),
    h("section", { class: "card events-card", "aria-label": "Events" }, list)), "/streams", "All streams");
  let version = null;
  let begins = query; // where the page begins that is shown, for its address
  let opened = given.get("open");

  /** Put all that is shown into the address, without another step of the history. */
  function note() {
    if (list.isConnected) history.replaceState(null, "", address(path, { ...begins, open: opened }));
  }

  function toggled(at, isOpen) {
    if (isOpen) opened = at;
    else if (opened === at) opened = null;
    note();
  }

  async function load() {
    newer.hidden = true;
    try {
      const page = await get(`${base}/events`, { limit: 50, ...query });
      version = page.version;
      if (!query.time_ms && (!query.at || query.at === "head" || query.at === "tail"))
        begins = { ...query, order: page.order, at: page.order === "newest" ? page.newer : page.older };
      note();
      shown.isThere();
      list.className = "";
      list.replaceChildren(
        h("p", { class: "small muted" }, lookedText(page.looked, page.events.length, { total: page.readable_events })),
        ...lostRows(page.lost),
        page.events.length ? rows(page, base, path, toggled) : h("p", { class: "empty" }, page.is_done ? "No event is here." : "None so far."),
        page.omitted_columns ? h("p", { class: "small muted" }, `${format.plural(page.omitted_columns, "more column")}: open an event to see them.`) : "",
        pager(page, path, kept, isSearch),
        h("p", { class: "buttons" },
          page.events.length > 0 && h("button", { type: "button", class: "small", onclick: () => save(new Blob([page.events.map((row) => JSON.stringify(row)).join("\n")], { type: "application/x-ndjson" }), `${scope}-${stream}-events.ndjson`.replace(/[^\w.-]+/g, "-")) }, "Download this page"),
          copyButton("Copy the position", page.order === "newest" ? page.older : page.newer),
          h("span", { class: "small muted" }, `${MOST}; a page has the beginnings of payloads.`)));
      if (opened) [...list.querySelectorAll("button[data-at]")].find((one) => one.dataset.at === opened)?.click();
    } catch (error) {
      if (shown.isAbsent(error)) return;
      list.className = "";
      list.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message),
        h("p", {}, h("a", { href: address(path, { ...kept, at: "head", order: "oldest" }), "data-link": true }, "From the oldest event that is left"), " · ",
          h("a", { href: path, "data-link": true }, "The newest events")));
    }
  }

  /** Look whether the stream is still there: what its page shows stays. */
  async function check() {
    if (!shown.isShown) return;
    try {
      await get(base);
      if (shown.isGone) load();
    } catch (error) {
      shown.isAbsent(error);
    }
  }

  return {
    title: `Events of ${scope}/${stream}`,
    stream: `${scope}/${stream}`,
    up: format.link("streams", scope, stream),
    element: h("div", {},
      h("div", { class: "head" }, h("h1", {}, h("a", { class: "crumb", href: format.link("streams", scope, stream), "data-link": true }, `${scope} / ${stream} / `), "events"), newer),
      shown.element),
    begin(signal) {
      load();
      shown.repeat(() => (shown.isGone ? check() : load()), signal);
    },
    onLive(kind, data) { if (kind === "gone" && data.streams.includes(`${scope}/${stream}`)) check(); },
    onRows(changed) {
      const row = changed.find((found) => found.scope === scope && found.stream === stream);
      if (!row) return;
      if (!shown.isShown || shown.isGone) return load();
      if (version !== null && row.version > version && isBack) newer.hidden = false;
    },
  };
}
