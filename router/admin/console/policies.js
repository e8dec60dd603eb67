// The desired state: policies and routes with a dry run before each change, what another policy would have chosen, and
// the revisions.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { call, get } from "./api.js";
import { Choice, Confirm, number, percent, Problem, seconds, Table, useDocument } from "./parts.js";

// Parts of the desired state that the editor changes. `fields` is the schema of one entry in the API's description.
const PARTS = {
  policy: { path: "/policy", fields: "NewPolicy", of: (settings) => settings.policy, body: (value) => value },
  routes: { path: "/routes", fields: "RouteConfig", of: (settings) => settings.routes, body: (value) => ({ routes: value }) },
  "limits of tenants": { path: "/limits/tenants", fields: "RateLimitsConfig", of: (settings) => settings.limits.tenants, body: (value) => ({ limits: value }) },
  "limits of keys": { path: "/limits/keys", fields: "RateLimitsConfig", of: (settings) => settings.limits.keys, body: (value) => ({ limits: value }) },
};
const asText = (value) => (value === undefined ? "" : JSON.stringify(value));

export function PoliciesPanel({ session, may }) {
  const [round, again] = useState(0);
  const key = `${session} ${round}`;
  const policy = useDocument("/policy", 0, key);
  const state = useDocument("/desired-state", 0, key);
  const revisions = useDocument("/revisions?limit=20", 0, key);
  const [part, choose] = useState("policy");
  const [asked, ask] = useState(null);
  const error = policy.error || state.error || revisions.error;
  if (!policy.document || !state.document || !revisions.document) {
    return html`<section aria-labelledby="policies"><h2 id="policies">Policies</h2><${Problem} error=${error} /></section>`;
  }
  const reload = () => again(round + 1);
  return html`<section aria-labelledby="policies">
    <div class="tools">
      <h2 id="policies">Policies</h2>
      <span>Desired state ${state.document.version}, ${state.document.kept ? "kept in state_dir" : "until the process ends"}</span>
      <${Choice} label="Part" options=${Object.keys(PARTS)} chosen=${part} choose=${choose} />
      <button onClick=${reload}>Read again</button>
    </div>
    <${Problem} error=${error} />
    <${Editor} key=${`${part} ${state.document.version} ${round}`} part=${PARTS[part]} state=${state.document} tag=${state.tag} may=${may} reload=${reload} />
    <${Fields} key=${part} part=${part} session=${session} />
    ${part === "policy" ? html`<${Rules} policy=${policy.document} />` : null}
    ${part === "routes" ? html`<${Shadows} state=${state.document} />` : null}
    <article><h3>Revisions</h3>
      <div class="scroll" tabindex="0" role="region" aria-label="Revisions"><table>
        <thead><tr>${["Version", "At", "Source", "Who", "What", "Changes", "Action"].map((one) => html`<th scope="col">${one}</th>`)}</tr></thead>
        <tbody>${revisions.document.revisions.map((one) => html`<tr key=${one.number}>
          <td>${one.number}</td><td>${one.at.slice(0, 19).replace("T", " ")}</td><td>${one.source}</td><td>${one.who || ""}</td><td>${one.what}</td><td>${one.changes}</td>
          <td>${may.admin && one.number !== state.document.version ? html`<button onClick=${async () => ask(await restoring(one, reload))}>Restore</button>` : ""}</td>
        </tr>`)}</tbody>
      </table></div>
    </article>
    <${Confirm} asked=${asked} close=${() => ask(null)} />
  </section>`;
}

async function restoring(revision, reload) {
  let text;
  try {
    const { document } = await call("POST", `/revisions/${revision.number}/restore?dry_run=true`);
    const changed = document.differences.map((one) => `${one.path}: ${asText(one.before)} → ${asText(one.after)}`);
    text = changed.join("; ") || "Nothing would change.";
  } catch (error) {
    text = error.message;
  }
  const act = async () => {
    await call("POST", `/revisions/${revision.number}/restore`);
    reload();
  };
  return { title: `Restore revision ${revision.number}?`, text, button: "Restore", act };
}

function Editor({ part, state, tag, may, reload }) {
  const [text, write] = useState(JSON.stringify(part.of(state.settings), null, 2));
  const [tried, show] = useState(null);
  const [error, fail] = useState(null);
  const send = async (query) => {
    fail(null);
    try {
      return await call("PUT", `${part.path}${query}`, part.body(JSON.parse(text)), { "if-match": tag });
    } catch (problem) {
      fail(problem);
      return null;
    }
  };
  const dry = async () => {
    show(null);
    const answer = await send("?dry_run=true");
    if (answer) show(answer.document.differences);
  };
  const apply = async () => {
    if (await send("")) reload();
  };
  return html`<article>
    <label>Settings as JSON<textarea spellcheck=${false} value=${text} readonly=${!may.admin}
      onInput=${(event) => { write(event.target.value); show(null); }}></textarea></label>
    <${Problem} error=${error} />
    ${may.admin
      ? html`<div class="tools"><button onClick=${dry}>Dry run</button><button class="main" disabled=${!tried || !tried.length} onClick=${apply}>Apply</button>
          ${tried && !tried.length ? html`<span role="status">Nothing would change.</span>` : null}</div>`
      : html`<p class="muted">A change needs a token with the role admin.</p>`}
    ${tried && tried.length ? html`<${Table} caption="What would change" columns=${["setting", "now", "then"]} rows=${tried.map((one) => [one.path, asText(one.before), asText(one.after)])} />` : null}
  </article>`;
}

function Rules({ policy }) {
  const [rule, choose] = useState(policy.rule);
  const one = policy.available.find((other) => other.rule === rule);
  return html`<article>
    <div class="tools"><h3>Rules that can be chosen</h3><${Choice} label="Rule" options=${policy.available.map((other) => other.rule)} chosen=${rule} choose=${choose} /></div>
    <p>${one.summary}</p>
    <${Table} caption="Parameters" columns=${["parameter", "type", "default", "meaning"]} rows=${Object.entries(one.params).map(([name, about]) => [name, about.type, asText(about.default), about.meaning])} />
    <p class="muted">Around it by default: ${[one.hold && "hold", one.lanes && "lanes"].filter(Boolean).join(", ") || "nothing"}.</p>
    <${WhatIf} key=${rule} rule=${rule} />
  </article>`;
}

// Ask what the rule would have chosen at the decisions that the gateway keeps in memory.
function WhatIf({ rule }) {
  const [params, write] = useState("{}");
  const [found, show] = useState(null);
  const [error, fail] = useState(null);
  const [busy, work] = useState(false);
  const ask = async () => {
    work(true);
    fail(null);
    try {
      show((await call("POST", "/what-if", { rule, params: JSON.parse(params) })).document);
    } catch (problem) {
      fail(problem);
    }
    work(false);
  };
  return html`<div class="tools"><h3>What if it had decided?</h3>
      <label>Parameters of ${rule} as JSON<input value=${params} onInput=${(event) => write(event.target.value)} /></label>
      <button disabled=${busy} onClick=${ask}>Ask</button></div>
    <${Problem} error=${error} />
    ${found ? html`<${Compared} found=${found} />` : null}`;
}

function Compared({ found }) {
  const rows = [
    ["mean predicted TTFT", seconds(found.recorded_ttft_s), seconds(found.replayed_ttft_s)],
    ["cached share", percent(found.recorded_cached_share), percent(found.replayed_cached_share)],
    ["requests to hold", number(found.recorded.held), number(found.replayed.held)],
  ];
  const changes = found.differences.map((one) => [one.request_id.slice(-12), one.recorded, one.replayed, seconds(one.change_s), number(one.change_cached_tokens)]);
  return html`<p role="status">${found.decisions
      ? html`<strong>${number(found.elsewhere)} of ${number(found.decisions)}</strong> decisions of the last ${number(Math.round(found.since_s))} s would have gone elsewhere.`
      : "The gateway has no decision with all its candidates in memory."}
      ${found.without_prompt ? ` For ${number(found.without_prompt)} of them the prompt's hashes are no longer kept.` : ""}
      ${found.failures ? ` At ${number(found.failures)} of them the policy failed.` : ""}</p>
    ${found.decisions ? html`<${Table} caption="Recorded and asked" columns=${["measure", "recorded", found.rule]} rows=${rows} />` : null}
    ${changes.length ? html`<${Table} caption="The newest differences" columns=${["request", "went to", "would go to", "change of TTFT", "change of cached tokens"]} rows=${changes} />` : null}
    <p class="muted">The rule begins without state and sees the load that the recorded choices made.</p>`;
}

// The fields of the part that is edited, from the description of the API.
function Fields({ part, session }) {
  const { document, error } = useDocument("/openapi.json", 0, session);
  const schemas = document?.components.schemas;
  const name = PARTS[part].fields;
  return html`<article><h3>Fields of ${part}</h3>
    <${Problem} error=${error} />
    ${schemas ? html`<p>${schemas[name].description}</p>
      <${Table} caption=${`Fields of ${part}`} columns=${["field", "type", "default", "meaning"]} rows=${fields(schemas, name, "")} />` : null}
  </article>`;
}

function fields(schemas, name, before) {
  return Object.entries(schemas[name].properties).flatMap(([field, about]) => {
    const other = about.$ref?.split("/").at(-1);
    const row = [before + field, other ? "mapping" : typeOf(about), asText(about.default), about.description];
    return other ? [row, ...fields(schemas, other, `${before}${field}.`)] : [row];
  });
}

function typeOf(about) {
  if (about.enum) return about.enum.join(" or ");
  if (about.anyOf) return about.anyOf.map(typeOf).join(" or ");
  if (about.type === "array") return `list of ${typeOf(about.items ?? {})}`;
  return about.type === "object" ? "mapping" : about.type ?? "any";
}

function Shadows({ state }) {
  const [found, show] = useState(null);
  const [error, fail] = useState(null);
  const read = async () => {
    fail(null);
    try {
      const routes = state.settings.routes.filter((one) => (one.shadow || []).length || (one.shadows || []).length);
      show(await Promise.all(routes.map((one) => get(`/routes/${encodeURIComponent(one.name)}/shadow`))));
    } catch (problem) {
      fail(problem);
    }
  };
  const rows = (found || []).flatMap((one) => one.shadows.map((other) => [one.route, other.name, other.agreement, other.predicted_ttft_s, other.shadow_ttft_s, other.predicted_cached_tokens, other.shadow_cached_tokens]));
  return html`<article>
    <div class="tools"><h3>Shadow policies</h3><button onClick=${read}>Compare</button></div>
    <${Problem} error=${error} />
    ${found && !rows.length ? html`<p class="muted">No route has shadow policies.</p>` : null}
    ${rows.length ? html`<${Table} caption="Shadow policies" columns=${["route", "shadow", "agrees", "predicted TTFT s", "its TTFT s", "predicted cached", "its cached"]} rows=${rows} />` : null}
  </article>`;
}
