// Requests to the server, with the token if it needs one, and the live updates.
// A server that does not answer is waited for, and so is one whose storage does not: no request
// fails for it, so a view keeps what it shows, and gets its answer once the server can give it.

import { h } from "./dom.js";
import { bytes } from "./format.js";

const PROBE_MS = 5000;
const SILENCE_MS = 10000; // the server sends a heartbeat each 3 s
const PING_MS = 3000; // of the silence, so long it is asked whether it is there
const ANSWER_MS = 30000; // a connection that died without a word answers never
const asked = new Set(); // how to end what waits for the server now
const listeners = new Set();
const held = new Map(); // what waits for the server, by address: each is asked once
let asking = null;
let away = null;
let stored = null; // the wait for the server's storage
const hurries = new Set();
let heardMs = Date.now();
let seenMs = heardMs; // since when the page is seen
let pinging = false;

const token = () => sessionStorage.getItem("token");

/**
 * Call back with "away" and {sinceMs}, and "back"; with "unstored" and {sinceMs, message} of a
 * server that does not reach its storage, and "stored".
 */
export const onServer = (listener) => listeners.add(listener);

/** Ask what is away without a pause. */
export const tryNow = () => { for (const hurry of hurries) hurry(); };

function tell(kind, data) {
  for (const listener of listeners) listener(kind, data);
}

/** Wait, or until somebody cannot. */
async function rest(pause) {
  let hurry = null;
  await new Promise((resolve) => { hurry = resolve; hurries.add(hurry); setTimeout(resolve, pause); });
  hurries.delete(hurry);
}

function untilBack() {
  away ??= probe().finally(() => { away = null; tell("back"); });
  return away;
}

const isThere = async (within) => Boolean((await fetch("/ping",
  { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(within) }).catch(() => null))?.ok);

/** Notice that the server is silent, though something waits for it; a page that is not seen listens to nothing. */
async function listen() {
  if (document.hidden || away || pinging || !asked.size) return;
  if (Date.now() - Math.max(heardMs, seenMs) < SILENCE_MS - PING_MS) return;
  pinging = true;
  const is = await isThere(PING_MS);
  pinging = false;
  if (is) heardMs = Date.now();
  else if (!document.hidden) {
    untilBack();
    for (const end of [...asked]) end();
  }
}
setInterval(listen, 1000);
document.addEventListener("visibilitychange", () => { seenMs = Date.now(); });

async function probe() {
  tell("away", { sinceMs: heardMs });
  for (let pause = 1000; ; pause = Math.min(pause * 2, PROBE_MS)) {
    await rest(pause);
    if (await isThere(PROBE_MS)) return;
  }
}

/** Ask for the token; the one that was refused is said to be wrong. */
function askToken(refused) {
  asking ??= new Promise((resolve) => {
    const input = h("input", { id: "token", type: "password", autocomplete: "off", "aria-label": "Token", required: true, maxlength: 1000 });
    const dialog = h("dialog", { id: "token-dialog", "aria-labelledby": "token-title" },
      h("form", { method: "dialog" }, h("h2", { id: "token-title" }, "This server needs its token"),
        refused && h("p", { class: "problem", role: "alert" }, "The server refused this token. Look at its token file, and try again."),
        h("p", {}, "It is kept for this tab only, and sent with each request."), input, h("button", { value: "ok" }, "Open")));
    dialog.addEventListener("close", () => {
      sessionStorage.setItem("token", input.value.trim());
      dialog.remove();
      asking = null;
      resolve();
    }, { once: true });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

// A header has no other characters than these: fetch would fail as if the server were away.
const isHeader = (text) => /^[\x21-\x7e]*$/.test(text);

// A proxy answers so for a server that does not.
const isProxys = (response) => [502, 503, 504].includes(response.status)
  && !response.headers.get("content-type")?.startsWith("application/json");

/** Return the answer of a path, and what `read` makes of it; both in a bounded time. */
async function request(path, signal = null, read = null) {
  for (;;) {
    if (away) await away;
    const sent = token() || "";
    const ending = new AbortController();
    const end = () => ending.abort();
    const timer = setTimeout(end, ANSWER_MS);
    let response = null;
    let body = null;
    asked.add(end);
    try {
      const headers = sent && isHeader(sent) ? { Authorization: `Bearer ${sent}` } : {};
      response = await fetch(path, { headers, credentials: "omit", signal: signal ? AbortSignal.any([signal, ending.signal]) : ending.signal });
      if (read && !isProxys(response)) body = await read(response);
    } catch (error) {
      if (signal?.aborted) throw error;
      response = null;
    } finally {
      clearTimeout(timer);
      asked.delete(end);
    }
    if (!response || isProxys(response)) await untilBack();
    else if (response.status === 401) { if (sent === (token() || "")) await askToken(sent); }
    else {
      heardMs = Date.now();
      return { response, body };
    }
  }
}

/** Return the JSON of an answer, null if it is none; an answer that breaks off is asked for again. */
async function json(response) {
  const text = await response.text();
  try { return JSON.parse(text); } catch { return null; }
}

async function ask(address) {
  for (;;) {
    const { response, body } = await request(address, null, json);
    if (response.ok) return body;
    if (response.status !== 503 || !await untilStored()) throw refusal(response, body);
  }
}

/** Wait until the server reaches its storage; false if it does, so that something else is wrong. */
async function untilStored() {
  if (!stored) {
    const problem = await storageProblem();
    if (!problem) return false;
    unstored(problem);
  }
  return stored.then(() => true);
}

/** Say that the server does not reach its storage, and ask until it does. */
export function unstored(problem) {
  tell("unstored", problem);
  stored ??= probeStorage().finally(() => { stored = null; tell("stored"); });
}

async function probeStorage() {
  for (let pause = 1000; ; pause = Math.min(pause * 2, PROBE_MS)) {
    await rest(pause);
    const problem = await storageProblem();
    if (!problem) return;
    tell("unstored", problem);
  }
}

async function storageProblem() {
  const { response, body: found } = await request("/v1/health/storage", null, json);
  if (!response.ok || !found || found.readiness) return null;
  return { message: found.details.error, sinceMs: Date.parse(found.details.since.replace(" UTC", "Z").replace(" ", "T")) };
}

function refusal(response, body) {
  const error = new Error(body?.error?.message || `The server answered ${response.status}.`);
  error.status = response.status;
  error.type = body?.error?.type;
  return error;
}

function addressOf(path, query) {
  const given = Object.entries(query).filter(([, v]) => v !== null && v !== undefined && v !== "");
  const text = new URLSearchParams(given).toString();
  return text ? `${path}?${text}` : path;
}

/**
 * Return the bytes of a path, asked for with the token in a header: it is in no address. Throw an
 * Error if they do not begin, or do not go on, for a while: they may never.
 */
export async function getBlob(path, query = {}) {
  if (away) await away;
  const ending = new AbortController();
  let timer = setTimeout(() => ending.abort(), ANSWER_MS);
  const parts = [];
  let got = 0;
  try {
    const { response } = await request(addressOf(path, query), ending.signal);
    if (!response.ok) throw refusal(response, await response.json().catch(() => null));
    for (const reader = response.body.getReader(); ;) {
      clearTimeout(timer);
      timer = setTimeout(() => ending.abort(), SILENCE_MS);
      const { value, done } = await reader.read();
      if (done) return new Blob(parts);
      parts.push(value);
      got += value.length;
    }
  } catch (error) {
    if (error.status) throw error;
    throw new Error(`The download broke off after ${bytes(got)}. Try again.`);
  } finally {
    clearTimeout(timer);
  }
}

/** Return the JSON of a path; throw an Error with the server's message. */
export function get(path, query = {}) {
  const address = addressOf(path, query);
  if (!away) return ask(address);
  if (!held.has(address)) held.set(address, ask(address).finally(() => held.delete(address)));
  return held.get(address);
}

/** Call back for each live event until the signal aborts; connects again after a pause. `opened` is {stream?, group?}. */
export async function live(opened, signal, onEvent, onState) {
  for (let pause = 1000; !signal.aborted; pause = Math.min(pause * 2, 15000)) {
    let said = null;
    try {
      const query = new URLSearchParams(Object.entries(opened).filter(([, name]) => name)).toString();
      const { response } = await request(query ? `/api/live?${query}` : "/api/live", signal);
      if (!response.ok) {
        said = (await response.json().catch(() => null))?.error?.message || `The server answered ${response.status}.`;
        throw new Error(said);
      }
      onState("on");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await readSoon(reader);
        if (done) break;
        heardMs = Date.now();
        pause = 1000;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) dispatch(part, onEvent);
      }
    } catch {
      if (signal.aborted) return;
    }
    onState("trouble", said);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

// A connection that died without a word is silent for ever.
async function readSoon(reader) {
  let timer = null;
  let end = null;
  const silence = new Promise((resolve) => { end = () => resolve({ done: true }); timer = setTimeout(end, SILENCE_MS); });
  asked.add(end);
  const found = await Promise.race([reader.read(), silence]).finally(() => { clearTimeout(timer); asked.delete(end); });
  if (found.done) reader.cancel().catch(() => {});
  return found;
}

function dispatch(part, onEvent) {
  let kind = "message";
  let data = null;
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) data = JSON.parse(line.slice(6));
  }
  if (data !== null) onEvent(kind, data);
}
