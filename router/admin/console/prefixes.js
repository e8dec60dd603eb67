// The shared prefixes that save the most prefill work. No text: sizes and hashes.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { number, Problem, Table, useDocument } from "./parts.js";

export function PrefixesPanel({ session }) {
  const { document, error } = useDocument("/prefixes?limit=100", 5000, session);
  const found = document ? document.prefixes : [];
  return html`<section aria-labelledby="prefixes">
    <h2 id="prefixes">Prefixes</h2>
    <${Problem} error=${error} />
    <p class="muted">What first turns of the last quarter of an hour found cached, by the prompt tokens that it saved. Copies and workers are those whose KV events are followed.</p>
    ${found.length
      ? html`<${Table} caption="Hot prefixes" columns=${["Hash of the last block", "Tokens", "Hits", "Tokens saved", "Copies", "KV tokens", "Workers"]}
          rows=${found.map((one) => [one.hash, number(one.tokens), one.hits, number(one.saved_tokens), one.copies, number(one.kv_tokens), one.workers.join(", ")])} />`
      : document && html`<p>No first turn has found a cached prefix so far.</p>`}
  </section>`;
}
