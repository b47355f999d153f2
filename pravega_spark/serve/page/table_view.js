// One key-value table: its entries by key, one entry with its value, and the changes of the log.

import { unlessAbsent } from "./absent.js";
import { ago, card, h, table } from "./dom.js";
import { get } from "./server.js";
import { address, field, lookedText, lostRows, open, opener, pager } from "./events_view.js";
import { beginning, copyButton, downloadButton, payload } from "./payload_view.js";
import { tile } from "./streams_view.js";
import * as format from "./format.js";

const CHECK = 10000;

const keyOf = (row) => [h("span", { class: "short" }, row.key, row.is_key_cut && "…"),
  row.secondary_key !== null && [" / ", h("span", { class: "short" }, row.secondary_key)]];

function entryDetails(row, base, path, version = null) {
  return async () => {
    try {
      const found = await get(`${base}/entry`, { id: row.id, version });
      const entry = found.entry;
      return h("div", { class: "opened" },
        entry ? payload(entry, downloadButton("Download", `${base}/entry/value`, { id: row.id, version }, "value.bin"))
          : h("p", { class: "muted" }, "The key has no entry: it was removed, or its entry has expired."),
        entry && h("dl", { class: "facts" },
          [["version", entry.version], ["time", format.when(entry.timestamp_ms)], ["size", `${format.count(entry.size_bytes)} bytes`]]
            .flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
        h("p", { class: "buttons" }, copyButton("Copy key", found.key),
          h("a", { href: address(path, { changes: "1", id: row.id }), "data-link": true }, "Changes of this key")));
    } catch (error) {
      return h("p", { class: "problem", role: "alert" }, error.message);
    }
  };
}

function form(path, query, row) {
  const input = (name, placeholder = "") => {
    const made = h("input", { type: "text", name, maxlength: 4000, placeholder });
    made.value = query[name] || "";
    return made;
  };
  const isNumber = row.key_type === "long";
  const fields = isNumber ? [field("Keys from", input("low")), field("to", input("high"))]
    : [field("Keys that begin with", input("prefix", row.key_type === "bytes" ? "text, or 0x00ff" : ""))];
  return h("form", { class: "filters", onsubmit: (event) => {
    event.preventDefault();
    open(address(path, Object.fromEntries(new FormData(event.target))));
  } }, fields, h("button", {}, "Show"));
}

function entries(page, base, path, query, onToggle) {
  const wasSo = page.is_current && page.as_of_ms ? `, the last change ${format.when(page.as_of_ms)}` : "";
  return [
    !page.is_current && h("p", { class: "problem" }, page.as_of_ms
      ? `These entries are of the last fold, ${format.when(page.as_of_ms)}: ${format.plural(page.missing_changes, "change")} since then are too many for a page. Maintenance folds them.`
      : `${format.plural(page.missing_changes, "change")} are too many for a page, and nothing was folded yet. Maintenance folds them.`),
    page.lost && h("p", { class: "problem" }, page.lost),
    page.entries.length ? table(["Key", "Value", ["Size", "num"], "Version", ["Changed", "num"]], page.entries.map((row) => [
      opener(keyOf(row), entryDetails(row, base, path, page.version), (isOpen) => onToggle(row.id, isOpen), row.id), beginning(row), format.bytes(row.size_bytes),
      h("code", {}, row.version), ago(row.timestamp_ms)]), { class: "events" })
      : h("p", { class: "empty" }, page.next ? "None so far." : "No entry is here."),
    h("p", { class: "pager" }, h("span", {}, `Version ${format.count(page.version)}${wasSo}; looked at ${format.plural(page.looked, "entry").replace("entrys", "entries")}.`),
      page.next && h("a", { href: address(path, { ...query, version: page.version, after: page.next }), "data-link": true }, "Next page")),
  ];
}

function changes(page, base, path, kept, onToggle) {
  return [
    h("p", { class: "small muted" }, lookedText(page.looked, page.changes.length, { what: "changes" })),
    ...lostRows(page.lost),
    page.changes.length ? table(["Key", "Change", "Value", ["Size", "num"], "Version", ["When", "num"]], page.changes.map((row) => [
      opener(keyOf(row), entryDetails(row, base, path), (isOpen) => onToggle(`${row.segment}=${row.offset}`, isOpen), `${row.segment}=${row.offset}`),
      h("span", { class: `chip ${row.is_removal ? "bad" : "good"}` }, row.is_removal ? "removed" : "put"),
      row.is_removal ? "" : beginning(row), row.is_removal ? "" : format.bytes(row.size_bytes), h("code", {}, row.version), ago(row.timestamp_ms)]), { class: "events" })
      : h("p", { class: "empty" }, page.is_done ? "No change is here: older ones were folded into the entries." : "None so far."),
    pager(page, path, kept, Boolean(kept.id)),
  ];
}

export function tableView(scope, name) {
  const path = format.link("tables", scope, name);
  const base = `/api${path}`;
  const given = new URLSearchParams(location.search);
  const of = (names) => Object.fromEntries(names.map((each) => [each, given.get(each)]));
  const isChanges = given.has("changes");
  const tiles = h("div", { class: "tiles" });
  const filters = h("div", {});
  const list = h("div", { class: "loading", "aria-live": "polite" }, "…");
  const tab = (text, isOne, query) => h("a", { href: address(path, query), "data-link": true, "aria-current": isOne ? "page" : null, class: "tab" }, text);

  const shown = unlessAbsent(h("div", {}, tiles,
    card(isChanges ? "Changes" : "Entries", isChanges && given.get("id") ? "of one key" : "", h("div", {}, filters, list),
      [tab("entries", !isChanges, {}), tab("changes", isChanges, { changes: "1" })])), "/tables", "All tables");
  const query = isChanges ? { changes: "1", id: given.get("id") } : of(["prefix", "low", "high"]);
  const newest = h("button", { type: "button", class: "small", hidden: true, onclick: () => open(address(path, query)) }, "There is a newer version: show it");
  const begins = isChanges ? of(["at", "order"]) : of(["version", "after"]); // where what is shown begins, for its address
  let version = null;
  let opened = given.get("open");

  /** Put all that is shown into the address, without another step of the history. */
  function note() {
    if (list.isConnected) history.replaceState(null, "", address(path, { ...query, ...begins, open: opened }));
  }

  function toggled(at, isOpen) {
    if (isOpen) opened = at;
    else if (opened === at) opened = null;
    note();
  }

  async function rows(row) {
    if (!isChanges) {
      filters.replaceChildren(form(path, query, row));
      const page = await get(`${base}/entries`, { ...query, ...begins, limit: 50 });
      begins.version = version = page.version;
      return entries(page, base, path, query, toggled);
    }
    const page = await get(`${base}/changes`, { id: query.id, ...begins, limit: 50 });
    version = page.version;
    if (!begins.at || ["head", "tail"].includes(begins.at))
      Object.assign(begins, { order: page.order, at: page.order === "newest" ? page.newer : page.older });
    return changes(page, base, path, query, toggled);
  }

  async function load() {
    try {
      const row = await get(base);
      if (shown.isGone) for (const name of Object.keys(begins)) begins[name] = null; // another table has this name
      shown.isThere();
      tiles.replaceChildren(
        tile(format.count(row.folded_entries), "folded entries"), tile(format.count(row.unfolded_changes), "changes since the fold"),
        tile(format.bytes(row.folded_bytes + row.unfolded_bytes), "of rows and changes"), tile(row.key_type, row.has_secondary_key ? "keys, with a secondary one" : "keys"),
        tile(row.ttl || "never", "expires"), tile(format.count(row.version), "version of the log"));
      list.replaceChildren(...(await rows(row)).filter(Boolean));
      list.className = "";
      newest.hidden = row.version <= version;
      note();
      if (opened) [...list.querySelectorAll("button[data-at]")].find((one) => one.dataset.at === opened)?.click();
    } catch (error) {
      if (shown.isAbsent(error)) return;
      list.className = "";
      const way = isChanges ? error.status === 410 && ["The oldest change that is left", { changes: "1", at: "head", order: "oldest" }]
        : begins.version && error.status !== 403 && ["The newest version", query];
      list.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message),
        way ? h("p", {}, h("a", { href: address(path, way[1]), "data-link": true }, way[0])) : "");
    }
  }

  /** Look whether the table is still there, and was changed: what its page shows stays. */
  async function check() {
    if (document.hidden || !shown.isShown || shown.isGone) return;
    const row = await get(base).catch((error) => { shown.isAbsent(error); return null; });
    if (row && version !== null) newest.hidden = row.version <= version;
  }

  return {
    title: `Table ${scope}/${name}`,
    up: "/tables",
    element: h("div", {},
      h("div", { class: "head" }, h("h1", {}, h("a", { class: "crumb", href: "/tables", "data-link": true }, `${scope} / `), name), newest),
      shown.element),
    begin(signal) {
      load();
      shown.repeat(load, signal);
      const timer = setInterval(check, CHECK);
      signal.addEventListener("abort", () => clearInterval(timer));
    },
  };
}
