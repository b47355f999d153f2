// Requests to the server, with the token if it needs one, and the live updates.

let asking = null;

const token = () => sessionStorage.getItem("token");

function headers() {
  return token() ? { Authorization: `Bearer ${token()}` } : {};
}

function askToken() {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token-dialog");
    const input = document.getElementById("token");
    input.value = "";
    dialog.addEventListener("close", () => {
      sessionStorage.setItem("token", input.value);
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

async function request(path, options) {
  for (;;) {
    const response = await fetch(path, { ...options, headers: headers(), credentials: "omit" });
    if (response.status !== 401) return response;
    await askToken();
  }
}

/** Return the JSON of a path; throw an Error with the server's message. */
export async function get(path, query = {}) {
  const given = Object.entries(query).filter(([, v]) => v !== null && v !== undefined && v !== "");
  const text = new URLSearchParams(given).toString();
  const response = await request(text ? `${path}?${text}` : path, {});
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  const error = new Error(body?.error?.message || `The server answered ${response.status}.`);
  error.status = response.status;
  throw error;
}

/** Call back for each live event until the signal aborts; connects again after a pause. */
export async function live(stream, signal, onEvent, onState) {
  for (let pause = 1000; !signal.aborted; pause = Math.min(pause * 2, 15000)) {
    try {
      const query = stream ? `?stream=${encodeURIComponent(stream)}` : "";
      const response = await request(`/api/live${query}`, { signal });
      if (!response.ok) throw new Error(String(response.status));
      onState("on");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        pause = 1000;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) dispatch(part, onEvent);
      }
    } catch (error) {
      if (signal.aborted) return;
    }
    onState("trouble");
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
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
