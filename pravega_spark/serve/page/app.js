// The page's frame: addresses, keys, colours, search, and the one connection for live updates.

import { h } from "./dom.js";
import { printable } from "./format.js";
import { get, live } from "./server.js";
import { streamsView } from "./streams_view.js";
import { streamView } from "./stream_view.js";
import { groupView, groupsView } from "./groups_view.js";
import { tablesView } from "./tables_view.js";

const main = document.getElementById("main");
const search = document.getElementById("search");
const state = document.getElementById("live");
const STATES = { on: "live", trouble: "connection lost", off: "connecting" };
let shown = null;

const ROUTES = [
  [/^\/(?:streams\/?)?$/, "streams", () => streamsView()],
  [/^\/streams\/([^/]+)\/([^/]+)$/, "streams", streamView],
  [/^\/groups\/?$/, "groups", () => groupsView()],
  [/^\/groups\/([^/]+)\/([^/]+)$/, "groups", groupView],
  [/^\/tables\/?$/, "tables", () => tablesView()],
];

function setState(kind, text) {
  state.dataset.state = kind;
  state.textContent = printable(text || STATES[kind]);
}

/** Show the view of the present address; a view is {element, title, stream?, onRows?, reload?}. */
function show() {
  shown?.controller.abort();
  shown?.updates?.abort();
  const found = ROUTES.map(([pattern, nav, make]) => [location.pathname.match(pattern), nav, make])
    .find(([match]) => match);
  const [match, nav, make] = found || [[], "", () => notFound()];
  const view = make(...match.slice(1).map(decodeURIComponent));
  const controller = new AbortController();
  shown = { view, controller };
  document.title = printable(view.title ? `${view.title} · pravega_spark` : "pravega_spark");
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
  if (document.hidden) return setState("off", "paused");
  setState("off");
  shown.updates = new AbortController();
  const { view } = shown;
  live(view.stream, shown.updates.signal, (kind, data) => {
    if (kind === "streams") view.onRows?.(data.streams);
    if (kind === "resync") view.reload?.();
    if (kind === "trouble") setState("trouble", data.message.slice(0, 80));
    else setState("on");
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

function notFound() {
  return { element: h("p", { class: "empty" }, "There is no such page. ", h("a", { href: "/", "data-link": true }, "All streams")), title: "Not found" };
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-link]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
addEventListener("popstate", show);

search.form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (shown.view.search) shown.view.onSearch(search.value);
  else go(search.value ? `/?q=${encodeURIComponent(search.value)}` : "/");
});
search.addEventListener("input", () => shown.view.onSearch?.(search.value));

// Keys: "/" searches, j and k or the arrows walk through a list, Escape leaves the search or goes up.
document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
  if (event.key === "Escape" && document.activeElement === search) search.blur();
  else if (isTyping) return;
  else if (event.key === "/") { event.preventDefault(); search.focus(); search.select(); }
  else if (event.key === "Escape" && shown.view.up) go(shown.view.up);
  else if (["j", "k", "ArrowDown", "ArrowUp"].includes(event.key)) walk(event);
});

function walk(event) {
  const rows = [...document.querySelectorAll("a.row")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  if (at < 0 && event.key.startsWith("Arrow")) return;
  const step = event.key === "j" || event.key === "ArrowDown" ? 1 : -1;
  event.preventDefault();
  rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + step))].focus();
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

show();
get("/api/overview").then((found) => {
  document.getElementById("root").textContent = printable(found.root);
  document.getElementById("version").textContent =
    `pravega_spark ${found.version} · ${found.allow_changes ? "changes allowed by REST" : "read-only"}`;
}).catch(() => {});
