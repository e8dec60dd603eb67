// The admin API: calls and event streams. The token stays in this module's memory.

let token = null;
const waiting = new Set();

export function setToken(value) {
  token = value;
  for (const resume of [...waiting]) resume();
  waiting.clear();
}

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.code = problem.code;
  }
}

function headers(more = {}) {
  return token ? { authorization: `Bearer ${token}`, ...more } : more;
}

async function refusal(response) {
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    problem = { detail: `the gateway answered ${response.status}` };
  }
  return new Refused(response.status, problem);
}

export async function call(method, path, body, more = {}) {
  const json = body === undefined ? {} : { "content-type": "application/json" };
  const response = await fetch(`/admin/v1${path}`, {
    method,
    headers: headers({ ...json, ...more }),
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
  });
  if (!response.ok) throw await refusal(response);
  const text = await response.text();
  return { document: text ? JSON.parse(text) : null, tag: response.headers.get("etag") };
}

export const get = async (path) => (await call("GET", path)).document;

// Follow a stream of server-sent events until `signal` is aborted. `heard(name, value)` gets each event,
// `state(text)` the state of the connection. EventSource cannot send a header, so this reads the body of a fetch.
export async function watch(path, heard, state, signal) {
  let pause = 500;
  while (!signal.aborted) {
    try {
      const response = await fetch(`/admin/v1${path}`, { headers: headers(), signal, cache: "no-store" });
      if (!response.ok) throw await refusal(response);
      state("live");
      pause = 500;
      await events(response.body, heard);
      state("the stream has ended");
    } catch (error) {
      if (signal.aborted) return;
      state(error.message);
      if (error.status === 401 || error.status === 403) await new Promise((resolve) => waiting.add(resolve));
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 8000);
  }
}

async function events(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = /^event: (.*)\ndata: (.*)$/s.exec(part);
      if (event) heard(event[1], JSON.parse(event[2]));
    }
  }
}
