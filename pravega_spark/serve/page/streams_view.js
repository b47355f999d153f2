// The list of streams: rates, sizes, and the last hour of each.

import { ago, cell, h } from "./dom.js";
import { get } from "./server.js";
import { spark } from "./charts.js";
import * as format from "./format.js";

const PAGE = 100;
const COLUMNS = [
  ["stream", "Stream", "", (row) => `${row.scope}/${row.stream}`],
  ["rate", "Events/s", "num", (row) => row.events_per_second ?? -1],
  [null, "Last hour", ""],
  ["bytes", "Bytes/s", "num", (row) => row.bytes_per_second ?? -1],
  ["events", "Events", "num", (row) => row.events ?? -1],
  ["size", "Size", "num", (row) => row.size_bytes ?? -1],
  ["segments", "Segments", "num", (row) => row.segments ?? -1],
  ["updated", "Last commit", "num", (row) => row.updated_ms ?? -1],
];

export const stateChip = (state) =>
  state === "ACTIVE" ? null : h("span", { class: `chip ${state === "DAMAGED" ? "bad" : "warn"}` }, state.toLowerCase());

export const tagChips = (tags) => tags.map((tag) =>
  h("a", { class: "chip", href: `/streams?q=${encodeURIComponent(tag)}`, "data-link": true, title: tag }, tag));

export function streamsView() {
  const query = new URLSearchParams(location.search);
  const wanted = { q: query.get("q") || "", sort: query.get("sort") || "stream", down: query.get("down") === "1", after: query.get("after") };
  const rows = new Map();
  const tiles = h("div", { class: "tiles" });
  const list = h("div", { class: "loading" }, "Looking at the root…");
  const upkeep = h("span", { class: "small muted" });
  let page = null;
  let overview = null;

  function address(changes) {
    const given = { ...wanted, ...changes };
    const parts = Object.entries({ q: given.q, sort: given.sort === "stream" ? "" : given.sort, down: given.down ? "1" : "", after: given.after })
      .filter(([, value]) => value);
    return parts.length ? `/streams?${new URLSearchParams(parts)}` : "/streams";
  }

  function sorted() {
    const value = COLUMNS.find(([key]) => key === wanted.sort)?.[3] || COLUMNS[0][3];
    const found = [...rows.values()].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
    return wanted.down ? found.reverse() : found;
  }

  function sortBy(key) {
    wanted.down = wanted.sort === key ? !wanted.down : key !== "stream";
    wanted.sort = key;
    history.replaceState(null, "", address({}));
    draw();
  }

  function heading([key, text, kind]) {
    const order = key && key === wanted.sort ? (wanted.down ? "descending" : "ascending") : null;
    return h("th", { class: kind, scope: "col", "aria-sort": order },
      key ? h("button", { type: "button", onclick: () => sortBy(key) }, text) : text);
  }

  function line(row) {
    const name = `${row.scope}/${row.stream}`;
    const value = (label, kind, ...shown) => cell([label, kind], shown);
    return h("tr", { "data-stream": name },
      value("Stream", "name", h("span", { class: "muted" }, `${row.scope}/`),
        h("a", { class: "row", href: format.link("streams", row.scope, row.stream), "data-link": true }, row.stream),
        " ", h("span", { title: row.problem || null }, stateChip(row.state)), " ", tagChips(row.tags)),
      value("Events/s", "num", format.rate(row.events_per_second)),
      value("Last hour", "trend", row.series.length ? spark(row.series, name) : "–"),
      value("Bytes/s", "num", row.bytes_per_second === 0 ? "0" : format.bytes(row.bytes_per_second)),
      value("Events", "num", format.count(row.events)),
      value("Size", "num", format.bytes(row.size_bytes)),
      value("Segments", "num", format.count(row.segments)),
      value("Last commit", "num muted", row.updated_ms === null ? "–" : ago(row.updated_ms)));
  }

  function draw() {
    const focused = document.activeElement?.closest?.("tr[data-stream]")?.dataset.stream;
    const every = sorted();
    const sum = (value) => every.reduce((total, row) => total + value(row), 0);
    tiles.replaceChildren(
      tile(format.count(page.total), wanted.q ? "streams that match" : "streams"),
      tile(format.rate(sum((row) => row.events_per_second)), "events a second"),
      tile(format.bytes(sum((row) => row.bytes_per_second)), "a second"),
      tile(format.short(sum((row) => row.events)), "readable events"),
      tile(format.bytes(sum((row) => row.size_bytes)), "of events"));
    if (!every.length) {
      list.replaceChildren(h("p", { class: "empty" }, wanted.q ? `No stream has “${wanted.q}” in its name or tags.`
        : "This root has no streams yet. Create one with: pravega-spark stream create SCOPE/STREAM"));
      return;
    }
    const body = h("tbody", {}, every.map(line));
    const more = pager();
    list.replaceChildren(h("div", { class: "scroll" },
      h("table", { class: "rows cards" }, h("thead", {}, h("tr", {}, COLUMNS.map(heading))), body)), ...(more ? [more] : []));
    if (focused) body.querySelector(`tr[data-stream="${CSS.escape(focused)}"] a.row`)?.focus({ preventScroll: true });
  }

  function pager() {
    if (!page.next && !wanted.after) return null;
    return h("div", { class: "pager" },
      wanted.after ? h("a", { href: address({ after: null }), "data-link": true }, "First page") : h("span"),
      h("span", {}, `${format.count(rows.size)} of ${format.count(page.total)}`),
      page.next ? h("a", { href: address({ after: page.next }), "data-link": true }, "Next page") : h("span"));
  }

  async function load() {
    try {
      const [q, after] = [wanted.q, wanted.after];
      const found = await get("/api/streams", { search: q, after, limit: PAGE });
      if (q !== wanted.q || after !== wanted.after) return;
      page = found;
      rows.clear();
      for (const row of page.streams) rows.set(`${row.scope}/${row.stream}`, row);
      list.className = "";
      draw();
    } catch (error) {
      list.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  async function loadUpkeep() {
    await get("/api/attention").catch(() => null); // what is overdue goes by what the looks have found
    overview = await get("/api/overview").catch(() => null);
    const late = overview?.maintenance.filter((kind) => kind.is_overdue).map((kind) => kind.kind) || [];
    upkeep.replaceChildren(late.length && overview.streams
      ? h("span", { class: "chip warn", title: `No recent run of: ${late.join(", ")}` }, `maintenance overdue: ${late.length} of ${overview.maintenance.length}`)
      : overview?.maintenance.some((kind) => kind.finished_ms !== null) ? h("span", { class: "chip good" }, "maintenance on time") : "");
  }

  return {
    title: wanted.q || "Streams",
    element: h("div", {}, h("div", { class: "head" }, h("h1", {}, "Streams"), upkeep), tiles, h("section", { class: "card", "aria-label": "Streams" }, list)),
    begin() { load(); loadUpkeep(); },
    reload: load,
    onRows(changed) {
      let isNew = false;
      for (const row of changed) {
        const name = `${row.scope}/${row.stream}`;
        if (rows.has(name)) rows.set(name, row);
        else isNew = true;
      }
      if (page) draw();
      if (isNew && page && (page.total <= PAGE || rows.size < PAGE) && !wanted.q) load();
    },
    onSearch(text) {
      wanted.q = text;
      wanted.after = null;
      history.replaceState(null, "", address({}));
      return load();
    },
  };
}

export function tile(value, name, unit) {
  return h("div", { class: "tile" }, h("b", {}, value, unit && h("small", {}, unit)), h("span", {}, name));
}
