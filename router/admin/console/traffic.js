// The traffic of the last hour as charts. Dragging over a chart zooms all of them.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { Choice, Live, number, percent, seconds, Table, useDocument, useStream } from "./parts.js";

const ALL = "all routes and models";
const COLOURS = ["--t0", "--t1", "--t2", "--t3", "--t4", "--t5", "--t6", "--t7"];
const KEPT = 360;

// Title, series of one point and route, and how a value reads.
const CHARTS = [
  ["Time to first token, s", [["p50", (one) => one.ttft_p50_s], ["p95", (one) => one.ttft_p95_s]]],
  ["Gap between tokens, s", [["p50", (one) => one.gap_p50_s], ["p95", (one) => one.gap_p95_s]]],
  ["Output tokens per second", [["tokens", (one) => one.output_tokens_per_s]]],
  ["Streams and answers per second", [["streams", (one) => one.streams_per_s], ["answers", (one) => one.answers_per_s]]],
  ["Cached share of prompt tokens", [["cached", (one) => one.cached_share]]],
  ["Requests held", [["held", (one) => one.held]]],
];
const PHASES = ["request", "before_first", "stream"];

class Traffic {
  constructor() {
    this.points = [];
  }

  // The snapshot of the stream has the latest points only, and begins again with each connection.
  add(points) {
    const known = new Set(this.points.map((point) => point.at));
    const fresh = points.filter((point) => !known.has(point.at));
    this.points = [...this.points, ...fresh].sort((one, other) => one.at - other.at).slice(-KEPT);
  }

  heard(name, value) {
    if (name === "snapshot") this.add([...value.points].reverse());
    else if (name === "added") this.add([value]);
  }
}

export function TrafficPanel({ session }) {
  const store = useRef(null);
  if (!store.current) store.current = new Traffic();
  const state = useStream("/traffic?watch=true", (name, value) => store.current.heard(name, value), session);
  const hour = useDocument("/traffic", 0, session);
  if (hour.document && store.current.hour !== hour.document) {
    store.current.hour = hour.document;
    store.current.add([...hour.document.points].reverse());
  }
  const [chosen, choose] = useState(ALL);
  const [zoom, look] = useState(null);
  const { points } = store.current;
  const keys = [...new Set(points.flatMap((point) => point.routes.map(named)))].sort();
  const shown = chosen === ALL ? keys.slice(0, COLOURS.length) : [chosen];
  const times = points.map((point) => point.at);
  const last = points.at(-1);
  return html`<section aria-labelledby="traffic">
    <div class="tools">
      <h2 id="traffic">Traffic</h2>
      <${Live} state=${state} />
      <${Choice} label="Route and model" options=${[ALL, ...keys]} chosen=${chosen} choose=${choose} />
      <button disabled=${!zoom} onClick=${() => look(null)}>Show the whole hour</button>
    </div>
    ${points.length ? null : html`<p class="muted">The first point comes ten seconds after the gateway's start.</p>`}
    ${last ? html`<${Now} point=${last} />` : null}
    <div class="charts" role="group" aria-label=${`${points.length} points of the last hour`}>
      ${CHARTS.map(([title, parts]) => html`<${Chart} key=${title} title=${title} times=${times} zoom=${zoom} look=${look}
        series=${shown.flatMap((key) => parts.map(([part, of]) => ({
          label: shown.length > 1 || chosen === ALL ? `${key} ${part}` : part,
          values: points.map((point) => value(point, key, of)),
        })))} />`)}
      <${Chart} title="Errors of the gateway by phase" times=${times} zoom=${zoom} look=${look}
        series=${PHASES.map((phase) => ({ label: phase, values: points.map((point) => errors(point, chosen)[phase] ?? 0) }))} />
      <${Chart} title="Requests queued, of all routes" times=${times} zoom=${zoom} look=${look}
        series=${[{ label: "queued", values: points.map((point) => point.queued) }]} />
      <${Chart} title="Share of incorrect routing, of all routes" times=${times} zoom=${zoom} look=${look}
        series=${[{ label: "incorrect", values: points.map((point) => point.misrouted_share) }]} />
    </div>
  </section>`;
}

const named = (one) => `${one.route} / ${one.model}`;

function value(point, key, of) {
  const found = point.routes.find((one) => named(one) === key);
  return found ? of(found) : null;
}

// The errors by phase of one route and model, or of all requests.
function errors(point, chosen) {
  return chosen === ALL ? point.errors : (point.routes.find((one) => named(one) === chosen)?.errors ?? {});
}

// The latest point as tables, for those who do not see the charts.
function Now({ point }) {
  const all = [
    ["Cached", percent(point.cached_share)], ["Incorrectly routed", percent(point.misrouted_share)],
    ...PHASES.map((phase) => [`Errors, ${phase.replace("_", " ")}`, point.errors[phase] ?? 0]), ["Held", point.held], ["Queued", point.queued],
  ];
  return html`<${Table} caption="The last ten seconds by route"
      columns=${["Route and model", "Streams/s", "Tokens/s", "TTFT p50", "TTFT p95", "Gap p50", "Gap p95", "Cached", "Errors", "Held"]}
      rows=${point.routes.length ? point.routes.map((one) => [
        named(one), number(one.streams_per_s), number(one.output_tokens_per_s),
        seconds(one.ttft_p50_s), seconds(one.ttft_p95_s), seconds(one.gap_p50_s), seconds(one.gap_p95_s),
        percent(one.cached_share), Object.values(one.errors).reduce((sum, count) => sum + count, 0), one.held,
      ]) : [["no traffic", ...Array(9).fill("")]]} />
    <${Table} caption="The last ten seconds of all requests" columns=${all.map(([title]) => title)} rows=${[all.map(([, shown]) => shown)]} />
    ${point.classes.length ? html`<${Table} caption="Classes: waiting now, and the last ten seconds"
      columns=${["Class", "Waiting", "Work", "Refused", "Level met", "Waiting by tenant"]}
      rows=${point.classes.map((one) => [one.request_class, one.waiting, seconds(one.work_s), one.refused, percent(one.level_share), tenants(one)])} />` : null}`;
}

// The tenants with the most waiting requests.
function tenants(one) {
  const all = Object.entries(one.tenants).sort(([, some], [, other]) => other - some);
  const shown = all.slice(0, 5).map(([name, count]) => `${name || "no key"} ${count}`);
  return [...shown, ...(all.length > 5 ? [`and ${all.length - 5} more`] : [])].join(", ");
}

function Chart({ title, times, series, zoom, look }) {
  const place = useRef(null);
  const plot = useRef(null);
  const kind = series.map((one) => one.label).join("|");
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    plot.current = new uPlot(
      {
        width: place.current.clientWidth || 480,
        height: 190,
        scales: { x: { time: true } },
        axes: [axis, { ...axis, size: 60 }],
        cursor: { sync: { key: "traffic" }, drag: { x: true, y: false, setScale: false } },
        series: [{}, ...series.map((one, index) => ({ label: one.label, stroke: colour(COLOURS[index % COLOURS.length]), width: 1.5, spanGaps: false, points: { size: 4 } }))],
        hooks: {
          setSelect: [
            (drawn) => {
              if (drawn.select.width > 4) look([drawn.posToVal(drawn.select.left, "x"), drawn.posToVal(drawn.select.left + drawn.select.width, "x")]);
              drawn.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            },
          ],
        },
      },
      [times, ...series.map((one) => one.values)],
      place.current,
    );
    const sized = new ResizeObserver(() => plot.current.setSize({ width: place.current.clientWidth, height: 190 }));
    sized.observe(place.current);
    return () => {
      sized.disconnect();
      plot.current.destroy();
    };
  }, [kind]);
  useEffect(() => {
    plot.current.setData([times, ...series.map((one) => one.values)]);
    if (zoom) plot.current.setScale("x", { min: zoom[0], max: zoom[1] });
  });
  return html`<article><h3>${title}</h3><div ref=${place} role="img" aria-label=${`${title} over the last hour`}></div></article>`;
}
