// Numbers, sizes, times and given texts for people.

const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// Control characters, marks that turn a text's direction, separators of lines, lone
// surrogates, characters without any width.
const MOVING = /[\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u2069\ud800-\udfff\ufeff]/gu;
const SHORT_ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

function escaped(character) {
  const code = character.charCodeAt(0).toString(16);
  return SHORT_ESCAPES[character] || (code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`);
}

/** A text that others gave, on one line: what would turn or break it stands as its escape. */
export const printable = (text) => String(text).replace(MOVING, escaped);
/** The same for a text whose line breaks and tabs are shown, such as a payload; a return, which shows as nothing, is none. */
export const printableLines = (text) =>
  String(text).replace(MOVING, (character) => (/[\n\t]/.test(character) ? character : escaped(character)));

export const count = (number) => (number === null ? "–" : COUNT.format(number));
export const short = (number) => (number === null ? "–" : SHORT.format(number));

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  if (perSecond === 0) return "0";
  if (perSecond < 0.01) return "<0.01";
  return perSecond < 10 ? perSecond.toFixed(perSecond < 1 ? 2 : 1) : short(perSecond);
}

export function bytes(size) {
  if (size === null || size === undefined) return "–";
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < -5) return `${span(-seconds)} in the future`;
  if (seconds < 1) return "under 1 s";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(seconds < 36000 ? 1 : 0)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export function ago(ms, now = Date.now()) {
  if (!ms) return "never";
  const seconds = (now - ms) / 1000;
  if (seconds < -5) return `${span(-seconds)} in the future`;
  return seconds < 2 ? "just now" : `${span(seconds)} ago`;
}

export const when = (ms) => (ms ? new Date(ms).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" }) : "–");
export const clock = (ms) =>
  new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
export const exactClock = (ms) =>
  new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const clockSeconds = (ms) => new Date(ms).toLocaleTimeString([], { hourCycle: "h23" });
export const dayAndClock = (ms) =>
  new Date(ms).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
export const link = (kind, scope, name) =>
  `/${kind}/${encodeURIComponent(scope)}/${encodeURIComponent(name)}`;
