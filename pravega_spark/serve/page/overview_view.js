// The first page: what needs attention, worst first; and nothing if nothing does.

import { ago, card, h, renew, table } from "./dom.js";
import { get } from "./server.js";
import { tile } from "./streams_view.js";
import * as format from "./format.js";

const COLOURS = { critical: "bad", warning: "warn", note: "" };
const KINDS = {
  group_without_reader: "no reader", group_falling_behind: "falling behind", group_lost_events: "lost events", group_not_reading: "not reading",
  group_changing: "not finished", group_stream_missing: "stream missing", group_damaged: "damaged", group_unreadable: "not readable",
  checkpoint_waits: "checkpoint waits", stream_damaged: "damaged", stream_unreadable: "not readable",
  transaction_lease: "transaction ends", transaction_expired: "transaction is over", retention_maximum: "near its maximum",
  clock_ahead: "time in the future", clock_behind: "clock behind", maintenance_overdue: "maintenance overdue", maintenance_failed: "maintenance failed",
  maintenance_unreadable: "maintenance unknown", scope_damaged: "damaged",
  stream_events_damaged: "damaged", table_events_damaged: "damaged", table_entries_damaged: "damaged",
};

function number(found) {
  if (found.unit === "events") return format.plural(found.number, "event");
  if (found.unit === "seconds") return format.span(found.number);
  if (found.unit === "part") return `${Math.round(100 * found.number)} %`;
  if (found.unit === "streams") return format.plural(found.number, "stream");
  if (found.unit === "pages") return format.plural(found.number, "page");
  return "";
}

function toMaintenance(event) {
  event.preventDefault();
  const target = document.getElementById("maintenance");
  target?.scrollIntoView({ block: "start" });
  target?.focus();
}

function subject(found) {
  if (found.subject === "root") return h("a", { class: "row", href: "#maintenance", onclick: toMaintenance }, "maintenance");
  if (found.subject === "scope") return h("a", { class: "row", href: `/streams?q=${encodeURIComponent(`${found.name}/`)}`, "data-link": true }, found.name);
  const [scope, name] = found.name.split("/");
  return h("a", { class: "row", href: found.address || format.link(found.subject === "group" ? "groups" : "streams", scope, name), "data-link": true }, found.name);
}

function list(answer) {
  return table(["Where", "State", "What", ["Looked at", "num"]], answer.findings.map((found) => [
    [h("span", { class: "muted small" }, found.subject === "root" ? "" : `${found.subject} `), subject(found)],
    h("span", { class: `chip ${COLOURS[found.severity]}`, title: found.severity }, KINDS[found.kind] || found.kind),
    [h("b", {}, number(found)), " ", found.text],
    h("span", { class: "muted" }, format.ago(found.looked_ms, answer.now_ms))]), { class: "rows findings" });
}

function quiet(answer) {
  const isWhole = answer.quiet;
  return h("div", { class: "empty" }, h("p", {}, h("b", {}, isWhole ? "Nothing needs attention" : "Nothing found so far")),
    isWhole ? "" : h("p", {}, "Not everything was looked at yet."));
}

/** A number that has its colour unless it is 0. */
const coloured = (number, colour) => h("span", { class: number ? `count ${colour}` : "count" }, format.count(number));

const looked = (part, name) => `${format.count(part.looked)} of ${format.plural(part.total, name)}`;

const unknown = () => h("span", { class: "muted" }, "–");

function upkeep(rows) {
  return table(["Kind", ["Last run", "num"], "By", ["Streams", "num"], ["Failed", "num"]], rows.map((row) => [
    row.kind, row.finished_ms === null ? h("span", { class: "muted" }, "not recorded") : ago(row.finished_ms),
    row.claimed_by ? `at work now: ${row.claimed_by}` : row.by || unknown(), row.finished_ms === null ? unknown() : format.count(row.streams),
    row.failed ? h("span", { class: "chip warn" }, format.count(row.failed)) : row.finished_ms === null ? unknown() : "0"]));
}

export function overviewView() {
  const said = h("p", { class: "muted", role: "status" });
  const tiles = h("div", { class: "tiles" });
  const findings = h("div", { class: "loading" }, "Looking at the root…");
  const runs = h("div", { class: "loading" }, "…");
  let answer = null;

  function draw() {
    const oldest = Math.min(answer.streams.oldest_ms ?? Infinity, answer.groups.oldest_ms ?? Infinity);
    said.textContent = format.printable(`Looked at ${looked(answer.streams, "stream")} and ${looked(answer.groups, "reader group")}`
      + (Number.isFinite(oldest) ? `, the longest ago ${format.ago(oldest, answer.now_ms)}.` : "."));
    tiles.replaceChildren(
      tile(coloured(answer.critical, "bad"), "critical"),
      tile(coloured(answer.warnings, "warn"), answer.warnings === 1 ? "warning" : "warnings"),
      tile(h("a", { href: "/streams", "data-link": true }, format.count(answer.streams.total)), "streams"),
      tile(h("a", { href: "/groups", "data-link": true }, format.count(answer.groups.total)), "reader groups"));
    findings.className = "";
    renew(findings, answer.findings.length ? list(answer) : quiet(answer),
      answer.total > answer.findings.length ? h("p", { class: "muted" }, `The worst ${answer.findings.length} of ${format.count(answer.total)}.`) : "");
  }

  async function load() {
    try {
      answer = await get("/api/attention");
      draw();
    } catch (error) {
      findings.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  async function loadRuns() {
    try {
      const found = await get("/api/overview");
      runs.className = "";
      renew(runs, upkeep(found.maintenance));
    } catch (error) {
      runs.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  const maintenance = card("Maintenance", "the last run of each kind over all streams", runs);
  maintenance.id = "maintenance";
  maintenance.tabIndex = -1;
  return {
    title: "Overview",
    element: h("div", {}, h("div", { class: "head" }, h("h1", {}, "Overview"), said), tiles,
      h("div", { class: "grid" }, card("Needs attention", "worst first", findings), maintenance)),
    begin(signal) {
      load();
      loadRuns();
      const timer = setInterval(() => { if (!document.hidden) loadRuns(); }, 15000);
      signal.addEventListener("abort", () => clearInterval(timer));
    },
    reload: () => { load(); loadRuns(); },
    onLive(kind) { if (kind === "attention") load(); },
  };
}
