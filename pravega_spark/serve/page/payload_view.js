// The payload of an event or the value of a key: folded JSON, text or bytes; copied and saved.

import { choice, h } from "./dom.js";
import { jsonTree } from "./json_view.js";
import { getBlob } from "./server.js";
import * as format from "./format.js";

/** Copy a text as it is; the button says so. Pages by plain HTTP have no other way than the old one. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { "aria-label": "Copy", class: "unseen" });
    area.value = text;
    (button.closest("dialog") || document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const said = button.textContent;
  button.textContent = "copied";
  setTimeout(() => { button.textContent = format.printable(said); }, 1500);
}

export const copyButton = (name, text) =>
  h("button", { type: "button", class: "small", onclick: (event) => copy(text, event.currentTarget) }, name);

/** Save a blob as a file. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

/** A button that asks for a path with the token in its header, and saves the answer. */
export function downloadButton(name, path, query, file) {
  const problem = h("span", { class: "problem", role: "alert" });
  return [h("button", { type: "button", class: "small", onclick: async () => {
    problem.replaceChildren();
    try {
      save(await getBlob(path, query), file);
    } catch (error) {
      problem.textContent = format.printable(error.message);
    }
  } }, name), " ", problem];
}

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits} ${part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  return lines.join("\n");
}

const bytesOf = (row) => (row.base64 === null ? new TextEncoder().encode(row.text)
  : Uint8Array.from(atob(row.base64), (character) => character.charCodeAt(0)));

/** One line of a payload, for a list. */
export function beginning(row) {
  if (row.unread) return h("span", { class: "muted" }, row.unread);
  if (row.text === null) return h("code", {}, hex(bytesOf(row).slice(0, 16)).slice(8, 56).trim(), bytesOf(row).length > 16 || row.is_cut ? " …" : "");
  return h("code", {}, row.text.slice(0, 200), row.text.length > 200 || row.is_cut ? " …" : "");
}

/** The whole of what the server sent of a payload; `extra` are more buttons. */
export function payload(row, extra = []) {
  if (row.unread) return h("p", { class: "muted" }, row.unread);
  const json = row.text !== null && !row.is_cut ? jsonTree(row.text) : null;
  const views = [];
  if (json?.tree) views.push(["JSON", () => json.tree]);
  if (row.text !== null) views.push(["text", () => h("pre", { class: "payload", tabindex: "0", "aria-label": "Payload" }, row.text)]);
  views.push(["bytes", () => h("pre", { class: "payload", tabindex: "0", "aria-label": "Payload in bytes" }, hex(bytesOf(row)))]);
  const shown = h("div", {}, views[0][1]());
  return h("div", {},
    h("p", { class: "buttons" },
      choice("Payload as", views.map(([name]) => [name, name]), views[0][0], (name) => shown.replaceChildren(views.find(([each]) => each === name)[1]())),
      row.text !== null && copyButton(row.is_cut ? `Copy the first ${format.bytes(bytesOf(row).length)}` : "Copy", row.text), extra,
      json?.problem && h("span", { class: "muted small" }, json.problem),
      row.is_cut && h("span", { class: "muted small" }, `the first ${format.bytes(bytesOf(row).length)} of ${format.bytes(row.size_bytes)}`)),
    shown);
}
