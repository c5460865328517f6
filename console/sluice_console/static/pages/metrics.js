// Metrics: series by name, several in one chart, with step and aggregation.
import { bytes, command, count, go, html, safe, useCell, useData, useEffect, useRef, useState, zone } from "../lib.js";
import { Chart } from "../chart.js";
import { Command, Empty, Head, Loading, NoQueryService, Problem, lacksQuery } from "../parts.js";
import { readLines, textOf } from "../stream.js";

const RANGES = [["15m", "15 min", "10s"], ["1h", "1 hour", "1m"], ["6h", "6 hours", "5m"], ["1d", "1 day", "15m"], ["7d", "7 days", "2h"], ["30d", "30 days", "6h"]];
const LINES_MAX = 8;

function readChoice(query) {
  const from = query.get("from") ?? "1h";
  return { metric: query.getAll("metric"), attribute: query.getAll("attribute"), from, step: query.get("step") ?? RANGES.find(([value]) => value === from)?.[2] ?? "1m", agg: query.get("agg") ?? "avg", by: query.getAll("by"), raw: query.get("raw") === "true" };
}

function show(choice) {
  const query = new URLSearchParams({ from: choice.from, step: choice.step, agg: choice.agg });
  for (const name of choice.metric) query.append("metric", name);
  for (const one of choice.attribute) query.append("attribute", one);
  for (const one of choice.by) query.append("by", one);
  if (choice.raw) query.set("raw", "true");
  location.hash = `#metrics?${query}`;
}

// The points of all series on one time axis, as uPlot needs them.
function align(found) {
  const times = [...new Set(found.flatMap((one) => [...one.points.keys()]))].sort((a, b) => a - b);
  return [times, ...found.map((one) => times.map((at) => one.points.get(at) ?? null))];
}

async function readSeries(name, choice, signal) {
  const wanted = new URLSearchParams({ metric: name, from: choice.from, step: choice.step, agg: choice.agg, ...(choice.raw && { raw: "true" }) });
  for (const one of choice.attribute) wanted.append("attribute", one);
  for (const one of choice.by) wanted.append("by", one);
  const lines = new Map();
  let summary = null;
  await readLines(`v1/query?${wanted}`, signal, (some) => {
    for (const one of some) {
      if (one.summary) { summary = one.summary; continue; }
      const group = JSON.stringify(one.by ?? {});
      if (!lines.has(group)) lines.set(group, { title: [name, ...Object.values(one.by ?? {}).map((value) => (value === null ? "(missing)" : textOf(value)))].join(" "), points: new Map() });
      lines.get(group).points.set(Date.parse(one.ts) / 1000, typeof one.value === "number" ? one.value : null);
    }
  });
  return { lines: [...lines.values()], summary };
}

function useSeries(choice) {
  const [state, setState] = useState({ data: null, problem: null });
  const key = JSON.stringify(choice);
  useEffect(() => {
    const stop = new AbortController();
    setState({ data: null, problem: null });
    if (!choice.metric.length) return undefined;
    Promise.all(choice.metric.map((name) => readSeries(name, choice, stop.signal))).then((found) => {
      const lines = found.flatMap((one) => one.lines);
      setState({ problem: null, data: { shown: lines.slice(0, LINES_MAX), more: lines.length - LINES_MAX, points: align(lines.slice(0, LINES_MAX)), summaries: found.map((one) => one.summary) } });
    }, (problem) => { if (problem.name !== "AbortError") setState({ data: null, problem }); });
    return () => stop.abort();
  }, [key]);
  return state;
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

function Names({ choice, from }) {
  const [text, setText] = useState("");
  const found = (from.data?.values ?? []).filter((one) => String(one.value).toLowerCase().includes(text.toLowerCase()));
  const toggle = (name) => show({ ...choice, metric: choice.metric.includes(name) ? choice.metric.filter((one) => one !== name) : [...choice.metric, name].slice(-4) });
  return html`<aside class="fields" aria-label="Metrics"><h2>Names</h2><label>Search<input data-search type="search" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    <${Problem} problem=${from.problem} />
    ${from.data && !from.data.values.length && html`<p class="quiet">No metrics in this time. <code>sluice agent run --host-metrics-s 10</code> sends those of a machine.</p>`}
    <ul>${found.slice(0, 200).map((one) => html`<li key=${one.value}><div class="field"><button type="button" class="plain" aria-pressed=${choice.metric.includes(one.value) ? "true" : "false"} onClick=${() => toggle(one.value)}><code>${safe(one.value)}</code></button><span class="quiet">${count(one.count)}</span></div></li>`)}</ul></aside>`;
}

export function Metrics({ place }) {
  const choice = readChoice(place.query);
  const clock = useCell(zone);
  const found = useSeries(choice);
  const listed = useRef(false);  // until the first metrics arrive, the names are read again
  const names = useData(`v1/fields/values?${new URLSearchParams({ kind: "metrics", from: choice.from, field: "name", limit: "500" })}`, listed.current ? 0 : 10);
  listed.current = Boolean(names.data?.values.length);
  const change = (more) => show({ ...choice, ...more });
  if (lacksQuery(names.problem)) return html`<${Head} title="Metrics">Series by name and attribute.<//><${NoQueryService} />`;
  const partial = found.data?.summaries.filter((one) => one?.partial) ?? [];
  return html`<${Head} title="Metrics">Series from rollups where they exist, else from samples. Choose up to four names.<//>
    <div class="filters"><label>Time<select value=${choice.from} onChange=${(event) => change({ from: event.target.value, step: RANGES.find(([value]) => value === event.target.value)[2] })}>${RANGES.map(([value, title]) => html`<option value=${value}>last ${title}</option>`)}</select></label>
      <label>Step<input size="6" value=${choice.step} onChange=${(event) => change({ step: event.target.value })} /></label>
      <label>Aggregation<select value=${choice.agg} onChange=${(event) => change({ agg: event.target.value })}>${["avg", "min", "max", "sum", "count", "last", "p50", "p90", "p95", "p99"].map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      <label class="inline"><input type="checkbox" checked=${choice.by.includes("agent_id")} onChange=${(event) => change({ by: event.target.checked ? [...choice.by, "agent_id"] : choice.by.filter((one) => one !== "agent_id") })} />One line for each agent</label>
      <label class="inline"><input type="checkbox" checked=${choice.raw} onChange=${(event) => change({ raw: event.target.checked })} />Samples only</label>
      <${Attributes} choice=${choice} change=${change} /></div>
    <div class="explore"><${Names} choice=${choice} from=${names} /><div class="result"><${Problem} problem=${found.problem} />
      ${partial.map((one) => html`<div class="notice"><strong>Points may be missing.</strong> ${one.reasons.map(safe).join("; ")}</div>`)}
      ${!choice.metric.length ? html`<${Empty} title="No metric is chosen">Choose a name on the left.<//>` : found.data ? (found.data.shown.length
    ? html`<${Chart} data=${found.data.points} names=${found.data.shown.map((one) => safe(one.title))} utc=${clock === "utc"} label=${`${choice.agg} of ${choice.metric.map(safe).join(", ")}`} />
        <ul class="legend">${found.data.shown.map((one) => html`<li>${safe(one.title)}: ${count(one.points.size)} ${one.points.size === 1 ? "point" : "points"}</li>`)}${found.data.more > 0 && html`<li>${count(found.data.more)} more lines are not drawn</li>`}</ul>`
    : html`<${Empty} title="No points in this time">Choose a longer time.<//>`) : !found.problem && html`<${Loading} />`}
      ${choice.attribute.length === 0 && choice.metric.map((name) => html`<${Command} text=${command("sluice metrics", name, "--since", choice.from, "--step", choice.step, "--agg", choice.agg, ...choice.by.flatMap((one) => ["--by", one]))} />`)}</div></div>`;
}
