// Elements without HTML texts: every text becomes a text node, so data can never become markup,
// and every text that is read is printable, so data can never turn or break a line.

import { ago as agoText, printable, printableLines } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

const READ = new Set(["title", "aria-label", "placeholder"]);

function fill(element, attributes, children) {
  const text = element.tagName === "PRE" ? printableLines : printable;
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : READ.has(name) ? printable(value) : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(text(child)));
  }
  return element;
}

export const h = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

/** How long ago a time is. What shows it goes on to be true: see `tickAges`. */
export const ago = (ms) => (ms ? h("time", { "data-ms": ms }, agoText(ms)) : agoText(ms));

/** Let all ages be those of now. */
export function tickAges() {
  for (const one of document.querySelectorAll("time[data-ms]")) {
    const text = agoText(Number(one.dataset.ms));
    if (one.textContent !== text) one.textContent = printable(text);
  }
}

/** Set a width in percent; the style attribute itself is forbidden by the page's policy. */
export function wide(element, part) {
  element.style.width = `${Math.max(0, Math.min(100, part * 100))}%`;
  return element;
}

/** A cell of a table that makes its own rows; on a card a long text has the whole width. */
export function cell([name, kind], shown) {
  const made = h("td", { class: kind, "data-label": name }, shown);
  if (/\S{13}|.{27}/s.test(made.textContent)) made.classList.add("long");
  return made;
}

/**
 * A table; a heading is a text, or a text and a kind: "num", "part" (its text is read, not seen).
 * On a narrow screen one of more than three values a row shows each row as a card.
 */
export function table(headings, rows, options = {}) {
  const named = headings.map((heading) => (Array.isArray(heading) ? heading : [heading, null]));
  const head = named.map(([text, kind]) =>
    h("th", { class: kind, scope: "col" }, kind === "part" ? h("span", { class: "unseen" }, text) : text));
  const body = rows.map((cells) => h("tr", {}, cells.map((shown, at) => cell(named[at], shown))));
  const kinds = [options.class, named.filter(([, kind]) => kind !== "part").length > 3 && "cards"].filter(Boolean).join(" ");
  return h("div", { class: "scroll" },
    h("table", { class: kinds || null }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

/** Return a switch between [text, value] choices; `onChange` gets the value. */
export function choice(label, choices, chosen, onChange) {
  const buttons = choices.map(([text, value]) => h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: (event) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
    onChange(value);
  } }, text));
  return h("span", { class: "switch", role: "group", "aria-label": label }, buttons);
}

/** Replace what an element shows; the link that has the focus keeps it. */
export function renew(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  if (focused) element.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

export const column = (width, ...cards) => h("div", { class: `column ${width}` }, cards);

export function card(title, text, body, more) {
  return h("section", { class: "card", "aria-label": title },
    h("header", {}, h("h2", {}, title), text && h("p", {}, text), more && h("span", { class: "more" }, more)), body);
}
