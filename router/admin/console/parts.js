// Parts that several panels use.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { call, watch } from "./api.js";

export const percent = (share) => (share === null || share === undefined ? "" : `${Math.round(share * 100)} %`);

export function seconds(value) {
  if (value === null || value === undefined) return "";
  return Math.abs(value) < 1 ? `${(value * 1000).toPrecision(3).replace(/\.0+$/, "")} ms` : `${value.toPrecision(3)} s`;
}

export const number = (value) => (value === null || value === undefined ? "" : value.toLocaleString("en"));

export function cell(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 4 }) : value;
}

export function Table({ caption, columns, rows }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <thead><tr>${columns.map((one) => html`<th scope="col">${one}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${row.map((one) => html`<td>${cell(one)}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}

// A list to choose from. Without `value` on each option, Preact gives all of them an empty one.
export function Choice({ label, options, chosen, choose }) {
  return html`<label>${label}<select value=${chosen} onChange=${(event) => choose(event.target.value)}>
    ${options.map((one) => html`<option key=${one} value=${one} selected=${one === chosen}>${one}</option>`)}
  </select></label>`;
}

export function Problem({ error }) {
  return error ? html`<div class="notice bad" role="alert">${error.message || error}</div>` : null;
}

// Read a document again and again; without a path, none. Returns it with its entity tag, and the error of the last read.
export function useDocument(path, every, session) {
  const [state, set] = useState({ document: null, tag: null, error: null });
  useEffect(() => {
    if (!path) return undefined;
    let timer = null;
    let over = false;
    const read = async () => {
      try {
        const { document, tag } = await call("GET", path);
        if (!over) set({ document, tag, error: null });
      } catch (error) {
        if (!over) set((before) => ({ ...before, error }));
      }
      if (!over && every) timer = setTimeout(read, every);
    };
    read();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [path, every, session]);
  return state;
}

// Follow a stream while the panel is open; without a path, none. `heard` may change a mutable store; the panel is drawn once per frame.
export function useStream(path, heard, session) {
  const [, draw] = useState(0);
  const [state, set] = useState("connecting");
  const latest = useRef(heard);
  latest.current = heard;
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    let frame = 0;
    const later = () => {
      frame = 0;
      draw((count) => count + 1);
    };
    watch(
      path,
      (name, value) => {
        latest.current(name, value);
        if (!frame) frame = requestAnimationFrame(later);
      },
      set,
      stop.signal,
    );
    return () => {
      stop.abort();
      cancelAnimationFrame(frame);
    };
  }, [path, session]);
  return state;
}

export function Live({ state }) {
  return html`<span class="muted" role="status">${state === "live" ? "live" : `not live: ${state}`}</span>`;
}

// A question before a change. `asked` is null, or {title, text, act, done}.
export function Confirm({ asked, close }) {
  const dialog = useRef(null);
  const [error, fail] = useState(null);
  const [busy, work] = useState(false);
  useEffect(() => {
    fail(null);
    if (asked) dialog.current.showModal();
    else dialog.current.close();
  }, [asked]);
  const act = async (event) => {
    event.preventDefault();
    work(true);
    try {
      await asked.act();
      close();
    } catch (problem) {
      fail(problem);
    }
    work(false);
  };
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="asked">
    <form onSubmit=${act}>
      <h3 id="asked">${asked ? asked.title : ""}</h3>
      <p>${asked ? asked.text : ""}</p>
      <${Problem} error=${error} />
      <div class="end">
        <button type="button" onClick=${close}>Cancel</button>
        <button class="main" disabled=${busy}>${asked ? asked.button : ""}</button>
      </div>
    </form>
  </dialog>`;
}
