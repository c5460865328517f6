// Traces: what services do, and one trace as a waterfall with the logs of the same trace.
import { command, count, go, html, placeUrl, safe, useCell, useData, useEffect, useMemo, useRef, useState, zone } from "../lib.js";
import { Command, Copy, Empty, Head, NoQueryService, Problem, Loaded, Table, Time, lacksQuery } from "../parts.js";
import { readLines, readTrace, shownValue } from "../stream.js";
import { decideKey, isError, listOf, makeTrace, nsOf, shownRows, spanTime } from "../trace_rows.js";
import { selector } from "../logql.js";
import { Detail, Lines, Missing, keyOf } from "./explore.js";

const ROW = 26, AROUND = 10, INDENTS_MAX = 24, LABEL_CHARS = 200;
const LIMIT = 10_000, LIMIT_MAX = 100_000, LOGS_MAX = 1000, LOGS_AROUND_S = 900, SERVICES_SHOWN = 8, PARTS_SHOWN = 200;
const short = (text) => { const shown = safe(text); return shown.length > LABEL_CHARS ? `${shown.slice(0, LABEL_CHARS)}…` : shown; };
const MS_MAX = 8.64e15;  // the last time that a browser knows
const NS_MAX = 9_223_372_036_000_000_000n;  // the last time of a record, in 2262
const isoOf = (ns) => new Date(Math.max(-MS_MAX, Math.min(MS_MAX, Number(ns / 1_000_000n)))).toISOString();
const nameOf = (row) => (row.missing ? `missing span ${row.id}` : row.span.name || "(no name)");
const some = (number, what) => html`<strong>${count(number)}</strong> ${what}${number === 1 ? "" : "s"}`;
const serviceOf = (span) => span.service || "(no service)";

// --- the list: open an id, and the operations of services ---

function Open() {
  const [typed, setTyped] = useState("");
  return html`<form class="filters" role="search" onSubmit=${(event) => { event.preventDefault(); if (typed.trim()) go("trace", [typed.trim()]); }}>
    <label>Trace id<input data-search size="38" autocomplete="off" spellcheck="false" value=${typed} placeholder="32 hexadecimal digits" onInput=${(event) => setTyped(event.target.value)} /></label><button type="submit">Open</button></form>`;
}

const spansUrl = (query) => `#explore?${new URLSearchParams({ ...(query && { query }), kind: "spans", from: "1h" })}`;
const ofOperation = (row, values = {}, stage = "") => spansUrl(`${selector({ ...(row.service && { service: row.service }), name: row.name, ...values })}${stage}`);

// A double above 2^53 may be above the number that it is of, by up to half of 1024 in 64 bits.
const leastNear = (number) => (Math.abs(number) > Number.MAX_SAFE_INTEGER ? String(BigInt(number) - 1024n) : number);

const OPERATIONS = [
  { name: "Service", cell: (row) => safe(serviceOf(row)) },
  { name: "Operation", wide: true, cell: (row) => html`<a href=${ofOperation(row)}>${short(row.name || "(no name)")}</a>` },
  { name: "Spans", numeric: true, cell: (row) => count(row.spans) },
  { name: "Errors", numeric: true, cell: (row) => (row.errors ? html`<a class="bad" href=${ofOperation(row, { status: "error" })}>${count(row.errors)}</a>` : "0") },
  { name: "Median", numeric: true, cell: (row) => spanTime(row.duration_p50_ns) },
  { name: "95 %", numeric: true, cell: (row) => spanTime(row.duration_p95_ns) },
  { name: "Longest", numeric: true, cell: (row) => html`<a href=${ofOperation(row, {}, ` | duration_ns >= ${leastNear(row.duration_max_ns)}`)}>${spanTime(row.duration_max_ns)}</a>` },
];

function Operations() {
  const from = useData("v1/operations?from=1h&limit=200");
  if (lacksQuery(from.problem)) return html`<${Head} title="Traces">Requests as they pass through services.<//><${NoQueryService} />`;
  return html`<${Head} title="Traces">Open a trace by its id, or choose a span of an operation. The operations of the last hour, the most frequent first.<//><${Open} />
    <${Loaded} from=${from}>${(page) => html`<${Missing} summary=${page.summary} />
      <${Table} caption="Operations" columns=${OPERATIONS} rows=${page.operations} empty=${html`<${Empty} title="No spans in the last hour">Send spans with OTLP, or <a href=${spansUrl("")}>search a longer time</a>.<//>`} />
      ${page.more && html`<p class="quiet">There are more operations: the first ${count(page.operations.length)} are shown.</p>`}`}<//>
    <${Command} text=${command("sluice query", "--since", "1h", "--kind", "spans")} />`;
}

// --- the waterfall ---

function Bar({ row }) {
  const late = Math.min(row.from, 1), share = Math.min(row.share, 1 - late);
  const tone = row.missing ? "missing" : `tint-${row.tint}${isError(row.span) ? " bad" : ""}${row.length < 0 ? " odd" : ""}`;
  return html`<span class="track" aria-hidden="true"><span class=${`span ${tone}`} style=${{ left: `${late * 100}%`, width: `${share * 100}%` }}></span></span>`;
}

const marksOf = (row) => [row.parent?.missing && "its parent is missing", row.cycle && "its parents form a circle", row.duplicate && "its id occurs again", !row.missing && row.length < 0 && "ends before it starts", !row.missing && row.start === null && "without a time"].filter(Boolean);

function labelOf(row, marks) {
  if (row.missing) return `${short(nameOf(row))}: it is not in the store`;
  return [short(nameOf(row)), short(serviceOf(row.span)), spanTime(row.span.duration_ns), `starts after ${spanTime(row.offset)}`, isError(row.span) && "error", ...marks].filter(Boolean).join(", ");
}

function Row({ row, at, current, shut, open, turn }) {
  const marks = marksOf(row), bad = !row.missing && isError(row.span), children = row.children.length > 0;
  return html`<div id=${`span-row-${row.place}`} class=${`spanrow${bad ? " bad" : ""}${current ? " chosen" : ""}`} role="treeitem" aria-level=${row.depth + 1} aria-posinset=${row.position} aria-setsize=${row.size} aria-selected=${current ? "true" : "false"} aria-expanded=${children ? String(!shut) : null} aria-label=${labelOf(row, marks)} style=${{ top: `${at * ROW}px` }} onClick=${open}>
    <span class="what" style=${{ paddingLeft: `${Math.min(row.depth, INDENTS_MAX) * 12}px` }}><span class=${`turn${children ? "" : " leaf"}`} aria-hidden="true" onClick=${(event) => { if (!children) return; event.stopPropagation(); turn(); }}>${children ? (shut ? "▸" : "▾") : "·"}</span>
      <span class=${`dot ${row.missing ? "missing" : `tint-${row.tint}`}`} aria-hidden="true"></span>${bad && html`<strong class="mark" title=${short(row.span.status_message || "error")}>error</strong>`}<span class="name" title=${short(nameOf(row))}>${short(nameOf(row))}</span>
      <span class="quiet">${row.missing ? "not in the store" : short(serviceOf(row.span))}</span>${shut && html`<span class="quiet">+${count(row.end - row.place - 1)}</span>`}${marks.map((one) => html`<span class="mark warn">${one}</span>`)}</span>
    <span class="long">${row.missing ? "" : spanTime(row.span.duration_ns)}</span><${Bar} row=${row} /></div>`;
}

const TICKS = [0, 0.25, 0.5, 0.75, 1];

// Only the rows in view exist, so a trace of 100 000 spans scrolls like one of 100.
function Waterfall({ trace, chosen, open }) {
  const [closed, setClosed] = useState(new Set()), [cursor, setCursor] = useState(chosen ?? trace.rows[0].key), [top, setTop] = useState(0), [height, setHeight] = useState(600);
  const box = useRef(null);
  const shown = useMemo(() => shownRows(trace.rows, closed), [trace, closed]);
  const at = Math.max(0, shown.findIndex((row) => row.key === cursor));
  useEffect(() => {
    const watch = new ResizeObserver(() => setHeight(box.current?.clientHeight || 600));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const reveal = (place) => {
    const from = place * ROW, view = box.current.clientHeight - ROW;  // the axis covers one row
    if (from < box.current.scrollTop || from + ROW > box.current.scrollTop + view) box.current.scrollTop = Math.max(0, from - view / 2);
  };
  useEffect(() => {
    const row = chosen && trace.rows.find((one) => one.key === chosen);
    if (!row) return;
    const opened = new Set(closed);
    for (let above = row.parent; above; above = above.parent) opened.delete(above.key);
    if (opened.size !== closed.size) setClosed(opened);
    setCursor(chosen);
    reveal(shownRows(trace.rows, opened).indexOf(row));
  }, [chosen, trace]);
  const turn = (key) => setClosed((old) => { const next = new Set(old); if (!next.delete(key)) next.add(key); return next; });
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter") { event.preventDefault(); open(shown[at]); return; }
    const done = decideKey(event.key, shown[at], at, shown, closed);
    if (!done) return;
    event.preventDefault();
    if (done.open ?? done.close) turn(done.open ?? done.close);
    if (done.to !== undefined) { setCursor(shown[done.to].key); reveal(done.to); }
  };
  const first = Math.max(0, Math.floor(top / ROW) - AROUND), last = Math.min(shown.length, Math.ceil((top + height) / ROW) + AROUND);
  const inView = shown.slice(first, last).map((row, index) => [row, first + index]);
  if (at < first || at >= last) inView.push([shown[at], at]);  // the row that the keyboard is on always exists
  const all = trace.rows.filter((row) => row.children.length && row.parent).map((row) => row.key);
  return html`<div class="row"><button type="button" class="plain" disabled=${!closed.size} onClick=${() => setClosed(new Set())}>Open all</button><button type="button" class="plain" disabled=${!all.length} onClick=${() => { setClosed(new Set(all)); setCursor(trace.rows[0].key); box.current.scrollTop = 0; }}>Close all below the first</button><span class="quiet">↑ ↓ move, ← → close and open, Enter shows a span.</span></div>
    <div class="waterfall" ref=${box} tabindex="0" role="tree" aria-label="Spans" aria-activedescendant=${`span-row-${shown[at].place}`} onScroll=${(event) => setTop(event.target.scrollTop)} onKeyDown=${press}>
    <div class="axis" role="none" aria-hidden="true"><span class="what">Span</span><span class="long">Duration</span><span class="track">${TICKS.map((one) => html`<span class="tick" title=${trace.first === null ? "" : isoOf(trace.first + BigInt(Math.round(trace.total * one)))} style=${{ left: `${one * 100}%` }}>${spanTime(trace.total * one)}</span>`)}</span></div>
    <div class="canvas" role="none" style=${{ height: `${shown.length * ROW}px` }}>${inView.map(([row, place]) => html`<${Row} key=${row.place} row=${row} at=${place} current=${row.key === shown[at].key} shut=${closed.has(row.key)} open=${() => { setCursor(row.key); open(row); }} turn=${() => turn(row.key)} />`)}</div></div>`;
}

// --- one span ---

const Pairs = ({ group, of }) => Object.entries(of ?? {}).map(([name, value]) => html`<dt><code>${safe(group ? `${group}.${name}` : name)}</code></dt><dd class="text">${safe(shownValue(value))}</dd>`);

const Others = ({ of, what }) => of.length > PARTS_SHOWN && html`<p class="quiet">${some(of.length - PARTS_SHOWN, `later ${what}`)} not shown here: copy the JSON of the span.</p>`;

function Events({ text, start }) {
  const found = listOf(text);
  if (found === null) return html`<h3>Events</h3><pre>${safe(text)}</pre>`;
  if (!found.length) return null;
  return html`<h3>Events</h3><dl class="facts">${found.slice(0, PARTS_SHOWN).map((one) => {
    const at = nsOf(one.ts);
    return html`<dt>${at !== null && start !== null ? at < start ? `${spanTime(Number(start - at))} before the start` : `after ${spanTime(Number(at - start))}` : "without a time"}</dt><dd><strong>${safe(one.name || "(no name)")}</strong> ${one.ts && html`<code class="quiet">${safe(one.ts)}</code>`}<dl class="facts"><${Pairs} of=${one.attributes} /></dl></dd>`;
  })}</dl><${Others} of=${found} what="event" />`;
}

function Links({ text }) {
  const found = listOf(text);
  if (found === null) return html`<h3>Links</h3><pre>${safe(text)}</pre>`;
  if (!found.length) return null;
  return html`<h3>Links</h3><dl class="facts">${found.slice(0, PARTS_SHOWN).map((one) => html`<dt>span <code>${safe(one.span_id)}</code></dt><dd>${one.trace_id ? html`<a href=${placeUrl("trace", [one.trace_id], one.span_id ? { span: one.span_id } : null)}>trace <code>${safe(one.trace_id)}</code></a>` : "without a trace"}<dl class="facts"><${Pairs} of=${one.attributes} /></dl></dd>`)}</dl><${Others} of=${found} what="link" />`;
}

function Span({ row, show, close }) {
  const { span } = row;
  if (row.missing) return html`<section class="detail card" aria-label="Span"><div class="head"><h2>${short(nameOf(row))}</h2><button type="button" class="plain" onClick=${close} aria-label="Close the span">✕</button></div>
    <p>It is the parent of ${some(row.children.length, "span")}. It is not in the store: it was not sampled, not sent yet, or lost on its way.</p></section>`;
  const end = row.start === null ? null : row.start + BigInt(Math.round(row.length));
  return html`<section class="detail card" aria-label="Span"><div class="head"><h2>${short(nameOf(row))}</h2><div class="tools"><${Copy} text=${JSON.stringify(span)} label="Copy JSON" /><a href=${ofOperation(span)}>Spans of this operation</a><a href=${placeUrl("batches", [keyOf(span)])}>Batch of the span</a><button type="button" class="plain" onClick=${close} aria-label="Close the span">✕</button></div></div>
    ${marksOf(row).map((one) => html`<p class="notice">${one}</p>`)}
    <dl class="facts"><dt>name</dt><dd>${safe(nameOf(row))}</dd><dt>service</dt><dd>${safe(serviceOf(span))}</dd>
      <dt>status</dt><dd>${isError(span) ? html`<strong class="bad">error</strong>` : safe(span.status)} ${safe(span.status_message)}</dd>
      <dt>start</dt><dd><${Time} at=${span.ts} /> <code class="quiet">${safe(span.ts)}</code>, after ${spanTime(row.offset)}</dd>
      ${end !== null && html`<dt>end</dt><dd>after ${spanTime(row.offset + row.length)}</dd>`}
      <dt>duration</dt><dd>${spanTime(span.duration_ns)} <code class="quiet">${safe(span.digits?.duration_ns ?? span.duration_ns)} ns</code></dd>
      <dt>kind</dt><dd>${safe(span.span_kind)}</dd><dt>span id</dt><dd><code>${safe(span.span_id)}</code></dd>
      <dt>parent</dt><dd>${row.parent ? html`<button type="button" class="copy" onClick=${() => show(row.parent)}>${short(nameOf(row.parent))}</button> <code>${safe(span.parent_id)}</code>` : span.parent_id ? html`<code>${safe(span.parent_id)}</code>` : "none"}</dd>
      ${span.trace_state && html`<dt>trace state</dt><dd>${safe(span.trace_state)}</dd>`}<dt>host</dt><dd>${safe(span.host ?? "–")}</dd><dt>agent</dt><dd>${safe(span.agent_id)}</dd></dl>
    <${Events} text=${span.events} start=${row.start} /><${Links} text=${span.links} />
    ${span.attributes && html`<h3>Attributes</h3><dl class="facts"><${Pairs} of=${span.attributes} /></dl>`}
    ${span.resource && html`<h3>Resource</h3><dl class="facts"><${Pairs} of=${span.resource} /></dl>`}</section>`;
}

// --- the logs of the trace ---

function useLogs(wanted) {
  const path = `v1/query/stream?${wanted}`;
  const [state, setState] = useState({ records: [], summary: null, problem: null });
  useEffect(() => {
    const stop = new AbortController();
    setState({ records: [], summary: null, problem: null });
    const found = [];
    let summary = null;
    readLines(path, stop.signal, (lines) => { for (const line of lines) { if (line.seq !== undefined) found.push(line); else if (line.summary) summary = line.summary; } })
      .then(() => setState({ records: found.reverse(), summary, problem: null }), (problem) => { if (problem.name !== "AbortError") setState({ records: [], summary: null, problem }); });
    return () => stop.abort();
  }, [path]);
  return state;
}

const logsSearch = (id, trace) => {
  const around = BigInt(LOGS_AROUND_S) * 1_000_000_000n, within = (ns) => isoOf(ns < 0n ? 0n : ns > NS_MAX ? NS_MAX : ns);
  const range = trace.first === null ? { from: "1h" } : { from: within(trace.first - around), to: within(trace.last + around) };
  return new URLSearchParams({ ...range, query: selector({ trace_id: id }) });
};

function Logs({ id, trace, show }) {
  const [record, setRecord] = useState(null);
  const wanted = logsSearch(id, trace), found = useLogs(`${wanted}&limit=${LOGS_MAX}`);
  const pick = (one) => { setRecord(one); const row = one.span_id && trace.rows.find((each) => each.id === one.span_id && !each.missing); if (row) show(row); };
  const choose = (query) => { wanted.set("query", query); location.hash = `#explore?${wanted}`; };
  return html`<section><h2>Logs of the trace</h2><p class="quiet">${found.summary ? some(found.records.length, "record") : found.problem ? "" : "Searching…"}${found.summary?.more ? ", the newest; there are more" : ""}, from 15 minutes before the trace to 15 minutes after it. <a href=${`#explore?${wanted}`}>Open in Explore</a></p>
    <${Problem} problem=${found.problem} /><${Missing} summary=${found.summary} />
    ${found.records.length > 0 && html`<${Lines} records=${found.records} columns=${[]} open=${pick} chosen=${record && keyOf(record)} label="Logs of the trace, oldest first" />`}
    ${record && html`<${Detail} record=${record} query=${wanted.get("query")} kind="logs" choose=${choose} close=${() => setRecord(null)} />`}</section>`;
}

// --- one trace ---

function Legend({ services }) {
  return html`<div class="row legend"><span>Colours:</span>${services.slice(0, SERVICES_SHOWN).map((one) => html`<span><span class=${`dot tint-${one.tint}`} aria-hidden="true"></span> ${short(one.name || "(no service)")} ${count(one.spans)}</span>`)}${services.length > SERVICES_SHOWN && html`<span>and ${count(services.length - SERVICES_SHOWN)} others</span>`}</div>`;
}

function Odd({ trace }) {
  const odd = [[trace.orphans, "with a parent that is not in the store"], [trace.cycles, "whose parents form a circle"], [trace.duplicates, "with the id of another span"]].filter(([number]) => number);
  return odd.length > 0 && html`<div class="notice" role="status">${odd.map(([number, what]) => html`<div>${some(number, "span")} ${what}.</div>`)}</div>`;
}

function Shown({ id, data, query }) {
  const trace = useMemo(() => makeTrace(data.spans), [data]);
  if (!trace.rows.length) return html`<${Missing} summary=${data.summary} /><${Empty} title="No span could be read">The reasons are above.<//>`;
  const chosen = query.get("span"), row = chosen === null ? null : trace.rows.find((one) => one.key === chosen);
  const at = (span) => { const next = new URLSearchParams(query); if (span) next.set("span", span.key); else next.delete("span"); go("trace", [id], next); };
  const show = (one) => at(one), close = () => at(null), limit = data.spans.length;
  const asked = Number(query.get("limit") ?? LIMIT), longer = new URLSearchParams(query), later = new URLSearchParams(query);
  longer.set("limit", String(LIMIT_MAX));
  later.set("from", data.spans.at(-1).ts ?? "");
  later.delete("span");
  return html`<div class="summary" role="status"><span>${some(limit, "span")}</span><span>${some(trace.services.length, "service")}</span><span><strong>${spanTime(trace.total)}</strong> in total</span><span class=${trace.errors ? "bad" : ""}>${some(trace.errors, "error")}</span><span>${some(trace.deepest, "level")}</span>${trace.first !== null && html`<span><${Time} at=${isoOf(trace.first)} /> to <${Time} at=${isoOf(trace.last)} /></span>`}</div>
    ${data.more && html`<div class="notice" role="status"><strong>The trace is cut.</strong> The first ${count(limit)} spans are shown; later ones exist.${limit === asked && asked < LIMIT_MAX ? html` <a href=${placeUrl("trace", [id], longer)}>Read up to ${count(LIMIT_MAX)}</a>` : ""} <a href=${placeUrl("trace", [id], later)}>Read on from the last of them</a></div>`}
    <${Missing} summary=${data.summary} /><${Odd} trace=${trace} /><${Legend} services=${trace.services} />
    <${Waterfall} key=${id} trace=${trace} chosen=${row?.key ?? null} open=${show} />
    ${chosen !== null && !row && html`<div class="notice" role="status">The trace has no span <code>${safe(chosen)}</code>${data.more ? " among those that are shown" : ""}.</div>`}
    ${row && html`<${Span} row=${row} show=${show} close=${close} />`}
    <${Logs} id=${data.trace_id} trace=${trace} show=${show} />`;
}

function One({ id, query }) {
  useCell(zone);
  const wanted = new URLSearchParams({ limit: query.get("limit") ?? String(LIMIT) });
  for (const name of ["from", "to"]) if (query.get(name)) wanted.set(name, query.get(name));
  const from = useData(`v1/traces/${encodeURIComponent(id)}?${wanted}`, 0, readTrace);
  const text = command("sluice query", selector({ trace_id: id }), "--kind", "spans", "--since", query.get("from") ?? "30d");
  if (lacksQuery(from.problem)) return html`<${Head} title="Trace" /><${NoQueryService} />`;
  const unknown = from.problem?.status === 404;
  return html`<p><a href="#trace">← All traces</a></p><${Head} title="Trace" tools=${html`<${Copy} text=${location.href} label="Copy link" /><button type="button" onClick=${from.reload}>Read again</button>`}><code>${short(id)}</code><//>
    ${unknown ? html`<${Empty} title="No trace with this id">Check the id. Its spans were not sent, are not accepted yet, or were deleted. <a href=${`#explore?${new URLSearchParams({ from: "7d", query: selector({ trace_id: id }) })}`}>Search its logs</a><//><${Open} />`
    : html`<${Loaded} from=${from}>${(data) => html`<${Shown} id=${id} data=${data} query=${query} />`}<//>`}
    <${Command} text=${text} />`;
}

export function Trace({ place }) {
  const id = place.rest.join("/").trim();
  return id ? html`<${One} key=${id} id=${id} query=${place.query} />` : html`<${Operations} />`;
}
