// The page of a stream, group or table that is not there: one message, and no controls of it. What
// was deleted while its page was open goes on to be shown, with its age.

import { h } from "./dom.js";
import * as format from "./format.js";

const KINDS = { NoSuchStream: "stream", NoSuchReaderGroup: "reader group", NoSuchTable: "table" };
const EVERY = 5000;

export const deletedChip = () => h("span", { class: "chip warn" }, "deleted");

/** Return the element of a view that has `body`, or, while the object is not there, a message and a link instead. */
export function unlessAbsent(body, href, text) {
  const said = h("div", { class: "missing", role: "status" });
  const gone = h("div", { role: "status" });
  const element = h("div", {}, said, gone, body);
  const link = () => h("a", { href, "data-link": true }, text);
  let shownMs = null; // when what is shown was so
  said.hidden = true;
  gone.hidden = true;
  return {
    element,
    /** Show the message if the error says so; return whether it does. */
    isAbsent(error) {
      const kind = KINDS[error.type];
      if (!kind) return false;
      if (shownMs === null) {
        said.replaceChildren(h("p", { class: "problem" }, error.message), h("p", {}, link()));
        [said.hidden, body.hidden] = [false, true];
      } else {
        gone.replaceChildren(h("p", { class: "problem card" }, `This ${kind} was deleted. What is shown is of ${format.exactClock(shownMs)}, ${format.ago(shownMs)}. `, link()));
        [gone.hidden, element.dataset.gone] = [false, "true"];
      }
      return true;
    },
    isThere() {
      shownMs = Date.now();
      [said.hidden, gone.hidden, body.hidden] = [true, true, false];
      delete element.dataset.gone;
    },
    get isShown() { return said.hidden; },
    get isGone() { return !gone.hidden; },
    /** Call again and again, while the message is seen. */
    repeat(load, signal) {
      const timer = setInterval(() => { if (!(said.hidden && gone.hidden) && !document.hidden) load(); }, EVERY);
      signal.addEventListener("abort", () => clearInterval(timer));
    },
  };
}
