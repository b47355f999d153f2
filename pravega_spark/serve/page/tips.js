// The small box beside what a pointer or the focus is on. It lives in its owner and goes with it.

import { h } from "./dom.js";

/** Return {show(title, rows, x, y), hide()}; x and y are in the window, rows are [name, value]. */
export function tipAt(owner) {
  let tip = null;
  const hide = () => { tip?.remove(); tip = null; };
  return {
    hide,
    show(title, rows, x, y) {
      hide();
      tip = h("div", { class: "tip", "aria-hidden": "true" }, h("b", {}, title),
        h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
      owner.append(tip);
      const size = tip.getBoundingClientRect();
      const left = x + 14 + size.width + 8 > innerWidth ? x - 14 - size.width : x + 14;
      tip.style.left = `${Math.max(8, left)}px`;
      tip.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - size.height - 8))}px`;
    },
  };
}
