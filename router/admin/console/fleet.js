// The fleet: one row for each worker, drawn only where it is visible.

import { html, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { call } from "./api.js";
import { Confirm, Live, number, percent, seconds, useStream } from "./parts.js";

const ROW = 34;
const OVERSCAN = 6;
const KEPT = 60;

const COLUMNS = [
  ["worker", "Worker", (row) => row.name || row.id],
  ["state", "State", (row) => row.state],
  ["role", "Role", (row) => row.role],
  ["view", "View", (row) => row.residency],
  ["in_flight", "Requests", (row) => row.in_flight],
  ["queue", "Queued prefill", (row) => row.queue_wait_s ?? -1],
  ["kv", "KV in use, idle", (row) => row.kv_usage ?? -1],
  ["hits", "Cached", (row) => row.cached_share ?? -1],
  ["right", "Predicted right", (row) => row.predicted_share ?? -1],
  ["ttft", "TTFT", (row) => row.ttft_s ?? -1],
  ["gap", "Token gap", (row) => row.gap_s ?? -1],
  ["speed", "Prefill", (row) => row.prefill_tokens_per_s ?? -1],
];

class Fleet {
  constructor() {
    this.rows = new Map();
    this.past = new Map();
  }

  heard(name, value) {
    if (name === "snapshot") {
      this.rows.clear();
      for (const row of value.rows) this.put(row);
    } else if (name === "removed") {
      this.rows.delete(value.id);
      this.past.delete(value.id);
    } else if (name === "added" || name === "changed") {
      this.put(value);
    }
  }

  put(row) {
    this.rows.set(row.id, row);
    const past = this.past.get(row.id) || { ttft: [], gap: [] };
    if (row.ttft_s !== null) past.ttft = [...past.ttft, row.ttft_s].slice(-KEPT);
    if (row.gap_s !== null) past.gap = [...past.gap, row.gap_s].slice(-KEPT);
    this.past.set(row.id, past);
  }
}

export function FleetPanel({ session, may }) {
  const store = useRef(null);
  if (!store.current) store.current = new Fleet();
  const state = useStream("/fleet?watch=true", (name, value) => store.current.heard(name, value), session);
  const [sort, order] = useState(["worker", 1]);
  const [wanted, filter] = useState("");
  const [top, scroll] = useState(0);
  const [asked, ask] = useState(null);
  const all = [...store.current.rows.values()];
  const rows = sorted(all.filter((row) => matches(row, wanted.toLowerCase())), sort);
  const first = Math.max(0, Math.floor(top / ROW) - OVERSCAN);
  const shown = rows.slice(first, first + Math.ceil(640 / ROW) + 2 * OVERSCAN);
  const counts = Object.entries(Object.groupBy(all, (row) => row.state)).map(([name, some]) => `${some.length} ${name}`);
  const slow = new Set(all.flatMap((row) => row.prompts.split("; ")).filter((text) => /: (worker's|text only)/.test(text)));
  return html`<section aria-labelledby="fleet">
    <div class="tools">
      <h2 id="fleet">Fleet</h2>
      <span>${number(all.length)} workers: ${counts.join(", ") || "none"}</span>
      <${Live} state=${state} />
      <label>Filter by name, state, role or view<input type="search" value=${wanted} onInput=${(event) => filter(event.target.value)} /></label>
    </div>
    <div class="scroll fleet" tabindex="0" role="region" aria-label="Workers" onScroll=${(event) => scroll(event.target.scrollTop)}>
      <table aria-rowcount=${rows.length + 1}>
        <thead><tr>
          ${COLUMNS.map(([key, title]) => html`<th scope="col" aria-sort=${sort[0] === key ? (sort[1] > 0 ? "ascending" : "descending") : "none"}>
            <button onClick=${() => order([key, sort[0] === key ? -sort[1] : 1])}>${title}${sort[0] === key ? (sort[1] > 0 ? " ↑" : " ↓") : ""}</button>
          </th>`)}
          <th scope="col">Actions</th>
        </tr></thead>
        <tbody>
          ${first > 0 ? html`<tr class="spacer" aria-hidden="true"><td colspan="13" style=${{ height: `${first * ROW}px` }}></td></tr>` : null}
          ${shown.map((row, place) => html`<${Row} key=${row.id} row=${row} past=${store.current.past.get(row.id)} place=${first + place + 2} may=${may} ask=${ask} />`)}
          ${first + shown.length < rows.length
            ? html`<tr class="spacer" aria-hidden="true"><td colspan="13" style=${{ height: `${(rows.length - first - shown.length) * ROW}px` }}></td></tr>`
            : null}
        </tbody>
      </table>
    </div>
    ${[...slow].slice(0, 5).map((text) => html`<p class="muted">Prompts of ${text}. With the model's tokenizer files here a prompt of 8,000 tokens takes 8.6 ms instead of 47 (warmroute check).</p>`)}
    ${may.operate ? null : html`<p class="muted">This token may read only. Draining needs the role operate.</p>`}
    <${Confirm} asked=${asked} close=${() => ask(null)} />
  </section>`;
}

function Row({ row, past, place, may, ask }) {
  const name = row.name || row.id;
  return html`<tr aria-rowindex=${place}>
    <td title=${row.worker}>${name}</td>
    <td title=${row.reason}><span class=${`state ${row.state}`}>${row.state}${row.state === "draining" ? `, ${row.in_flight} left` : ""}</span></td>
    <td>${row.role}</td>
    <td title=${`${row.view_reason}. Prompts of ${row.prompts}`}>${row.residency}</td>
    <td class="number">${number(row.in_flight)}</td>
    <td class="number">${seconds(row.queue_wait_s)}</td>
    <td><${Kv} used=${row.kv_usage} idle=${row.idle_share} /></td>
    <td class="number"><${Reported} share=${row.cached_share} row=${row} /></td>
    <td class="number"><${Reported} share=${row.predicted_share} row=${row} /></td>
    <td><${Spark} values=${past.ttft} what="TTFT" /></td>
    <td><${Spark} values=${past.gap} what="token gap" /></td>
    <td class="number">${row.prefill_tokens_per_s ? `${number(row.prefill_tokens_per_s)} tok/s` : ""}</td>
    <td>${may.operate ? html`<${Actions} row=${row} name=${name} ask=${ask} />` : ""}</td>
  </tr>`;
}

function Actions({ row, name, ask }) {
  const path = `/workers/${encodeURIComponent(row.worker)}`;
  if (row.draining) {
    return html`<button
      onClick=${() => ask({ title: `Undrain ${name}?`, text: "It gets requests again, once it is ready. Its maintenance ends.", button: "Undrain", act: () => call("POST", `${path}/undrain`) })}
    >Undrain</button>`;
  }
  return html`<button
    onClick=${() => ask({ title: `Drain ${name}?`, text: `It goes into maintenance and gets no new requests. ${row.in_flight} requests that are there run to their end.`, button: "Drain", act: () => call("POST", `${path}/drain`) })}
  >Drain</button>`;
}

const UNREPORTED = "No response has reported its cached tokens in the last minutes. Start vLLM with --enable-prompt-tokens-details; observe_usage asks for it in streams.";

function Reported({ share, row }) {
  if (share !== null || row.ttft_s === null) return percent(share);
  return html`<span class="muted" title=${UNREPORTED}>not reported</span>`;
}

function Kv({ used, idle }) {
  if (used === null) return html`<span class="muted">not reported</span>`;
  return html`<span class="meter" aria-hidden="true">
      <i style=${{ width: `${used * 100}%` }}></i><i class="idle" style=${{ width: `${Math.min(1 - used, idle ?? 0) * 100}%` }}></i>
    </span>${percent(used)}${idle ? `, ${percent(idle)} idle` : ""}`;
}

function Spark({ values, what }) {
  if (!values.length) return "";
  const most = Math.max(...values) || 1;
  const points = values.map((value, place) => `${(place * 80) / Math.max(1, values.length - 1)},${19 - (value / most) * 17}`);
  return html`<svg class="spark" viewBox="0 0 80 20" role="img" aria-label=${`${what} over time, now ${seconds(values.at(-1))}`}>
      <polyline points=${points.join(" ")} />
    </svg>${seconds(values.at(-1))}`;
}

function matches(row, wanted) {
  return !wanted || [row.name, row.id, row.state, row.role, row.residency].some((text) => (text || "").toLowerCase().includes(wanted));
}

function sorted(rows, [key, way]) {
  const value = COLUMNS.find(([one]) => one === key)[2];
  const collate = new Intl.Collator("en", { numeric: true });
  return rows.sort((one, other) => {
    const [mine, theirs] = [value(one), value(other)];
    return way * (typeof mine === "number" ? mine - theirs : collate.compare(mine, theirs)) || collate.compare(one.id, other.id);
  });
}
