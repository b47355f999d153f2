// The page of a stream, group or table that is not there: one message, and no controls of it.

import { h } from "./dom.js";

const KINDS = new Set(["NoSuchStream", "NoSuchReaderGroup", "NoSuchTable"]);
const EVERY = 5000;

/** Return the element of a view that has `body`, or, while the object is not there, a message and a link instead. */
export function unlessAbsent(body, href, text) {
  const said = h("div", { class: "missing", role: "status" });
  const element = h("div", {}, said, body);
  said.hidden = true;
  return {
    element,
    /** Show the message if the error says so; return whether it does. */
    isAbsent(error) {
      if (!KINDS.has(error.type)) return false;
      said.replaceChildren(h("p", { class: "problem" }, error.message), h("p", {}, h("a", { href, "data-link": true }, text)));
      [said.hidden, body.hidden] = [false, true];
      return true;
    },
    isThere() { [said.hidden, body.hidden] = [true, false]; },
    get isShown() { return said.hidden; },
    /** Call again and again, while the message is seen. */
    repeat(load, signal) {
      const timer = setInterval(() => { if (!said.hidden && !document.hidden) load(); }, EVERY);
      signal.addEventListener("abort", () => clearInterval(timer));
    },
  };
}
