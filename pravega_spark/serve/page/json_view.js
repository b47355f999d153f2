// JSON as a tree that folds. It is drawn from the text itself: numbers keep all their digits,
// strings their escapes, and names that stand twice are shown twice.

import { h } from "./dom.js";

const DEEPEST = 60;
const SHOWN_ITEMS = 200;
const SPACE = /[ \t\n\r]*/y;
const STRING = /"(?:[^"\\]|\\.)*"/y;
const WORD = /[^\s,\]}]+/y;

/** Return {tree} of a JSON object or array, {problem} of one that is too deep; null for any other text. */
export function jsonTree(text) {
  if (!/^\s*[{[]/.test(text)) return null;
  try {
    JSON.parse(text);
    return { tree: new Reader(text).value(0, true) };
  } catch (error) {
    return error instanceof RangeError ? { problem: `JSON of more than ${DEEPEST} levels is shown as text.` } : null;
  }
}

class Reader {
  constructor(text) { this.text = text; this.at = 0; }

  take(pattern) {
    pattern.lastIndex = this.at;
    const [found] = pattern.exec(this.text) || [""];
    this.at += found.length;
    return found;
  }

  value(depth, isOpen) {
    if (depth > DEEPEST) throw new RangeError("too deep");
    this.take(SPACE);
    const sign = this.text[this.at];
    if (sign === '"') return h("span", { class: "json-text" }, this.take(STRING));
    if (sign !== "{" && sign !== "[") return h("span", { class: "json-word" }, this.take(WORD));
    return this.group(sign, depth, isOpen);
  }

  group(sign, depth, isOpen) {
    const end = sign === "{" ? "}" : "]";
    const items = [];
    let count = 0;
    this.at += 1;
    for (this.take(SPACE); this.text[this.at] !== end; this.take(SPACE)) {
      const name = sign === "{" ? this.take(STRING) : null;
      if (name !== null) { this.take(SPACE); this.at += 1; }
      const shown = this.value(depth + 1, false);
      this.take(SPACE);
      if (this.text[this.at] === ",") this.at += 1;
      count += 1;
      if (count <= SHOWN_ITEMS) items.push(h("li", {}, name !== null && [h("span", { class: "json-name" }, name), ": "], shown));
    }
    this.at += 1;
    if (!count) return h("span", { class: "json-word" }, sign + end);
    if (count > SHOWN_ITEMS) items.push(h("li", { class: "muted" }, `… ${count - SHOWN_ITEMS} more in the text`));
    return h("details", { class: "json", open: isOpen }, h("summary", {}, `${sign} ${count} ${end}`), h("ul", {}, items));
  }
}
