// Decisions as they are made. One opened shows the terms of every candidate.

import { html, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { get } from "./api.js";
import { Live, number, Problem, seconds, useStream } from "./parts.js";

const KEPT = 500;
const SHOWN = 100;
const FILTERS = [
  ["model", (one) => one.model],
  ["route", (one) => one.route],
  ["policy", (one) => one.policy],
  ["worker", (one) => one.worker_name || one.worker],
  ["outcome", (one) => one.outcome],
];

class Decisions {
  constructor() {
    this.list = [];
  }

  heard(name, value) {
    if (name === "snapshot") this.list = value.decisions;
    else if (name === "added") this.list = [value, ...this.list].slice(0, KEPT);
    else if (name === "changed") this.list = this.list.map((one) => (one.cursor === value.cursor ? value : one));
  }
}

export function DecisionsPanel({ session }) {
  const store = useRef(null);
  if (!store.current) store.current = new Decisions();
  const state = useStream("/decisions?watch=true", (name, value) => store.current.heard(name, value), session);
  const [wanted, filter] = useState({});
  const [opened, open] = useState(null);
  const found = store.current.list.filter((one) =>
    FILTERS.every(([name, of]) => !wanted[name] || (of(one) || "").toLowerCase().includes(wanted[name].toLowerCase())),
  );
  const show = async (one) => {
    open({ decision: one, error: null });
    try {
      const all = await get(`/decisions?request_id=${encodeURIComponent(one.request_id)}&limit=10`);
      const decision = all.decisions.find((other) => other.cursor === one.cursor) || one;
      open({ decision, error: null });
    } catch (error) {
      open({ decision: one, error });
    }
  };
  return html`<section aria-labelledby="decisions">
    <div class="tools">
      <h2 id="decisions">Decisions</h2>
      <${Live} state=${state} />
      ${FILTERS.map(([name]) => html`<label>${name}<input type="search" size="12" value=${wanted[name] || ""} onInput=${(event) => filter({ ...wanted, [name]: event.target.value })} /></label>`)}
    </div>
    ${opened ? html`<${Opened} ...${opened} close=${() => open(null)} />` : null}
    <div class="scroll" tabindex="0" role="region" aria-label="Latest decisions">
      <table>
        <thead><tr>${["At", "Request", "Model", "Route", "Policy", "Worker", "Prompt", "Predicted cached", "Reported", "TTFT", "Outcome"].map((one) => html`<th scope="col">${one}</th>`)}</tr></thead>
        <tbody>
          ${found.slice(0, SHOWN).map((one) => html`<tr key=${one.cursor}>
            <td>${one.at.slice(11, 23)}</td>
            <td><button class="plain" onClick=${() => show(one)}>${one.request_id.slice(-12)}</button></td>
            <td>${one.model}</td><td>${one.route}</td><td>${one.policy}</td><td>${one.worker_name || one.worker}</td>
            <td class="number">${number(one.prompt_tokens)}</td>
            <td class="number">${number(one.predicted_cached_tokens)}</td>
            <td class="number">${number(one.reported_cached_tokens)}</td>
            <td class="number">${seconds(one.ttft_s)}</td>
            <td>${one.outcome}</td>
          </tr>`)}
        </tbody>
      </table>
    </div>
    ${found.length ? null : html`<p class="muted">No decision matches. Requests to the public port appear here.</p>`}
  </section>`;
}

function Opened({ decision, error, close }) {
  const chosen = decision.candidates.find((one) => one.worker === decision.worker);
  const names = [...new Set(decision.candidates.flatMap((one) => Object.keys(one.terms)))];
  const sums = decision.candidates.map((one) => Object.values(one.terms).reduce((sum, term) => sum + Math.abs(term), 0));
  const most = Math.max(...sums, 1e-12);
  return html`<article aria-label=${`Decision for ${decision.request_id}`}>
    <div class="tools"><h3>${decision.request_id}</h3><button onClick=${close}>Close</button></div>
    <${Problem} error=${error} />
    <p>${decision.reason}</p>
    <dl class="facts">
      <dt>Went to</dt><dd>${decision.worker_name || decision.worker}, attempt ${decision.attempt}, ${decision.outcome}</dd>
      <dt>Cached tokens</dt><dd>predicted ${number(decision.predicted_cached_tokens) || "nothing"}, reported ${number(decision.reported_cached_tokens) || "nothing"}${decision.difference ? ` (${decision.difference})` : ""}</dd>
      <dt>First token</dt><dd>predicted ${chosen ? seconds(chosen.first_token_s) : "nothing"}, came after ${seconds(decision.ttft_s) || "no time that was seen"}</dd>
      <dt>Waited in the gateway</dt><dd>${seconds(decision.waited_s)}</dd>
    </dl>
    ${names.length
      ? html`<ul class="legend">${names.map((name, place) => html`<li><i class=${`c${place % 8}`}></i>${name}</li>`)}</ul>`
      : html`<p class="muted">This policy names no terms of its cost.</p>`}
    <div class="bars">
      ${decision.candidates.map((one) => html`<div class=${`candidate ${one.worker === decision.worker ? "chosen" : ""}`}>
        <span>${one.name || one.worker}${one.worker === decision.worker ? " (chosen)" : ""}</span>
        <span class="stack" role="img" aria-label=${names.map((name) => `${name} ${(one.terms[name] ?? 0).toPrecision(3)}`).join(", ") || "no terms"}>
          ${names.map((name, place) => html`<i class=${`c${place % 8}`} title=${`${name}: ${one.terms[name] ?? 0}`} style=${{ width: `${(Math.abs(one.terms[name] ?? 0) / most) * 100}%` }}></i>`)}
        </span>
        <span>${one.cost === null ? "" : `${one.cost.toPrecision(4)} ${one.unit}`}</span>
      </div>`)}
    </div>
  </article>`;
}
