// Reader groups: the list with their states, and one group with its curves, readers and segments.

import { deletedChip, unlessAbsent } from "./absent.js";
import { ago, card, cell, choice, column, h, renew, table, wide } from "./dom.js";
import { get } from "./server.js";
import { chart } from "./charts.js";
import { tile } from "./streams_view.js";
import * as format from "./format.js";

const EVERY = 5000;
const AGAIN = 15000;
const STATES = { "up to date": "good", finished: "", "catching up": "", behind: "", unknown: "", "not looked at": "",
  "falling behind": "warn", "stream missing": "warn", changing: "warn", unreadable: "warn", "not reading": "bad", damaged: "bad" };
const COLUMNS = [["name", "Group"], ["status", "State"], [null, "Streams"], ["readers", "Readers", "num"], ["lag", "Behind", "num"],
  [null, "Read", "num"], [null, "Written", "num"], [null, "Caught up in", "num"], ["changed", "Last change", "num"], [null, "Looked at", "num"]];
const DOWN = new Set(["lag", "readers", "changed"]);

/** Call now, and again while the view is seen. */
export function repeat(load, signal) {
  load();
  const timer = setInterval(() => { if (!document.hidden) load(); }, EVERY);
  signal.addEventListener("abort", () => clearInterval(timer));
}

export const streamLink = (name) =>
  h("a", { href: format.link("streams", ...name.split("/")), "data-link": true }, name);

const unknown = (text = "–") => h("span", { class: "muted" }, text);
const count = (value) => (value === null ? unknown() : format.count(value));

export function stateOf(row) {
  const colour = row.status === "no reader" ? (row.lag_events ? "bad" : "") : STATES[row.status] || "";
  return h("span", { class: `chip ${colour}`, title: row.problem || null }, row.status);
}

function catchUp(row) {
  if (row.catch_up_seconds !== null) return format.span(row.catch_up_seconds);
  return unknown(row.never_catches_up ? "never at this rate" : "–");
}

const rate = (value) => (value === null ? unknown() : `${format.rate(value)}/s`);

const waits = (row) => row.waits.map((wait) => h("p", { class: "small" }, h("span", { class: "chip warn" }, "waits"), ` checkpoint ${wait.name} for ${wait.readers.join(", ")}`));

export function groupsView() {
  const query = new URLSearchParams(location.search);
  const list = h("div", { class: "loading" }, "…");
  const said = h("span", { class: "small muted" });
  const wanted = { search: query.get("q") || "", after: query.get("after"), sort: query.get("sort") || "name", down: query.get("down") === "1" };
  let page = null;
  let loadedAt = 0;

  function address(changes) {
    const given = { ...wanted, ...changes };
    const parts = Object.entries({ q: given.search, sort: given.sort === "name" ? "" : given.sort, down: given.down ? "1" : "", after: given.after }).filter(([, value]) => value);
    return parts.length ? `/groups?${new URLSearchParams(parts)}` : "/groups";
  }

  function sortBy(key) {
    wanted.down = wanted.sort === key ? !wanted.down : DOWN.has(key);
    wanted.sort = key;
    wanted.after = null;
    history.replaceState(null, "", address({}));
    return load();
  }

  function heading([key, text, kind]) {
    const order = key && key === wanted.sort ? (wanted.down ? "descending" : "ascending") : null;
    return h("th", { class: kind, scope: "col", "aria-sort": order }, key ? h("button", { type: "button", onclick: () => sortBy(key) }, text) : text);
  }

  function line(row) {
    const values = [
      [h("span", { class: "muted" }, `${row.scope}/`), h("a", { class: "row", href: format.link("groups", row.scope, row.group), "data-link": true }, row.group)],
      [stateOf(row), row.problem && h("p", { class: "small problem" }, row.problem), waits(row)],
      [row.streams.slice(0, 4).map((name, at) => [at ? ", " : "", streamLink(name)]), row.streams.length > 4 && ` and ${row.streams.length - 4} more`],
      row.live_readers === null ? unknown() : row.live_readers < row.readers.length ? `${row.live_readers} of ${row.readers.length}` : format.count(row.live_readers),
      row.lag_events === null ? unknown() : format.plural(row.lag_events, "event"), rate(row.read_per_second), rate(row.written_per_second), catchUp(row),
      row.updated_ms === null ? unknown() : ago(row.updated_ms), row.looked_ms === null ? unknown("not yet") : unknown(ago(row.looked_ms))];
    return h("tr", {}, values.map((value, at) => cell([COLUMNS[at][1], COLUMNS[at][2]], value)));
  }

  function draw() {
    list.className = "";
    said.textContent = format.printable(page.looked < page.total && !wanted.search ? `${format.count(page.looked)} of ${format.plural(page.total, "group")} looked at` : "");
    renew(list, page.groups.length
      ? h("div", { class: "scroll" }, h("table", { class: "rows cards" }, h("thead", {}, h("tr", {}, COLUMNS.map(heading))), h("tbody", {}, page.groups.map(line))))
      : h("p", { class: "empty" }, wanted.search ? "No reader group has that name." : "This root has no reader groups."),
      page.next || wanted.after ? h("p", { class: "pager" },
        wanted.after ? h("a", { href: address({ after: null }), "data-link": true }, "First page") : h("span"),
        page.next ? h("a", { href: address({ after: page.next }), "data-link": true }, "Next page") : h("span")) : "");
  }

  async function load() {
    loadedAt = Date.now();
    try {
      page = await get("/api/groups", { ...wanted, down: wanted.down ? "true" : "" });
      draw();
    } catch (error) {
      list.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  return {
    title: "Reader groups",
    search: "Search reader groups",
    element: h("div", {}, h("div", { class: "head" }, h("h1", {}, "Reader groups"), said), h("section", { class: "card", "aria-label": "Reader groups" }, list)),
    begin: load,
    reload: load,
    onSearch(text) { Object.assign(wanted, { search: text, after: null }); history.replaceState(null, "", address({})); return load(); },
    onLive(kind, data) {
      if (kind !== "groups" || !page) return;
      if (page.looked < page.total || Date.now() - loadedAt > AGAIN) return load();
      const changed = new Map(data.groups.map((row) => [`${row.scope}/${row.group}`, row]));
      page.groups = page.groups.map((row) => changed.get(`${row.scope}/${row.group}`) || row);
      draw();
    },
  };
}

function segments(rows) {
  const most = Math.max(...rows.map((row) => row.lag || 0), 1);
  return table(["Stream", "Segment", "State", "Reader", ["Offset", "num"], ["Tail", "num"], ["Behind", "num"], ["Age", "num"], ["Read", "num"], ["Written", "num"], ["Caught up in", "num"], ["Compared", "part"]], rows.map((row) => [
    streamLink(row.stream), h("code", {}, row.segment), row.state, row.reader || unknown(),
    count(row.current_offset), count(row.next_offset), count(row.lag), format.span(row.lag_seconds),
    rate(row.read_per_second), rate(row.written_per_second), catchUp(row),
    h("div", { class: "meter" }, wide(h("i", { class: row.lag_seconds > 600 ? "warn" : "" }), (row.lag || 0) / most))]));
}

function readers(rows) {
  if (!rows.length) return h("p", { class: "empty" }, "No reader is in the group.");
  return table(["Reader", "State", ["Segments", "num"], ["Behind", "num"], ["Age", "num"], ["Read", "num"], ["Written", "num"], ["Caught up in", "num"]], rows.map((row) => [
    row.reader, row.silent_seconds === null ? h("span", { class: "chip good" }, "alive") : h("span", { class: "chip bad" }, `silent for ${format.span(row.silent_seconds)}`),
    format.count(row.segments), count(row.lag_events), format.span(row.lag_seconds), rate(row.read_per_second), rate(row.written_per_second), catchUp(row)]));
}

const PART_COLOURS = ["accent", "warn", "good", "bad", "muted", "accent", "warn", "good"];
const series = (curve, colours = PART_COLOURS) => ({ times_ms: curve.times_ms,
  series: curve.lines.map((line, at) => ({ name: line.name, values: line.values, colour: colours[at] })) });

const lostText = (one) => (one.lost_events ? format.plural(one.lost_events, "event") + (one.has_lost_more ? " or more" : "") : "events that the log no longer counts");

export function groupView(scope, group) {
  const tiles = h("div", { class: "tiles" });
  const [marks, facts, readerRows, segmentRows, problem] = [h("span"), h("dl", { class: "facts" }), h("div"), h("div"), h("div")];
  const events = chart({ label: "Unread events", unit: "events", format: format.short, height: 190 });
  const seconds = chart({ label: "Age of the oldest unread event", format: format.span, height: 190 });
  const rates = chart({ label: "Events a second, read and written", unit: "events/s", format: format.rate, height: 190 });
  const parts = { readers: chart({ label: "Unread events by reader", unit: "events", format: format.short, height: 150 }),
    segments: chart({ label: "Unread events by segment", unit: "events", format: format.short, height: 150 }) };
  const lagBody = h("div", {}, events.element);
  const segmentCard = card("Segments", "position and what is unread, the furthest behind first", h("div", {}, parts.segments.element, segmentRows));
  const name = `${scope}/${group}`;
  let known = null; // what was shown stays when the group is deleted

  function draw(found) {
    const row = found.row;
    problem.replaceChildren();
    marks.replaceChildren(stateOf(row));
    tiles.replaceChildren(
      tile(count(row.lag_events), "events behind"),
      tile(format.bytes(row.lag_bytes), "behind"),
      tile(format.span(row.lag_seconds), "age of the oldest unread event"),
      tile([rate(row.read_per_second), h("small", {}, " of "), rate(row.written_per_second)], "read, of what is written"),
      tile(catchUp(row), "until all is read"),
      tile(row.live_readers === null ? "–" : `${row.live_readers} of ${row.readers.length}`, "readers are alive"),
      tile(format.count(row.segments), `segments, ${format.count(row.unassigned)} without a reader`),
      tile(row.looked_ms === null ? "not yet" : ago(row.looked_ms), "looked at"));
    events.update(series({ ...found.lag, lines: found.lag.lines.slice(0, 1) }));
    seconds.update(series({ ...found.lag, lines: found.lag.lines.slice(1) }));
    rates.update(series(found.rates));
    parts.readers.element.hidden = !found.readers.length;
    parts.readers.update(series(found.reader_lags));
    parts.segments.update(series(found.segment_lags));
    renew(readerRows, readers(found.readers));
    renew(segmentRows, segments(found.segments), found.total_segments > found.segments.length
      ? h("p", { class: "muted" }, `The first ${found.segments.length} of ${format.count(found.total_segments)}.`) : "");
    const streams = found.streams.map((one) => h("p", {}, streamLink(one.stream), " ",
      one.problem ? h("span", { class: "problem" }, one.problem) : h("span", { class: "muted" }, one.lag_events === null ? "unknown" : `${format.plural(one.lag_events, "event")} behind`),
      one.lost_events || one.has_lost_more ? h("span", { class: "problem" }, ` ${lostText(one)} deleted unread`) : ""));
    const known = { state: row.state.toLowerCase(), generation: row.generation, retention: row.retention, streams,
      "last checkpoint": row.last_checkpoint || "none", checkpoints: row.waits.length ? waits(row) : "none waits", changed: ago(row.updated_ms) };
    renew(facts, ...Object.entries(known).flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
  }

  async function load() {
    try {
      const found = await get(`/api/groups/${encodeURIComponent(scope)}/${encodeURIComponent(group)}`);
      known = found;
      shown.isThere();
      draw(found);
    } catch (error) {
      if (shown.isAbsent(error)) {
        if (!shown.isGone) return;
        draw(known); // with its ages
        return marks.replaceChildren(deletedChip());
      }
      problem.replaceChildren(h("p", { class: "problem card" }, error.message));
    }
  }

  const shownLag = choice("Unit of the lag", [["events", events], ["seconds", seconds]], events, (one) => lagBody.replaceChildren(one.element));
  const shown = unlessAbsent(h("div", {}, problem, tiles,
    h("div", { class: "grid" },
      column("two-thirds",
        card("Behind", "since the server knows the group", lagBody, shownLag),
        card("Reading against writing", "events a second", rates.element)),
      column("third", card("Group", "", facts)),
      card("Readers", "what is unread of their segments", h("div", {}, parts.readers.element, readerRows)), segmentCard)), "/groups", "All reader groups");
  return {
    title: name,
    group: name,
    up: "/groups",
    reload: load,
    element: h("div", {}, h("div", { class: "head" }, h("h1", {}, h("a", { class: "crumb", href: "/groups", "data-link": true }, `${scope} / `), group), marks), shown.element),
    begin: (signal) => repeat(load, signal),
  };
}
