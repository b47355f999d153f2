// Small charts: a line of the last hour, with its area.

import { svg } from "./dom.js";
import * as format from "./format.js";

/** Return the paths of a series; points without a value are gaps. */
function paths(series, width, height, top) {
  const most = Math.max(...series.map((value) => value ?? 0), 1e-9);
  const x = (index) => (index / Math.max(1, series.length - 1)) * width;
  const y = (value) => height - (value / most) * (height - top);
  const runs = [];
  series.forEach((value, index) => {
    if (value === null) return;
    if (index === 0 || series[index - 1] === null) runs.push([]);
    runs[runs.length - 1].push(`${x(index).toFixed(1)},${y(value).toFixed(1)}`);
    runs[runs.length - 1].last = x(index);
    runs[runs.length - 1].first ??= x(index);
  });
  return {
    most,
    line: runs.map((run) => `M${run.join("L")}`).join(""),
    area: runs.map((run) => `M${run.first},${height}L${run.join("L")}L${run.last},${height}Z`).join(""),
  };
}

export function spark(series, name) {
  const found = paths(series, 150, 29, 3);
  return svg("svg", { class: "spark", viewBox: "0 0 150 30", preserveAspectRatio: "none", role: "img",
    "aria-label": `${name}: up to ${format.rate(found.most)} events a second in the last hour` },
    svg("path", { class: "fill", d: found.area }), svg("path", { d: found.line }));
}

export function area(series, now, width) {
  const [height, left, bottom] = [230, 46, 22];
  const found = paths(series, width - left, height - bottom, 14);
  const ticks = [60, 45, 30, 15, 0].map((minutes) => {
    const x = left + (width - left) * (1 - minutes / 60);
    const anchor = minutes === 60 ? "start" : minutes === 0 ? "end" : "middle";
    return svg("text", { x, y: height - 4, "text-anchor": anchor },
      minutes === 0 ? "now" : format.clock(now - minutes * 60000));
  });
  return svg("svg", { class: "area", viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": `Events a second in the last hour, up to ${format.rate(found.most)}` },
    svg("line", { x1: left, x2: width, y1: 14, y2: 14 }),
    svg("line", { x1: left, x2: width, y1: (height - bottom + 14) / 2, y2: (height - bottom + 14) / 2 }),
    svg("line", { x1: left, x2: width, y1: height - bottom, y2: height - bottom }),
    svg("text", { x: left - 8, y: 18, "text-anchor": "end" }, format.rate(found.most)),
    svg("text", { x: left - 8, y: (height - bottom + 14) / 2 + 4, "text-anchor": "end" }, format.rate(found.most / 2)),
    svg("text", { x: left - 8, y: height - bottom + 4, "text-anchor": "end" }, "0"),
    svg("g", { transform: `translate(${left} 0)` },
      svg("path", { class: "fill", d: found.area }), svg("path", { d: found.line })),
    ticks);
}
