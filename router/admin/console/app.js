// The page: who is asking, the panels, and what hurts above them.

import { html, render, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { get, setToken } from "./api.js";
import { DecisionsPanel } from "./decisions.js";
import { DiagnosisPanel, Hurts } from "./diagnosis.js";
import { FleetPanel } from "./fleet.js";
import { Problem, useDocument } from "./parts.js";
import { PlannerPanel } from "./planner.js";
import { PoliciesPanel } from "./policies.js";
import { PrefixesPanel } from "./prefixes.js";
import { TrafficPanel } from "./traffic.js";

const PANELS = {
  fleet: ["Fleet", FleetPanel],
  traffic: ["Traffic", TrafficPanel],
  decisions: ["Decisions", DecisionsPanel],
  policies: ["Policies", PoliciesPanel],
  prefixes: ["Prefixes", PrefixesPanel],
  diagnosis: ["Diagnosis", DiagnosisPanel],
  planner: ["Planner", PlannerPanel],
};
const ROLES = ["read", "operate", "admin"];

function named() {
  const name = location.hash.slice(1);
  return Object.hasOwn(PANELS, name) ? name : "fleet";
}

function App() {
  const [session, begin] = useState(0);
  const [who, know] = useState(null);
  const [error, fail] = useState(null);
  useEffect(() => {
    get("/whoami").then(
      (found) => {
        fail(null);
        know(found);
      },
      (problem) => {
        know(null);
        fail(problem);
      },
    );
  }, [session]);
  if (who) return html`<${Panels} who=${who} session=${session} />`;
  if (error && error.status === 401) return html`<${Token} wrong=${session > 0} enter=${(token) => { setToken(token); begin(session + 1); }} />`;
  return html`<main><${Problem} error=${error} /></main>`;
}

function Token({ wrong, enter }) {
  const [text, write] = useState("");
  const submit = (event) => {
    event.preventDefault();
    enter(text.trim());
  };
  return html`<main><section aria-labelledby="token">
    <h2 id="token">Warmroute console</h2>
    <p>This gateway asks for a token of its admin port. The page keeps it in memory, until you close or reload the tab.</p>
    ${wrong ? html`<div class="notice bad" role="alert">The gateway does not know this token.</div>` : null}
    <form class="tools" onSubmit=${submit}>
      <label>Token<input type="password" autocomplete="off" required value=${text} onInput=${(event) => write(event.target.value)} /></label>
      <button class="main">Continue</button>
    </form>
  </section></main>`;
}

function Panels({ who, session }) {
  const [panel, go] = useState(named());
  useEffect(() => {
    const moved = () => go(named());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const diagnosis = useDocument("/diagnosis", 10000, session);
  const level = ROLES.indexOf(who.role);
  const may = { operate: level >= 1, admin: level >= 2 };
  const Panel = PANELS[panel][1];
  return html`<header>
      <h1>Warmroute</h1>
      <nav aria-label="Panels">${Object.entries(PANELS).map(([name, [title]]) => html`<a href=${`#${name}`} aria-current=${name === panel ? "page" : null}>${title}</a>`)}</nav>
      <span class="who">${who.name ? `${who.name}, ${who.role}` : "no token is needed here"}</span>
    </header>
    <main>
      ${panel === "diagnosis" ? null : html`<${Hurts} diagnosis=${diagnosis.document} />`}
      <${Panel} session=${session} may=${may} diagnosis=${diagnosis.document} error=${diagnosis.error} />
    </main>`;
}

render(html`<${App} />`, document.getElementById("app"));
