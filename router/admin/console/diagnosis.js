// What hurts, with evidence and what to try.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { number, percent, Problem, Table } from "./parts.js";

const words = (check) => check.replaceAll("_", " ");

const SHOWN = 4;
const sincePart = (since) => (since ? `, since ${new Date(since).toLocaleTimeString()}` : "");

// A few lines for the top of every panel, when something hurts. The findings come worst first.
export function Hurts({ diagnosis }) {
  const out = diagnosis ? diagnosis.service_levels.filter((level) => level.out) : [];
  if (!diagnosis || (!diagnosis.findings.length && !out.length)) return null;
  const shown = diagnosis.findings.slice(0, SHOWN);
  const more = diagnosis.findings.length - shown.length;
  const outage = shown.some((one) => one.severity === "outage");
  return html`<div class=${`notice ${out.length || shown.some((one) => one.severity !== "advice") ? "bad" : ""} hurts`} role=${outage ? "alert" : "status"} aria-label="What hurts">
    ${shown.map((one) => html`<div><span class=${`severity ${one.severity}`}>${one.severity}</span> <strong>${words(one.check)}</strong>: ${one.symptom}${one.which.length ? ` ${one.which.slice(0, SHOWN).join(", ")}` : ""}${sincePart(one.since)} <a href="#diagnosis">why, and what to try</a></div>`)}
    ${more > 0 ? html`<div><a href="#diagnosis">and ${more} more</a></div>` : null}
    ${out.map((one) => html`<div><strong>${one.route}</strong>: only ${percent(one.met / (one.met + one.missed))} of the streams meet their ${one.target}</div>`)}
  </div>`;
}

export function DiagnosisPanel({ diagnosis, error }) {
  if (!diagnosis) return html`<section aria-labelledby="diagnosis"><h2 id="diagnosis">Diagnosis</h2><${Problem} error=${error} /></section>`;
  const { findings, service_levels: levels, unsure, figures, thresholds } = diagnosis;
  return html`<section aria-labelledby="diagnosis">
    <h2 id="diagnosis">Diagnosis</h2>
    <${Problem} error=${error} />
    <p class="muted">${number(diagnosis.requests)} requests ended in the last ${(diagnosis.seconds / 60).toFixed(1)} minutes.</p>
    ${findings.length ? null : html`<div class="notice">No check has found anything.</div>`}
    ${findings.map((one) => html`<${Finding} key=${one.check} finding=${one} />`)}
    ${levels.length
      ? html`<article><h3>Service levels</h3><${Table}
          caption="Service levels" columns=${["route", "target", "met", "missed", "share", "verdict"]}
          rows=${levels.map((one) => [one.route, one.target, one.met, one.missed, percent(one.met / (one.met + one.missed)), one.out ? "out of its service level" : "within"])} /></article>`
      : null}
    ${unsure.length
      ? html`<article><h3>Not checked</h3><ul>${unsure.map((one) => html`<li>${words(one.check)} needs ${one.needs}</li>`)}</ul></article>`
      : null}
    <details><summary>All figures and thresholds</summary>
      ${figures.filter((one) => one.rows.length).map((one) => html`<article><h3>${one.caption}</h3><${Table} ...${one} /></article>`)}
      <article><h3>Thresholds</h3><${Table} caption="Thresholds" columns=${["setting", "value"]}
        rows=${Object.entries(thresholds).map(([name, value]) => [`diagnosis.${name}`, value])} /></article>
    </details>
  </section>`;
}

function Finding({ finding }) {
  return html`<article>
    <h3><span class=${`severity ${finding.severity}`}>${finding.severity}</span> ${words(finding.check)}</h3>
    <p><strong>${finding.symptom}</strong></p>
    <p>${finding.detail}</p>
    ${finding.since ? html`<p class="muted">Since ${new Date(finding.since).toLocaleString()}</p>` : null}
    ${finding.which.length ? html`<p>Which: ${finding.which.join(", ")}</p>` : null}
    ${finding.why.map((why) => html`<p>Why: ${why}</p>`)}
    ${finding.evidence.filter((one) => one.rows.length).map((one) => html`<div><p class="muted">${one.caption}</p><${Table} ...${one} /></div>`)}
    <div><p class="muted">What to try</p><ul>${finding.to_try.map((one) => html`<li>${one}</li>`)}</ul></div>
  </article>`;
}
