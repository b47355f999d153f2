// Reader groups: the list, and one group with its segments.

import { card, column, h, table, wide } from "./dom.js";
import { get } from "./server.js";
import { tile } from "./streams_view.js";
import { lag } from "./stream_panels.js";
import * as format from "./format.js";

const EVERY = 5000;

/** Call now, and again while the view is seen. */
export function repeat(load, signal) {
  load();
  const timer = setInterval(() => { if (!document.hidden) load(); }, EVERY);
  signal.addEventListener("abort", () => clearInterval(timer));
}

export const streamLink = (name) =>
  h("a", { href: format.link("streams", ...name.split("/")), "data-link": true }, name);

export function groupsView() {
  const query = new URLSearchParams(location.search);
  const list = h("div", { class: "loading" }, "…");
  const wanted = { search: query.get("q") || "", after: query.get("after") };

  async function load() {
    try {
      const page = await get("/api/groups", wanted);
      list.className = "";
      list.replaceChildren(page.groups.length ? table(
        ["Group", "Streams", ["Readers", "num"], ["Segments", "num"], "Behind", "Holds data", ["Last change", "num"]],
        page.groups.map((row) => [
          [h("span", { class: "muted" }, `${row.scope}/`), h("a", { class: "row", href: format.link("groups", row.scope, row.group), "data-link": true }, row.group),
            row.state === "ACTIVE" ? "" : h("span", { class: "chip warn" }, row.state.toLowerCase())],
          row.streams.slice(0, 4).map((name, at) => [at ? ", " : "", streamLink(name)]), format.count(row.readers.length), format.count(row.segments),
          lag(row), row.retention, format.ago(row.updated_ms)]), { class: "rows" })
        : h("p", { class: "empty" }, wanted.search ? "No reader group has that name." : "This root has no reader groups."),
      page.next ? h("p", { class: "pager" }, h("a", { href: `/groups?after=${encodeURIComponent(page.next)}`, "data-link": true }, "Next page")) : "");
    } catch (error) {
      list.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  return {
    title: "Reader groups",
    search: "Search reader groups",
    element: h("div", {}, h("div", { class: "head" }, h("h1", {}, "Reader groups")), h("section", { class: "card", "aria-label": "Reader groups" }, list)),
    begin: (signal) => repeat(load, signal),
    onSearch(text) { wanted.search = text; wanted.after = null; return load(); },
  };
}

function segments(rows) {
  const most = Math.max(...rows.map((row) => row.lag || 0), 1);
  return table(["Stream", "Segment", "State", "Reader", ["Offset", "num"], ["Tail", "num"], ["Behind", "num"], ["Compared", "part"]], rows.map((row) => [
    streamLink(row.stream), h("code", {}, row.segment), row.state, row.reader || h("span", { class: "muted" }, "–"),
    format.count(row.current_offset), format.count(row.next_offset), format.count(row.lag),
    h("div", { class: "meter" }, wide(h("i", { class: row.lag_seconds > 600 ? "warn" : "" }), (row.lag || 0) / most))]));
}

export function groupView(scope, group) {
  const tiles = h("div", { class: "tiles" });
  const grid = h("div", { class: "grid" }, h("p", { class: "loading" }, "…"));

  async function load() {
    try {
      const found = await get(`/api/groups/${encodeURIComponent(scope)}/${encodeURIComponent(group)}`);
      const row = found.row;
      tiles.replaceChildren(
        tile(format.count(row.lag_events), "events behind"),
        tile(format.bytes(row.lag_bytes), "behind"),
        tile(format.span(row.lag_seconds), "age of the oldest unread event"),
        tile(format.count(row.readers.length), "readers online"),
        tile(format.count(row.segments), `segments, ${format.count(row.unassigned)} without a reader`),
        tile(row.last_checkpoint || "none", "last checkpoint"));
      const facts = Object.entries({ state: row.state.toLowerCase(), generation: row.generation, retention: row.retention,
        streams: row.streams.join(", "), readers: row.readers.join(", ") || "none", changed: format.ago(row.updated_ms) });
      grid.replaceChildren(
        column("two-thirds", card("Segments", found.total_segments > found.segments.length ? `the first ${found.segments.length} of ${found.total_segments}` : "position and what is unread", segments(found.segments))),
        column("third", card("Group", "", h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])))));
    } catch (error) {
      grid.replaceChildren(h("p", { class: "problem card" }, error.message));
    }
  }

  return {
    title: `${scope}/${group}`,
    up: "/groups",
    element: h("div", {}, h("div", { class: "head" }, h("h1", {}, h("a", { class: "crumb", href: "/groups", "data-link": true }, `${scope} / `), group)), tiles, grid),
    begin: (signal) => repeat(load, signal),
  };
}
