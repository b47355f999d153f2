// The page's frame: addresses, keys, colours, search, and the one connection for live updates.

import { h, tickAges } from "./dom.js";
import * as format from "./format.js";
import { get, live, onServer, tryNow, unstored } from "./server.js";
import { overviewView } from "./overview_view.js";
import { streamsView } from "./streams_view.js";
import { streamView } from "./stream_view.js";
import { groupView, groupsView } from "./groups_view.js";
import { tablesView } from "./tables_view.js";
import { tableView } from "./table_view.js";
import { eventsView } from "./events_view.js";
import { docsView } from "./docs.js";

const main = document.getElementById("main");
const search = document.getElementById("search");
const state = document.getElementById("live");
const STATES = { on: "live", trouble: "connection lost", unstored: "storage away", off: "connecting", paused: "paused" };
let shown = null;

// Links of earlier versions to the list of streams go on to work.
const isList = (query) => ["q", "sort", "down", "after"].some((name) => new URLSearchParams(query).has(name));

const ROUTES = [
  [/^\/$/, "overview", () => (isList(location.search) ? { ...streamsView(), nav: "streams" } : overviewView())],
  [/^\/streams\/?$/, "streams", () => streamsView()],
  [/^\/streams\/([^/]+)\/([^/]+)$/, "streams", streamView],
  [/^\/streams\/([^/]+)\/([^/]+)\/events$/, "streams", eventsView],
  [/^\/groups\/?$/, "groups", () => groupsView()],
  [/^\/groups\/([^/]+)\/([^/]+)$/, "groups", groupView],
  [/^\/tables\/?$/, "tables", () => tablesView()],
  [/^\/tables\/([^/]+)\/([^/]+)$/, "tables", tableView],
  [/^\/api\/docs\/?$/, "api", () => docsView()],
];

const away = document.getElementById("away");
let lost = ""; // why the server does not answer
let bare = ""; // why its storage does not

function setState(kind, text) {
  const shows = lost ? "trouble" : bare && kind !== "paused" ? "unstored" : kind;
  state.dataset.state = shows;
  state.textContent = STATES[shows];
  state.title = STATES[shows];
  notice(kind === "trouble" && text ? text : "");
}

/** Say what is wrong below the bar: the server or its storage is away, or has trouble. */
function notice(text) {
  const [said, line] = [lost || bare || text, away.firstElementChild];
  away.hidden = !said;
  // A screen reader reads each change.
  if (line.textContent !== format.printable(said)) line.textContent = format.printable(said);
  away.querySelector("button").hidden = !lost && !bare;
}

const KEEPS = "This page keeps what it shows, and tries again by itself.";
onServer((kind, data) => {
  if (kind === "away") lost = `The server has not answered since ${format.clockSeconds(data.sinceMs)}. ${KEEPS}`;
  if (kind === "back") lost = "";
  if (kind === "unstored") bare = `The server answers, but has not reached its storage since ${format.clockSeconds(data.sinceMs)}: ${data.message} ${KEEPS}`;
  if (kind === "stored") bare = "";
  setState(kind === "away" ? "trouble" : kind === "stored" ? "on" : "off");
});
away.querySelector("button").addEventListener("click", tryNow);

function viewOf(path) {
  for (const [pattern, nav, make] of ROUTES) {
    const match = path.match(pattern);
    if (!match) continue;
    try {
      const view = make(...match.slice(1).map(decodeURIComponent));
      return [view.nav || nav, view];
    } catch (error) {
      if (!(error instanceof URIError)) throw error;
    }
  }
  return ["", notFound(path)];
}

/** Show the view of the present address; a view is {element, title, stream?, group?, onRows?, onLive?, reload?}. */
function show() {
  shown?.controller.abort();
  shown?.updates?.abort();
  const [nav, view] = viewOf(location.pathname);
  const controller = new AbortController();
  shown = { view, controller };
  document.title = format.printable(view.title ? `${view.title} · pravega_spark` : "pravega_spark");
  for (const item of document.querySelectorAll("[data-nav]")) {
    if (item.dataset.nav === nav) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  search.placeholder = view.search || "Search streams and tags";
  search.setAttribute("aria-label", search.placeholder);
  search.value = new URLSearchParams(location.search).get("q") || "";
  main.replaceChildren(view.element);
  view.begin?.(controller.signal);
  connect();
}

// A browser keeps six connections to a host, for all tabs: only pages that are seen hold one.
function connect() {
  shown.updates?.abort();
  shown.updates = null;
  if (document.hidden) return setState("paused");
  setState("off");
  shown.updates = new AbortController();
  const { view } = shown;
  let greetings = 0;
  live({ stream: view.stream, group: view.group }, shown.updates.signal, (kind, data) => {
    if (kind === "streams") view.onRows?.(data.streams);
    else view.onLive?.(kind, data);
    // After a break the server tells only what changes from now on.
    if (kind === "resync" || (kind === "hello" && greetings++ > 0)) view.reload?.();
    if (kind === "trouble" && data.storage_since_ms !== null) unstored({ message: data.message, sinceMs: data.storage_since_ms });
    else if (kind === "trouble") setState("trouble", data.message);
    else {
      if (kind === "resync") tryNow();
      setState("on");
    }
  }, setState);
}

document.addEventListener("visibilitychange", () => {
  connect();
  if (!document.hidden) shown.view.reload?.();
});
addEventListener("pagehide", () => shown.updates?.abort());
addEventListener("pageshow", (event) => { if (event.persisted) show(); });

export function go(address) {
  history.pushState(null, "", address);
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function notFound(path) {
  return { title: "Not found", element: h("div", { class: "missing" }, h("h1", {}, "There is no such page"),
    h("p", {}, h("code", {}, path), " is no address of this server. A link may be old, or cut short."),
    h("p", {}, h("a", { href: "/", "data-link": true }, "To the first page"))) };
}

document.addEventListener("click", (event) => {
  const row = event.target.closest("a, button") ? null : event.target.closest(".rows tbody tr");
  const link = row && getSelection().isCollapsed ? row.querySelector("a.row") : event.target.closest("a[data-link]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
addEventListener("popstate", show);

// A search finds while one types; its Enter opens the row that has this name, or else the first.
let finding = null;
function find() {
  clearTimeout(finding);
  return shown.view.onSearch?.(search.value);
}
search.addEventListener("input", () => {
  clearTimeout(finding);
  finding = setTimeout(find, 200);
});
search.form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { view } = shown;
  const text = search.value.trim();
  if (!view.onSearch) {
    go(text ? `/streams?q=${encodeURIComponent(text)}` : "/streams");
    search.focus();
    return;
  }
  await find();
  if (!text || shown.view !== view) return;
  const names = (row) => [row.textContent, row.closest("td, li")?.textContent.trim()];
  (rows().find((row) => names(row).includes(text)) || rows()[0])?.click();
});

// Keys: "/" searches, j and k or the arrows walk through a list, also from the search, Escape
// leaves the search or goes up.
document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
  const isSearching = document.activeElement === search;
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  if (isSearching && event.key === "Escape") search.blur();
  else if (isSearching && event.key === "ArrowDown") walk(event);
  else if (isTyping) return;
  else if (event.key === "/") { event.preventDefault(); search.focus(); search.select(); }
  else if (event.key === "Escape" && shown.view.up) go(shown.view.up);
  else if (["j", "k", "ArrowDown", "ArrowUp"].includes(event.key)) walk(event);
});

const rows = () => [...document.querySelectorAll("a.row")];

function walk(event) {
  const every = rows();
  if (!every.length) return;
  const at = every.indexOf(document.activeElement);
  if (at < 0 && event.key.startsWith("Arrow") && document.activeElement !== search) return;
  event.preventDefault();
  if (at === 0 && event.key === "ArrowUp") return search.focus();
  const step = event.key === "j" || event.key === "ArrowDown" ? 1 : -1;
  every[Math.max(0, Math.min(every.length - 1, at < 0 ? 0 : at + step))].focus();
}

const COLOURS = { auto: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };
const button = document.getElementById("theme");
function colour(kind) {
  const [sign, name] = COLOURS[kind] || COLOURS.auto;
  document.documentElement.style.colorScheme = kind === "auto" ? "light dark" : kind;
  button.textContent = sign;
  button.setAttribute("aria-label", `Colours: ${name}`);
  button.title = `Colours: ${name}`;
}
button.addEventListener("click", () => {
  const kinds = Object.keys(COLOURS);
  const next = kinds[(kinds.indexOf(localStorage.getItem("colours") || "auto") + 1) % kinds.length];
  localStorage.setItem("colours", next);
  colour(next);
});
colour(localStorage.getItem("colours") || "auto");

setInterval(() => { if (!document.hidden) tickAges(); }, 5000);
show();
get("/api/overview").then((found) => {
  document.getElementById("root").textContent = format.printable(found.root);
  document.getElementById("version").textContent =
    `pravega_spark ${found.version} · ${found.allow_changes ? "changes allowed by REST" : "read-only"}`;
}).catch(() => {});
