// Decisions as they are made. One opened shows the terms of every candidate.

import { html, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { get } from "./api.js";
import { Choice, Live, number, Problem, seconds, useDocument, useStream } from "./parts.js";

const PAGE = 100;
const MOST = 1000;
const READ_MS = 2000;
const TEXTS = ["model", "route", "policy", "worker", "request_id"];
const OUTCOMES = ["any outcome", "running", "finished", "cancelled", "failed"];

// The newest decisions that match, as the stream tells them, and older pages below them.
class Decisions {
  constructor() {
    this.list = [];
    this.more = false;
  }

  heard(name, value) {
    if (name === "snapshot") this.newest(value);
    else if (name === "added") this.keep([value, ...this.list]);
    else if (name === "changed") this.list = this.list.map((one) => (one.cursor === value.cursor ? value : one));
  }

  // Older pages stay below the newest one, if it reaches down to them.
  newest(page) {
    const last = page.decisions.at(-1)?.cursor;
    const place = this.list.findIndex((one) => one.cursor === last);
    const below = place < 0 ? [] : this.list.slice(place + 1);
    if (!below.length) this.more = page.next !== null;
    this.list = [...page.decisions, ...below];
  }

  older(page) {
    const known = new Set(this.list.map((one) => one.cursor));
    this.more = page.next !== null;
    this.keep([...this.list, ...page.decisions.filter((one) => !known.has(one.cursor))]);
  }

  keep(list) {
    this.more = this.more || list.length > MOST;
    this.list = list.slice(0, MOST);
  }
}

function asQuery(wanted) {
  return Object.entries(wanted).filter(([, value]) => value).map(([name, value]) => `&${name}=${encodeURIComponent(value)}`).join("");
}

export function DecisionsPanel({ session }) {
  const [wanted, filter] = useState({});
  const change = (name) => (value) => filter({ ...wanted, [name]: value });
  return html`<section aria-labelledby="decisions">
    <form class="tools" onSubmit=${(event) => event.preventDefault()}>
      <h2 id="decisions">Decisions</h2>
      ${TEXTS.map((name) => html`<label>${name.replace("_", " ")}<input type="search" size="12" value=${wanted[name] || ""} onChange=${(event) => change(name)(event.target.value.trim())} /></label>`)}
      <${Choice} label="outcome" options=${OUTCOMES} chosen=${wanted.outcome || OUTCOMES[0]} choose=${(one) => change("outcome")(one === OUTCOMES[0] ? "" : one)} />
    </form>
    <${Matching} key=${asQuery(wanted)} query=${asQuery(wanted)} session=${session} />
  </section>`;
}

// The gateway filters all decisions that it keeps, and not only those that the page has.
function Matching({ query, session }) {
  const store = useRef(null);
  if (!store.current) store.current = new Decisions();
  // A decision gets its outcome later. A stream would not say that it no longer matches, so the list is read again.
  const again = query.includes("&outcome=");
  const live = useStream(again ? null : `/decisions?watch=true&limit=${PAGE}${query}`, (name, value) => store.current.heard(name, value), session);
  const read = useDocument(again ? `/decisions?limit=${PAGE}&candidates=chosen${query}` : null, READ_MS, session);
  if (read.document && store.current.read !== read.document) {
    store.current.read = read.document;
    store.current.newest(read.document);
  }
  const state = again ? (read.error ? read.error.message : "live") : live;
  const [opened, open] = useState(null);
  const [error, fail] = useState(null);
  const [, draw] = useState(0);
  const { list, more } = store.current;
  const older = async () => {
    fail(null);
    try {
      store.current.older(await get(`/decisions?limit=${PAGE}&candidates=chosen&cursor=${encodeURIComponent(list.at(-1).cursor)}${query}`));
      draw((count) => count + 1);
    } catch (problem) {
      fail(problem);
    }
  };
  const show = async (one) => {
    open({ decision: one, error: null });
    try {
      const all = await get(`/decisions?request_id=${encodeURIComponent(one.request_id)}&limit=10`);
      const decision = all.decisions.find((other) => other.cursor === one.cursor) || one;
      open({ decision, error: null });
    } catch (problem) {
      open({ decision: one, error: problem });
    }
  };
  return html`<div class="tools"><${Live} state=${state} /><span>${number(list.length)} decisions, newest first</span></div>
    ${opened ? html`<${Opened} ...${opened} close=${() => open(null)} />` : null}
    <div class="scroll" tabindex="0" role="region" aria-label="Latest decisions">
      <table>
        <thead><tr>${["At", "Request", "Model", "Route", "Policy", "Worker", "Prompt", "Predicted cached", "Reported", "TTFT", "Outcome"].map((one) => html`<th scope="col">${one}</th>`)}</tr></thead>
        <tbody>
          ${list.map((one) => html`<tr key=${one.cursor}>
            <td>${one.at.slice(11, 23)}</td>
            <td><button class="plain" onClick=${() => show(one)}>${one.request_id.slice(-12)}</button></td>
            <td>${one.model}</td><td>${one.route}</td><td>${one.policy}</td><td title=${one.worker}>${one.worker_name || one.worker}</td>
            <td class="number">${number(one.prompt_tokens)}</td>
            <td class="number">${number(one.predicted_cached_tokens)}</td>
            <td class="number">${number(one.reported_cached_tokens)}</td>
            <td class="number">${seconds(one.ttft_s)}</td>
            <td>${one.outcome}</td>
          </tr>`)}
        </tbody>
      </table>
    </div>
    <${Problem} error=${error} />
    ${list.length ? null : html`<p class="muted">No decision matches. Requests to the public port appear here.</p>`}
    ${list.length && more && list.length < MOST ? html`<div><button onClick=${older}>Show older ones</button></div>` : null}`;
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
