// The panels below a stream's picture. Each asks its own path, and draws again after a change.

import { ago, card, h, table, wide } from "./dom.js";
import { get } from "./server.js";
import * as format from "./format.js";

const empty = (text) => h("p", { class: "empty" }, text);
const meter = (part, kind) => h("div", { class: "meter" }, wide(h("i", { class: kind }), part));

export const lag = (row) => {
  if (row.lag_events === null) return h("span", { class: "muted" }, "unknown");
  if (row.lag_events === 0) return h("span", { class: "chip good" }, "caught up");
  return [format.plural(row.lag_events, "event"), row.lag_seconds === null ? "" : h("span", { class: "muted" }, `, ${format.span(row.lag_seconds)}`)];
};

function readers(found) {
  const unlooked = found.unlooked > 0 && h("p", { class: "small muted" }, `${format.plural(found.unlooked, "reader group")} of the root ${found.unlooked === 1 ? "was" : "were"} not looked at yet.`);
  if (!found.readers.length) return h("div", {}, empty(unlooked ? "Nobody is known to read this stream." : "Nobody reads this stream as a group or subscriber."), unlooked);
  const most = Math.max(...found.readers.map((row) => row.lag_events || 0), 1);
  return h("div", {}, unlooked, table(["Who", "Readers", "Behind", ["Compared", "part"], "Holds data"], found.readers.map((row) => [
    row.name.includes("/") ? h("a", { href: format.link("groups", ...row.name.split("/")), "data-link": true }, row.name)
      : [row.name, " ", h("span", { class: "chip" }, "subscriber")],
    row.kind === "subscriber" ? "–" : row.readers.length ? row.readers.join(", ") : h("span", { class: "muted" }, "none online"),
    lag(row),
    meter((row.lag_events || 0) / most, row.lag_seconds > 600 ? "warn" : ""),
    row.retention === "none" ? h("span", { class: "muted" }, "no") : ["yes", row.published_ms && [", published ", ago(row.published_ms)]],
  ])));
}

function retention(found) {
  const whole = Math.max(1, found.goes_events + found.stays_events);
  const holders = found.holders.map((row) => [row.holder, format.plural(row.events, "event"), format.bytes(row.size_bytes),
    meter(row.events / Math.max(1, found.stays_events))]);
  return h("div", {},
    h("p", {}, found.policy === "no policy" ? "No policy: everything stays." : found.policy),
    h("p", { class: "small muted" }, found.goes_events
      ? `A run now would delete ${format.plural(found.goes_events, "event")} (${format.bytes(found.goes_bytes)}): ${found.decision}.`
      : `A run now would delete nothing: ${found.decision}.`),
    found.goes_events > 0 && meter(found.goes_events / whole, "gone"),
    holders.length > 0 && table(["Kept for", ["Events", "num"], ["Size", "num"], ["Share", "part"]], holders),
    found.loses.map((text) => h("p", { class: "problem" }, `would lose unread data: ${text}`)),
    found.idle.map((text) => h("p", { class: "problem" }, `expires: ${text}`)),
    found.overdue && h("p", {}, h("span", { class: "chip warn" }, found.overdue)));
}

const STATUS = { COMMITTED: "good", ABORTED: "bad", OPEN: "warn", PREPARED: "warn" };

function transactions(found) {
  const every = [...found.open, ...found.completed];
  if (!every.length) return empty("No transactions are open or remembered.");
  return table(["Status", "Writer", ["Events", "num"], ["Began", "num"]], every.map((row) => [
    h("span", { class: `chip ${STATUS[row.status] || ""}`, title: [row.transaction, row.reason].filter(Boolean).join(": ") }, row.status.toLowerCase()),
    row.writer || h("span", { class: "muted" }, "–"), format.count(row.events), ago(row.created_ms)]));
}

const micros = (us) => (Math.abs(us) > 8.64e18 ? "–" : format.when(us / 1000));

function watermarks(found) {
  const [newest] = found.watermarks;
  if (!newest && !found.writers.length) return empty("No writer notes times.");
  return h("div", {},
    newest && h("p", {}, "Everything before ", h("b", {}, micros(newest.lower_us)), ` is there; ${format.plural(newest.events, "event")} came after.`),
    found.writers.length > 0 && table(["Writer", "Noted", "State"], found.writers.map((row) => [row.writer, micros(row.lower_us),
      h("span", { class: `chip ${row.is_alive ? "good" : ""}` }, row.is_alive ? "alive" : "has left")])));
}

function storage(found) {
  const stored = found.parts.filter((row) => row.files && row.kind !== "swept");
  return h("div", {}, h("p", {}, `${format.plural(found.files, "file")}, ${format.bytes(found.size_bytes)}`),
    table(["Kind", ["Files", "num"], ["Size", "num"], ["Share", "part"]], stored.map((row) => [
      h("span", { title: row.reason }, row.kind), format.count(row.files), format.bytes(row.size_bytes),
      meter(row.size_bytes / Math.max(1, found.size_bytes))])));
}

const HIDDEN = new Set(["stream", "life", "transactions", "generation", "cut", "configuration", "session"]);
const list = (names) => (Array.isArray(names) ? names.join(", ").replaceAll("=", " ") : String(names));
const value = (found) => (found !== null && typeof found === "object" ? JSON.stringify(found) : String(found));
function summary(row) {
  const given = row.parameters;
  if (row.operation === "SCALE STREAM") return `${list(given.sealed)} → ${list(given.opened)}${given.automatic === true ? ", by load" : ""}`;
  if (row.operation === "TRUNCATE STREAM") return `by ${given.by}, head ${given.head}`.slice(0, 160);
  const said = Object.entries(given).filter(([name, found]) => !HIDDEN.has(name) && !(name === "writer" && String(found).startsWith("_"))).map(([name, found]) => `${name} ${value(found)}`);
  return said.join(" · ").slice(0, 160);
}

function history(found, more) {
  if (!found.commits.length) return empty("The log has no older commits.");
  return h("div", {}, h("ol", { class: "timeline" }, found.commits.map((row) => h("li", {},
    h("span", { class: "muted", title: format.when(row.time_ms) }, ago(row.time_ms)),
    h("span", {}, row.commits > 1 ? `${format.count(row.commits)} × ` : "", h("b", {}, row.operation.toLowerCase()), " ",
      h("span", { class: "small muted" }, summary(row))),
    h("span", { class: "small muted nowrap" }, row.events ? format.plural(row.events, "event") : `v${row.version}`)))),
  found.next !== null && h("p", { class: "pager" }, h("button", { type: "button", onclick: () => more(found.next) }, "Older")));
}

function events(found) {
  if (!found.events.length) return empty("The open segments hold no events.");
  return h("div", {}, found.events.map((row) => h("div", { class: "event" },
    h("span", { class: "small muted" }, h("code", {}, `${row.segment}:${row.offset}`), " ",
      row.routing_key !== null && [h("span", { class: "chip", title: row.routing_key }, row.routing_key), " "],
      ago(row.timestamp_ms), `, ${format.bytes(row.size_bytes)}`),
    h("pre", { tabindex: 0 }, row.text ?? `base64: ${row.base64}`, row.is_cut ? " …" : ""))));
}

function activeSegments(rows) {
  const most = Math.max(...rows.map((row) => row.events_per_second ?? 0), 0.001);
  return table(["Segment", "Keys", ["Events/s", "num"], ["Compared", "part"]], rows.slice(0, 100).map((row) => [
    h("code", {}, row.segment), h("code", { class: "nowrap" }, `${+row.low.toFixed(4)} – ${+row.high.toFixed(4)}`), format.rate(row.events_per_second),
    meter((row.events_per_second ?? 0) / most)]));
}

/** Return the cards, and how to load them; the storage is listed only once it is seen. */
export function panelsOf(base) {
  const browser = h("a", { href: `${base.slice("/api".length)}/events`, "data-link": true }, "all events");
  const bodies = {};
  const drawn = {};
  const body = (name) => (bodies[name] = h("div", { class: "loading" }, "…"));
  let before = null;
  let isStorageSeen = false;
  let storageAt = 0;

  async function draw(name, view, query) {
    try {
      const found = await get(`${base}/${name}`, query);
      const text = JSON.stringify(found);
      if (drawn[name] === text && !["history", "events", "transactions"].includes(name)) return;
      drawn[name] = text;
      bodies[name].className = "";
      bodies[name].replaceChildren(view(found));
    } catch (error) {
      if (error.type === "NoSuchStream" && drawn[name]) return; // deleted: what it showed stays
      bodies[name].replaceChildren(h("p", { class: "problem" }, error.message));
      drawn[name] = ""; // what comes next is news, also if it is what was there before
    }
  }

  const drawHistory = () => draw("history", (found) => history(found, (next) => { before = next; drawHistory(); }), { before, limit: 12 });
  const drawStorage = () => {
    if (!isStorageSeen || Date.now() - storageAt < 60000) return;
    storageAt = Date.now();
    draw("storage", storage);
  };

  const segments = h("div", { class: "loading" }, "…");
  const storageCard = card("Storage", "what is stored, by reason", body("storage"));
  new IntersectionObserver((seen, observer) => {
    if (!seen.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    isStorageSeen = true;
    drawStorage();
  }).observe(storageCard);

  return {
    left: [
      card("Who reads", "and how far behind", body("readers")),
      card("Retention", "what is kept, and for whom", body("retention")),
      card("Recent history", "commits of the log", body("history"),
        h("button", { type: "button", class: "quiet small", onclick: () => { before = null; drawHistory(); } }, "newest")),
      card("Last events", "the beginnings of payloads", body("events"), browser),
    ],
    right: [
      card("Open segments", "over the last minute", segments),
      card("Transactions", "", body("transactions")),
      card("Watermarks", "event time", body("watermarks")),
      storageCard,
    ],
    segments: (rows) => { segments.className = ""; segments.replaceChildren(activeSegments(rows)); },
    load() {
      draw("readers", readers);
      draw("retention", retention);
      draw("transactions", transactions, { limit: 8 });
      draw("watermarks", watermarks);
      draw("events", events, { limit: 8 });
      if (before === null) drawHistory();
      drawStorage();
    },
    age() { if (!document.hidden) draw("readers", readers); },
  };
}
