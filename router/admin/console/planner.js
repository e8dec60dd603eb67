// The fleet that the last hour's traffic needs: the latest plan, and a form for another one.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { call } from "./api.js";
import { number, percent, Problem, Table, useDocument } from "./parts.js";

const POLL_MS = 3000;
const LIMITS = { ttft_ms: "TTFT, ms", tpot_ms: "TPOT, ms", e2el_ms: "E2E, ms" };
const VERDICTS = { met: "met", not_met: "not met", undecided: "undecided" };

export function PlannerPanel({ session, may }) {
  const [round, again] = useState(0);
  const { document, error } = useDocument("/planner", POLL_MS, `${session} ${round}`);
  return html`<section aria-labelledby="planner">
    <h2 id="planner">Planner</h2>
    <${Problem} error=${error} />
    ${may.operate && document && document.state !== "running" ? html`<${Question} begun=${() => again(round + 1)} />` : null}
    ${document ? html`<${Latest} run=${document} />` : null}
  </section>`;
}

function Question({ begun }) {
  const [fields, write] = useState({ profile: "", price_per_hour: "", ttft_ms: "", tpot_ms: "", e2el_ms: "", attainment: "0.95" });
  const [error, fail] = useState(null);
  const input = (name, label, type = "number") => html`<label>${label}<input type=${type} step="any" min="0" value=${fields[name]}
    required=${name === "profile"} onInput=${(event) => write({ ...fields, [name]: event.target.value })} /></label>`;
  const submit = async (event) => {
    event.preventDefault();
    const given = (names) => Object.fromEntries(names.filter((name) => fields[name] !== "").map((name) => [name, Number(fields[name])]));
    const candidate = { profile: fields.profile.trim(), ...given(["price_per_hour"]) };
    try {
      await call("POST", "/planner", { candidates: [candidate], ...given([...Object.keys(LIMITS), "attainment"]) });
      fail(null);
      begun();
    } catch (problem) {
      fail(problem);
    }
  };
  return html`<form class="tools" onSubmit=${submit}>
    ${input("profile", "Profile of a worker", "text")}${input("price_per_hour", "Price per hour")}
    ${Object.entries(LIMITS).map(([name, label]) => input(name, label))}${input("attainment", "Share of calls")}
    <button class="main">Plan for the last hour</button>
    <${Problem} error=${error} />
  </form>`;
}

function Latest({ run }) {
  const { state, plan, workers } = run;
  return html`${state === "none" ? html`<p>No plan was made since the gateway's start.</p>` : null}
    ${state === "running" ? html`<p role="status">A plan is being made, since ${new Date(run.started_at * 1000).toLocaleTimeString()}.</p>` : null}
    ${state === "failed" ? html`<div class="notice bad" role="alert">The plan failed: ${run.problem}</div>` : null}
    ${plan ? html`<article><h3>${workers === null ? "No candidate holds the service level" : `Take ${workers} workers`}</h3>
      <p class="muted">For ${number(plan.traffic.calls)} calls in ${(plan.traffic.span_s / 60).toFixed(1)} minutes of the decision log. Made ${(run.age_s / 60).toFixed(1)} minutes ago with ${number(Math.round(run.cpu_s))} s of CPU time.</p>
      <${Table} caption="Fleets" columns=${["Rule", "Workers", "Profile", "Per hour", "Verdict", "Attained", "Cached", "Limit"]}
        rows=${plan.fleets.map((one) => [one.policy, one.workers, one.profile, one.cost_per_hour, VERDICTS[one.verdict], percent(one.attained_share), percent(one.cached_share), one.limit])} />
    </article>` : null}
    ${run.unknown.length ? html`<article><h3>Not known</h3><ul>${run.unknown.map((one) => html`<li>${one}</li>`)}</ul></article>` : null}`;
}
