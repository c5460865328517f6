// Metrics: a counter as its rate and a gauge as its average, for each set of labels or by some labels, as `sluice metrics`.
import { command, count, html, safe, useCell, useData, useEffect, useMemo, useRef, useState, zone } from "../lib.js";
import { SeriesChart } from "../chart.js";
import { labelOf, quote, selector } from "../logql.js";
import { Command, Complete, Empty, Head, Loading, NoQueryService, Problem, lacksQuery } from "../parts.js";
import { readLines, textOf } from "../stream.js";

const RANGES = [["15m", "15 min", "10s"], ["1h", "1 hour", "1m"], ["6h", "6 hours", "5m"], ["1d", "1 day", "15m"], ["7d", "7 days", "2h"], ["30d", "30 days", "6h"]];
const METRICS_MAX = 4, LABELS_MAX = 16;
const AGGREGATES = ["rate", "avg", "min", "max", "sum", "count", "last", "p50", "p90", "p95", "p99"];
const NOT_LABELS = new Set(["name", "type", "value", "boot_id"]);

function readChoice(query) {
  const from = query.get("from") ?? "1h";
  return { metric: query.getAll("metric"), attribute: query.getAll("attribute"), from, step: query.get("step") ?? RANGES.find(([value]) => value === from)?.[2] ?? "1m", agg: query.get("agg") ?? "", by: query.getAll("by") };
}

function show(choice) {
  const query = new URLSearchParams({ from: choice.from, step: choice.step, ...(choice.agg && { agg: choice.agg }) });
  for (const name of ["metric", "attribute", "by"]) for (const one of choice[name]) query.append(name, one);
  location.hash = `#metrics?${query}`;
}

// The value that is drawn unless another one is chosen.
const aggregateOf = (type) => (type === "gauge" ? "avg" : "rate");

const shownLabel = (field) => labelOf(field.replace(/^(?:attributes|resource)\./, "").replace(/^"(.*)"$/s, "$1"));

async function readSeries(name, agg, choice, signal) {
  const wanted = new URLSearchParams({ metric: name, from: choice.from, step: choice.step, agg });
  const pairs = choice.attribute.map((one) => [one.slice(0, one.indexOf("=")), one.slice(one.indexOf("=") + 1)]);
  if (pairs.length) wanted.set("query", `{${pairs.map(([key, value]) => `${labelOf(key)}=${quote(value)}`).join(", ")}}`);
  for (const one of choice.by) wanted.append("by", one);
  if (!choice.by.length) wanted.set("each", "true");
  const series = new Map();
  let summary = null;
  await readLines(`v1/query?${wanted}`, signal, (some) => {
    for (const one of some) {
      if (one.summary) { summary = one.summary; continue; }
      const group = JSON.stringify(one.by ?? {});
      if (!series.has(group)) {
        const labels = Object.entries(one.by ?? {}).map(([field, value]) => [shownLabel(field), value === null ? "(missing)" : textOf(value)]);
        series.set(group, { labels: { metric: name, ...Object.fromEntries(labels) }, points: new Map() });
      }
      series.get(group).points.set(Date.parse(one.ts) / 1000, one.value === null ? null : Number(one.value));
    }
  });
  return { series: [...series.values()], summary };
}

// `types` is null until the metrics of the range are listed.
function useSeries(choice, types) {
  const [state, setState] = useState({ data: null, problem: null });
  const chosen = types && choice.metric.map((name) => [name, choice.agg || aggregateOf(types.get(name))]);
  const key = JSON.stringify([chosen, choice]);
  useEffect(() => {
    const stop = new AbortController();
    setState({ data: null, problem: null });
    if (!chosen?.length) return undefined;
    Promise.all(chosen.map(([name, agg]) => readSeries(name, agg, choice, stop.signal))).then((found) => {
      setState({ problem: null, data: { series: found.flatMap((one) => one.series), summaries: found.map((one) => one.summary) } });
    }, (problem) => { if (problem.name !== "AbortError") setState({ data: null, problem }); });
    return () => stop.abort();
  }, [key]);
  return { ...state, chosen };
}

// What is typed stays when series arrive meanwhile.
function StepInput({ step, change }) {
  const [text, setText] = useState(step);
  useEffect(() => setText(step), [step]);
  return html`<label>Step<input size="6" value=${text} onInput=${(event) => setText(event.target.value)} onChange=${(event) => change({ step: event.target.value })} /></label>`;
}

// Only points with all of these attributes, of the point or of the resource of its batch.
function Attributes({ choice, change }) {
  const [text, setText] = useState("");
  const add = (event) => {
    event.preventDefault();
    const wanted = text.trim();
    if (wanted && !choice.attribute.includes(wanted)) change({ attribute: [...choice.attribute, wanted] });
    setText("");
  };
  return html`<form class="row" onSubmit=${add}><label>Attribute<input size="18" value=${text} placeholder="name=value" pattern="[^=]+=.*" title="A name and a value, as device=sda" onInput=${(event) => setText(event.target.value)} /></label><button type="submit">Add</button></form>
    ${choice.attribute.length > 0 && html`<div class="row chips">${choice.attribute.map((one) => html`<span class="badge"><code>${safe(one)}</code> <button type="button" class="plain" aria-label=${`Remove ${safe(one)}`} onClick=${() => change({ attribute: choice.attribute.filter((other) => other !== one) })}>✕</button></span>`)}</div>`}`;
}

// The labels by which the series of the chosen metrics can be combined.
function By({ choice, change }) {
  const from = useData(choice.metric.length ? `v1/fields?${new URLSearchParams({ kind: "metrics", from: choice.from, query: selector({ name: choice.metric[0] }) })}` : null);
  const fields = (from.data?.fields ?? []).filter((one) => one.label && !NOT_LABELS.has(one.label)).slice(0, LABELS_MAX);
  for (const field of choice.by) if (!fields.some((one) => one.field === field)) fields.push({ field, label: shownLabel(field) });
  if (!fields.length) return null;
  const toggle = (field) => change({ by: choice.by.includes(field) ? choice.by.filter((one) => one !== field) : [...choice.by, field] });
  return html`<div class="row by" role="group" aria-label="Combine by">${choice.by.length ? "Combined by" : "Each set of labels is a series. Combine by"} ${fields.map((one) => html`<button key=${one.field} type="button" class="copy" aria-pressed=${choice.by.includes(one.field) ? "true" : "false"} onClick=${() => toggle(one.field)}>${safe(one.label)}</button>`)}</div>`;
}

function Names({ choice, from }) {
  const [text, setText] = useState("");
  const found = (from.data?.metrics ?? []).filter((one) => one.name.toLowerCase().includes(text.toLowerCase()));
  const toggle = (name) => show({ ...choice, metric: choice.metric.includes(name) ? choice.metric.filter((one) => one !== name) : [...choice.metric, name].slice(-METRICS_MAX) });
  return html`<aside class="fields" aria-label="Metrics"><h2>Names</h2><label>Search<input data-search type="search" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    <${Problem} problem=${from.problem} />
    ${from.data && !from.data.metrics.length && html`<p class="quiet">No metrics in this time. <code>sluice agent run --host-metrics-s 10</code> sends those of a machine.</p>`}
    <ul>${found.slice(0, 200).map((one) => html`<li key=${one.name}><div class="field"><button type="button" class="plain" aria-pressed=${choice.metric.includes(one.name) ? "true" : "false"} title=${safe(one.description)} onClick=${() => toggle(one.name)}><code>${safe(one.name)}</code></button><span class="quiet" title=${`about ${count(one.series)} series, ${count(one.samples)} samples`}>${safe([one.type, one.unit].filter(Boolean).join(", "))}</span></div></li>`)}</ul>
    ${found.length > 200 && html`<p class="quiet">${count(found.length - 200)} more: search by name.</p>`}</aside>`;
}

export function Metrics({ place }) {
  const choice = readChoice(place.query);
  useCell(zone);
  const listed = useRef(false);  // until the first metrics arrive, the names are read again
  const names = useData(`v1/metrics?${new URLSearchParams({ from: choice.from })}`, listed.current ? 0 : 10);
  listed.current = Boolean(names.data?.metrics.length);
  const types = useMemo(() => names.data && new Map(names.data.metrics.map((one) => [one.name, one.type])), [names.data]);
  const found = useSeries(choice, types);
  const change = (more) => show({ ...choice, ...more });
  if (lacksQuery(names.problem)) return html`<${Head} title="Metrics">Series by name and label.<//><${NoQueryService} />`;
  const summaries = found.data?.summaries.filter(Boolean) ?? [], partial = summaries.filter((one) => one.partial);
  const shown = [...new Set((found.chosen ?? []).map(([, agg]) => agg))];
  return html`<${Head} title="Metrics">A counter is drawn as its increase each second, a gauge as its average. Choose up to four names.<//>
    <div class="filters"><label>Time<select value=${choice.from} onChange=${(event) => change({ from: event.target.value, step: RANGES.find(([value]) => value === event.target.value)[2] })}>${RANGES.map(([value, title]) => html`<option value=${value}>last ${title}</option>`)}</select></label>
      <${StepInput} step=${choice.step} change=${change} />
      <label>Aggregation<select value=${choice.agg} onChange=${(event) => change({ agg: event.target.value })}><option value="">${shown.length && !choice.agg ? `by type: ${shown.join(", ")}` : "by type"}</option>${AGGREGATES.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      <${Attributes} choice=${choice} change=${change} /></div>
    <${By} choice=${choice} change=${change} />
    <div class="explore"><${Names} choice=${choice} from=${names} /><div class="result"><${Problem} problem=${found.problem} />
      ${partial.map((one) => html`<div class="notice"><strong>Points may be missing.</strong> ${one.reasons.map(safe).join("; ")}</div>`)}
      ${!choice.metric.length ? html`<${Empty} title="No metric is chosen">Choose a name on the left.<//>` : found.data ? (found.data.series.length
    ? html`<div class="summary" role="status"><span><strong>${count(found.data.series.length)}</strong> series</span><${Complete} summary=${summaries[0]} /></div><${SeriesChart} series=${found.data.series} label=${`${shown.join(", ")} of ${choice.metric.map(safe).join(", ")}`} />`
    : html`<${Empty} title="No points in this time">Choose a longer time. A counter needs two samples.<//>`) : !found.problem && html`<${Loading} />`}
      ${choice.attribute.length === 0 && choice.metric.map((name) => html`<${Command} text=${command("sluice metrics", name, ...choice.by.flatMap((one) => ["--by", one]), ...(choice.agg ? ["--agg", choice.agg] : []), "--step", choice.step, "--since", choice.from)} />`)}</div></div>`;
}
