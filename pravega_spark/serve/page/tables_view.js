// Key-value tables: what each holds, and what is not folded yet.

import { ago, h, table } from "./dom.js";
import { get } from "./server.js";
import { repeat } from "./groups_view.js";
import * as format from "./format.js";

export function tablesView() {
  const query = new URLSearchParams(location.search);
  const list = h("div", { class: "loading" }, "…");
  const wanted = { search: query.get("q") || "", after: query.get("after") };

  async function load() {
    try {
      const page = await get("/api/tables", wanted);
      list.className = "";
      list.replaceChildren(page.tables.length ? table(
        ["Table", "Keys", "Expires", ["Partitions", "num"], ["Folded entries", "num"], ["Changes since", "num"], ["Size", "num"], ["Last fold", "num"]],
        page.tables.map((row) => [
          [h("span", { class: "muted" }, `${row.scope}/`), h("a", { class: "row", href: format.link("tables", row.scope, row.table), "data-link": true }, row.table), " ",
            row.state === "ACTIVE" ? "" : h("span", { class: "chip warn" }, row.state.toLowerCase()), row.tags.map((tag) => h("span", { class: "chip", title: tag }, tag))],
          row.key_type, row.ttl || "never", format.count(row.partitions), format.count(row.folded_entries),
          format.count(row.unfolded_changes), format.bytes(row.folded_bytes + row.unfolded_bytes), ago(row.folded_ms)]), { class: "rows" })
        : h("p", { class: "empty" }, wanted.search ? "No table has that name." : "This root has no key-value tables."),
      page.next ? h("p", { class: "pager" }, h("a", { href: `/tables?after=${encodeURIComponent(page.next)}`, "data-link": true }, "Next page")) : "");
    } catch (error) {
      list.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  return {
    title: "Key-value tables",
    search: "Search tables",
    element: h("div", {}, h("div", { class: "head" }, h("h1", {}, "Key-value tables")), h("section", { class: "card", "aria-label": "Key-value tables" }, list)),
    begin: (signal) => repeat(load, signal),
    onSearch(text) { wanted.search = text; wanted.after = null; return load(); },
  };
}
