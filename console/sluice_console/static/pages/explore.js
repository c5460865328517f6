// Explore: records and series of a LogQL query, with facets, a histogram, live tail, lines around a line, and downloads.
import { api, bytes, command, count, duration, html, placeUrl, safe, timeText, useCell, useData, useEffect, useMemo, useRef, useState, zone } from "../lib.js";
import { SeriesChart } from "../chart.js";
import { Editor, WrongText } from "../editor.js";
import { chosenValues, isExcluded, labelOf, quote, selector, toggleExcluded, toggleValue, withoutChoice } from "../logql.js";
import { Command, Complete, Copy, Empty, Head, NoQueryService, Problem, Time, lacksQuery } from "../parts.js";
import { parseLine, readLines, shownValue, textOf } from "../stream.js";
import { isError, spanTime } from "../trace_rows.js";

const RANGES = [["5m", "5 min"], ["15m", "15 min"], ["1h", "1 hour"], ["6h", "6 hours"], ["1d", "1 day"], ["7d", "7 days"], ["30d", "30 days"]];
const ROW = 24, LIMIT = 2000, TAIL_MAX = 5000;
const tone = (record) => (isError(record) || record.level === "error" || record.level === "fatal" ? "bad" : record.level === "warn" ? "warn" : "");

// The search is the address: every change is a new address, so that it can be shared and undone.
function readSearch(query) {
  return { query: query.get("query") ?? "", from: query.get("from") ?? "1h", to: query.get("to") ?? "", kind: query.get("kind") ?? "logs", columns: query.getAll("column") };
}

const rangeOf = (search) => ({ from: search.from, ...(search.to && { to: search.to }), ...(search.kind !== "logs" && { kind: search.kind }) });

function parameters(search, more = {}) {
  return new URLSearchParams({ ...rangeOf(search), ...(search.query.trim() && { query: search.query }), ...more });
}

function show(search) {
  const query = parameters(search);
  for (const name of search.columns) query.append("column", name);
  location.hash = `#explore?${query}`;
}

export const keyOf = (record) => `${record.agent_id}/${record.boot_id}/${record.seq}`;

// The name of the sender, as `sluice query` prints it.
const senderOf = (record) => record.service ?? record.host ?? record.agent_id;

// --- the search ---

const BEGUN = { records: [], summary: null, problem: null, running: true, progress: null };

// Gateways name what they accepted about a second later: a search that finds nothing is repeated for so long.
const EMPTY_MS = 3000, REPEAT_MS = 300;

// `path` null searches nothing.
function useSearch(path) {
  const [state, setState] = useState(BEGUN);
  const [round, setRound] = useState(0);
  const began = useRef(0);
  useEffect(() => { began.current = Date.now(); }, [path]);
  useEffect(() => {
    const isEmpty = state.path === path && !state.running && state.summary && !state.records.length && !state.summary.complete_now;
    if (!isEmpty || Date.now() - began.current > EMPTY_MS) return undefined;
    const timer = setTimeout(() => setRound((number) => number + 1), REPEAT_MS);
    return () => clearTimeout(timer);
  }, [state, path]);
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    setState((old) => (old.path === path && old.summary && !old.records.length ? { ...old, progress: null } : { ...BEGUN, path }));
    readLines(path, stop.signal, (lines) => setState((old) => {
      const next = { ...old, running: true, records: [...old.records, ...lines.filter((line) => !line.summary && !line.progress)] };
      for (const line of lines) { if (line.summary) next.summary = line.summary; else if (line.progress) next.progress = line.progress; }
      return next;
    })).then(() => setState((old) => ({ ...old, running: false })), (problem) => {
      if (problem.name !== "AbortError") setState((old) => ({ ...old, problem, running: false }));
    });
    return () => stop.abort();
  }, [path, round]);
  return { ...(state.path === path ? state : BEGUN), again: () => setRound((number) => number + 1) };
}

function useTail(search, live, paused) {
  const [state, setState] = useState({ records: [], state: null, problem: null });
  const place = useRef(null), known = useRef(new Set());
  const path = parameters(search).toString();
  useEffect(() => { place.current = null; known.current = new Set(); setState({ records: [], state: null, problem: null }); }, [path, live]);
  useEffect(() => {
    if (!live || paused) return undefined;
    const wanted = parameters({ ...search, from: "1m", to: "" }, { highlight: "true", limit: "500" });
    if (place.current) wanted.set("after", place.current);
    const source = new EventSource(`v1/tail?${wanted}`);
    let waiting = [], frame = 0;
    const flush = () => {
      frame = 0;
      const some = waiting.filter((record) => !known.current.has(keyOf(record)));
      waiting = [];
      for (const record of some) known.current.add(keyOf(record));
      if (!some.length) return;
      setState((old) => {
        const records = [...some.reverse(), ...old.records].slice(0, TAIL_MAX);
        if (known.current.size > 4 * TAIL_MAX) known.current = new Set(records.map(keyOf));
        return { ...old, records };
      });
    };
    source.addEventListener("record", (event) => { waiting.push(parseLine(event.data)); frame ||= requestAnimationFrame(flush); });
    source.addEventListener("state", (event) => { const found = JSON.parse(event.data); place.current = found.position; setState((old) => ({ ...old, state: found, problem: null })); });
    source.addEventListener("problem", (event) => { const found = JSON.parse(event.data); source.close(); setState((old) => ({ ...old, problem: { title: found.title, message: found.detail } })); });
    source.onerror = () => setState((old) => (old.problem ? old : { ...old, problem: { title: "The live tail was interrupted", message: source.readyState === EventSource.CLOSED ? "The query service refused it. Stop the live tail and start it again." : "It continues by itself when the query service responds." } }));
    return () => { source.close(); cancelAnimationFrame(frame); };
  }, [path, live, paused]);
  return state;
}

// --- histogram: drag to zoom ---

function Histogram({ search, ready, zoom }) {
  const by = { logs: { by: "level", top: "8" }, spans: { by: "status", top: "3" } }[search.kind] ?? {};
  const from = useData(ready ? `v1/histogram?${parameters(search, { buckets: "80", ...by })}` : null);
  const [drag, setDrag] = useState(null);
  const box = useRef(null);
  useCell(zone);
  if (from.problem) return html`<${Problem} problem=${from.problem} again=${from.reload} />`;
  if (!from.data) return html`<div class="histogram" aria-busy="true"></div>`;
  const { buckets, step_ms: step, split, summary } = from.data;
  const top = Math.max(1, ...buckets.map((one) => one.count));
  const at = (event) => Math.max(0, Math.min(buckets.length - 1, Math.floor((event.clientX - box.current.getBoundingClientRect().left) / box.current.clientWidth * buckets.length)));
  const finish = () => {
    if (drag) {
      const [first, last] = [Math.min(...drag), Math.max(...drag)];
      zoom(new Date(buckets[first].ts), new Date(new Date(buckets[last].ts).getTime() + step));
    }
    setDrag(null);
  };
  const loud = (bucket) => (split ? split.values.reduce((sum, value, index) => sum + (value === "error" || value === "fatal" ? bucket.counts[index] : 0), 0) : 0);
  const label = `${count(summary.results)} records in ${buckets.length} buckets`;
  return html`<figure class="histogram"><svg ref=${box} viewBox=${`0 0 ${buckets.length} 100`} preserveAspectRatio="none" role="img" aria-label=${label}
      onPointerDown=${(event) => { event.currentTarget.setPointerCapture(event.pointerId); setDrag([at(event), at(event)]); }}
      onPointerMove=${(event) => drag && setDrag([drag[0], at(event)])} onPointerUp=${finish} onPointerCancel=${() => setDrag(null)}>
      ${drag && html`<rect class="chosen" x=${Math.min(...drag)} width=${Math.abs(drag[1] - drag[0]) + 1} height="100" />`}
      ${buckets.map((one, index) => { const height = one.count / top * 96, bad = loud(one) / top * 96;
    return html`<g><title>${timeText(new Date(one.ts), false)}: ${count(one.count)}</title><rect class="all" x=${index + 0.08} width="0.84" y=${100 - height} height=${height} />${bad > 0 && html`<rect class="loud" x=${index + 0.08} width="0.84" y=${100 - bad} height=${bad} />`}</g>`; })}</svg>
    <figcaption><span>${buckets.length ? timeText(new Date(buckets[0].ts), false) : ""}</span><span>${label}${split ? "; errors in red" : ""}. Drag to zoom.</span><span>${buckets.length ? timeText(new Date(buckets.at(-1).ts), false) : ""}</span></figcaption></figure>`;
}

// --- facets: labels with their values; a click selects a value, a second one removes it ---

const OPEN_FACETS = { logs: ["service", "level"], spans: ["service", "status"], metrics: ["name", "service"], entries: ["agent_id"] };
const VALUES_SHOWN = 10, NOT_FACETS = new Set(["seq", "value", "duration_ns", "observed_ns"]);

function Values({ search, one, choose }) {
  // Without the choice of this label, its other values have counts too.
  const path = parameters({ ...search, query: withoutChoice(search.query, one.label) }, { field: one.field, limit: String(VALUES_SHOWN) });
  const from = useData(`v1/fields/values?${path}`);
  if (from.problem) return html`<${Problem} problem=${from.problem} />`;
  if (!from.data) return html`<p class="quiet">Counting…</p>`;
  const { values, records, missing, distinct } = from.data, chosen = chosenValues(search.query, one.label);
  const unlisted = chosen.filter((value) => !values.some((each) => String(each.value) === value)).map((value) => ({ value, count: null }));
  const row = ({ value, count: number, cut }) => {
    const text = String(value), is = chosen.includes(text), not = isExcluded(search.query, one.label, text);
    return html`<li key=${text}><button type="button" class="share" disabled=${cut} aria-pressed=${is ? "true" : "false"} title=${safe(text)} onClick=${() => choose(toggleValue(search.query, one.label, text))}><svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true"><rect width=${records && number ? number / records * 100 : 0} height="1" /></svg><span class="text">${safe(text) || html`<em>empty</em>`}</span></button>
      <span class="quiet">${number === null ? "" : count(number)}</span>
      ${!cut && html`<button type="button" class="copy" aria-pressed=${not ? "true" : "false"} aria-label=${`Exclude ${safe(one.label)} ${safe(text)}`} title="Exclude" onClick=${() => choose(toggleExcluded(search.query, one.label, text))}>−</button>`}</li>`;
  };
  return html`<ul class="values">${[...values, ...unlisted].map(row)}
    ${distinct > values.length && html`<li class="quiet">${count(distinct - values.length)} more values</li>`}${missing > 0 && html`<li class="quiet">${count(missing)} without it</li>`}</ul>`;
}

function Facets({ search, ready, choose, toggle }) {
  const from = useData(ready ? `v1/fields?${parameters(search)}` : null), data = ready ? from.data : null;
  const [turned, setTurned] = useState({});
  const first = OPEN_FACETS[search.kind] ?? [], chosen = (label) => chosenValues(search.query, label).length > 0;
  const place = (label) => (first.includes(label) ? first.indexOf(label) : first.length);
  const found = (data?.fields ?? []).filter((one) => one.label && !NOT_FACETS.has(one.label)).sort((a, b) => place(a.label) - place(b.label));
  const isOpen = (label) => turned[label] ?? (first.includes(label) || chosen(label));
  return html`<aside class="fields" aria-label="Facets"><h2>Labels</h2>
    ${from.problem && html`<p class="quiet">${safe(from.problem.message)}</p>`}
    ${data && !found.length && html`<p class="quiet">None in this search.</p>`}
    ${data?.sampled && html`<p class="quiet">Counts are of the newest ${count(data.records)} records.</p>`}
    <ul>${found.map((one) => html`<li key=${one.field}>
      <div class="field"><button type="button" class="plain" aria-expanded=${isOpen(one.label) ? "true" : "false"} onClick=${() => setTurned({ ...turned, [one.label]: !isOpen(one.label) })}><code>${safe(one.label)}</code></button><span class="quiet" title=${`about ${count(one.distinct)} values in ${count(one.count)} records`}>${count(one.distinct)}</span>
        <button type="button" class="copy" aria-pressed=${search.columns.includes(one.field) ? "true" : "false"} aria-label=${`Column ${safe(one.label)}`} title="Show as a column" onClick=${() => toggle(one.field)}>▥</button></div>
      ${isOpen(one.label) && html`<${Values} search=${search} one=${one} choose=${choose} />`}</li>`)}</ul></aside>`;
}

// --- lines ---

function Marked({ text, ranges }) {
  if (!ranges?.length) return safe(text);
  const parts = [];
  let end = 0;
  for (const [start, stop] of ranges) { parts.push(safe(text.slice(end, start)), html`<mark>${safe(text.slice(start, stop))}</mark>`); end = stop; }
  return [...parts, safe(text.slice(end))];
}

export function bodyOf(record) {
  if (record.body !== undefined) return record.body;
  if (record.duration_ns !== undefined) return record.name || "(no name)";
  if (record.name !== undefined) return `${record.name} ${record.value}`;
  return `${record.key ?? ""} ${record.value ?? ""}`;
}

function fieldOf(record, field) {
  const [first, ...rest] = field.split(".");
  if (!rest.length) return record[first];
  let key = rest.join(".");
  if (key.startsWith('"')) { try { key = JSON.parse(key); } catch { /* a name that begins with a quote */ } }
  return textOf(record[first]?.[key]);
}

// Only the rows in view exist, so 100 000 records scroll like 100. A final CR, of files with CRLF, is in the detail only.
export function Lines({ records, columns, open, chosen, label }) {
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const box = useRef(null);
  useEffect(() => {
    const watch = new ResizeObserver(() => setHeight(box.current?.clientHeight ?? 600));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(top / ROW) - 10), last = Math.min(records.length, Math.ceil((top + height) / ROW) + 10);
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !records.length) return;
    event.preventDefault();
    const at = Math.max(0, Math.min(records.length - 1, (chosen ? records.findIndex((one) => keyOf(one) === chosen) : -1) + step));
    open(records[at]);
    if (at * ROW < top || (at + 2) * ROW > top + height) box.current.scrollTop = at * ROW - height / 2;
  };
  return html`<div class="lines" ref=${box} tabindex="0" role="region" aria-label=${label} onScroll=${(event) => setTop(event.target.scrollTop)} onKeyDown=${move}>
    <div class="canvas" style=${{ height: `${records.length * ROW}px` }}>${records.slice(first, last).map((record, index) => {
    const key = keyOf(record);
    return html`<button type="button" key=${key} class=${`line ${tone(record)}${chosen === key ? " chosen" : ""}`} style=${{ top: `${(first + index) * ROW}px` }} onClick=${() => open(record)}>
      <span class="at">${record.ts ? timeText(new Date(record.ts)) : "–"}</span>${record.level ? html`<span class="level">${safe(record.level)}</span>` : ""}${record.duration_ns === undefined ? html`<span class="from">${safe(senderOf(record))}</span>` : html`<span class="service">${safe(senderOf(record))}</span><span class="long">${spanTime(record.duration_ns)}</span>${isError(record) && html`<span class="level">ERROR</span>`}`}${columns.map((name) => html`<span class="column">${safe(fieldOf(record, name))}</span>`)}<span class="body"><${Marked} text=${String(record.line ?? bodyOf(record)).replace(/\r$/, "")} ranges=${record.line === undefined ? record.highlights : null} /></span></button>`;
  })}</div></div>`;
}

// Fields that the head, the text or the time of a record shows already, and those that stages of a query made.
const APART = new Set(["ts", "seq", "body", "key", "value", "line"]);
const AROUND = 10, AROUND_MAX = 1000;

// What was written around a record by its source: the same file, or the same sender behind a door.
function Around({ record, kind }) {
  const [size, setSize] = useState({ before: AROUND, after: AROUND });
  const source = Object.fromEntries((record.file ? ["file"] : ["service", "host", "instance"]).filter((name) => record[name]).map((name) => [name, record[name]]));
  const from = useData(`v1/context?${new URLSearchParams({ agent: record.agent_id, boot: record.boot_id, seq: String(record.seq), kind, before: String(size.before), after: String(size.after), ...(kind === "logs" && Object.keys(source).length && { query: selector(source) }) })}`);
  const shown = from.data, line = (one, here) => html`<div class=${`${here ? "here " : ""}${tone(one)}`}><span class="quiet">${one.ts ? timeText(new Date(one.ts)) : "–"}</span> ${one.level ? `${safe(one.level)} ` : ""}${safe(bodyOf(one))}</div>`;
  const more = (side, is) => is && size[side] < AROUND_MAX && html`<button type="button" class="copy" onClick=${() => setSize({ ...size, [side]: Math.min(AROUND_MAX, size[side] * 4) })}>More ${side}</button>`;
  return html`<h3>Lines around it${Object.keys(source).length ? html`, of <code>${safe(selector(source))}</code>` : ""}</h3><${Problem} problem=${from.problem} again=${from.reload} />
    ${shown ? html`${more("before", shown.more_before)}<div class="around" tabindex="0" role="region" aria-label="Lines around the record">${shown.before.map((one) => line(one))}${shown.record && line(shown.record, true)}${shown.after.map((one) => line(one))}</div>${more("after", shown.more_after)}<${Missing} summary=${shown.summary} />` : !from.problem && html`<p class="quiet">Reading…</p>`}`;
}

export function Detail({ record, query, kind, choose, close }) {
  const [around, setAround] = useState(false);
  const plain = Object.entries(record).filter(([name, value]) => typeof value !== "object" && !APART.has(name)).map(([name, value]) => [name, name, record.digits?.[name] ?? String(value), name === "duration_ns" ? `${record.digits?.[name] ?? value} = ${spanTime(value)}` : record.digits?.[name] ?? value]);
  const nested = ["attributes", "resource"].flatMap((group) => Object.entries(record[group] ?? {}).map(([key, value]) => [`${group}.${key}`, labelOf(key), textOf(value), shownValue(value)]));
  const made = Object.entries(record.labels ?? {}).filter(([name]) => ![...plain, ...nested].some(([, label]) => label === name) && name !== "service_name");
  return html`<section class="detail card" aria-label="Record"><div class="head"><h2>Record ${safe(record.seq)} of ${safe(record.agent_id)}</h2><div class="tools"><${Copy} text=${JSON.stringify(record)} label="Copy JSON" /><button type="button" aria-expanded=${around ? "true" : "false"} onClick=${() => setAround(!around)}>Lines around it</button>${record.trace_id && html`<a href=${placeUrl("trace", [record.trace_id], record.span_id ? { span: record.span_id } : null)}>Trace of the record</a>`}<a href=${placeUrl("batches", [keyOf(record)])}>Batch of the record</a><button type="button" class="plain" onClick=${close} aria-label="Close the record">✕</button></div></div>
    <pre>${html`<${Marked} text=${String(bodyOf(record))} ranges=${record.highlights} />`}</pre>
    ${record.line !== undefined && html`<h3>After the stages of the query</h3><pre>${safe(record.line)}</pre>`}
    <dl class="facts"><dt>time</dt><dd>${record.ts ? html`<${Time} at=${record.ts} /> <code class="quiet">${safe(record.ts)}</code>` : "none"}</dd>
      ${[...plain, ...nested].map(([name, label, value, shown]) => html`<dt><code>${safe(name)}</code></dt><dd>${safe(shown)} <button type="button" class="copy" aria-pressed=${chosenValues(query, label).includes(value) ? "true" : "false"} aria-label=${`Include ${safe(name)}`} onClick=${() => choose(toggleValue(query, label, value))}>+</button> <button type="button" class="copy" aria-pressed=${isExcluded(query, label, value) ? "true" : "false"} aria-label=${`Exclude ${safe(name)}`} onClick=${() => choose(toggleExcluded(query, label, value))}>−</button></dd>`)}
      ${made.map(([name, value]) => html`<dt><code>${safe(name)}</code></dt><dd>${safe(value)} <span class="quiet">of the query</span></dd>`)}</dl>
    ${around && html`<${Around} key=${keyOf(record)} record=${record} kind=${kind} />`}</section>`;
}

// --- the page ---

function Bar({ search, described, live, paused, setLive, setPaused }) {
  const [typed, setTyped] = useState(search.query);
  useEffect(() => setTyped(search.query), [search.query]);
  const change = (more) => show({ ...search, query: typed, ...more });
  const preset = RANGES.some(([value]) => value === search.from) && !search.to ? search.from : "";
  const problem = typed === search.query ? described.problem : null;
  const words = /[{}|]/.test(typed) ? "" : typed.trim();
  return html`<form class="filters search" role="search" onSubmit=${(event) => { event.preventDefault(); change({}); }}>
    <${Editor} text=${typed} setText=${setTyped} submit=${(event) => { event.preventDefault(); change({}); }} range=${rangeOf(search)} problem=${problem} />
    <label>Kind<select value=${search.kind} onChange=${(event) => change({ kind: event.target.value, columns: [] })}>${["logs", "metrics", "spans", "entries"].map((kind) => html`<option value=${kind}>${kind}</option>`)}</select></label>
    <label>Time<select value=${preset} onChange=${(event) => event.target.value && change({ from: event.target.value, to: "" })}>${!preset && html`<option value="">chosen range</option>`}${RANGES.map(([value, title]) => html`<option value=${value}>last ${title}</option>`)}</select></label>
    <button type="submit" class="primary">Search</button>
    <button type="button" disabled=${described.is_metric} aria-pressed=${live ? "true" : "false"} onClick=${() => { setLive(!live); setPaused(false); }}>Live tail</button>
    ${live && html`<button type="button" onClick=${() => setPaused(!paused)}>${paused ? "Continue" : "Pause"}</button>`}
  </form>
  ${problem && html`<${WrongText} id="logql-problem" text=${search.query} problem=${problem} fix=${words && html`<button type="button" onClick=${() => show({ ...search, query: `{} |= ${quote(words)}` })}>Search for this text</button>`} />`}
  ${search.to && html`<div class="row chips"><span class="badge">${rangeText(search)} <button type="button" class="plain" aria-label="Remove the range" onClick=${() => show({ ...search, from: "1h", to: "" })}>✕</button></span></div>`}`;
}

const instantText = (text) => (/^\d{4}-/.test(text) ? timeText(new Date(text)) : safe(text));
const rangeText = ({ from, to }) => `${instantText(from)} to ${instantText(to)}`;

function progressText(at) {
  const waiting = at.batches ? `, ${count(at.batches_read)} of ${count(at.batches)} batches that are not in the lake yet` : "";
  return ` ${count(at.segments_read)} of ${count(at.segments)} files${waiting}`;
}

export function Missing({ summary }) {
  return summary?.partial && html`<div class="notice" role="status"><strong>Records may be missing.</strong> ${summary.reasons.map((one) => html`<div>${safe(one)}</div>`)}</div>`;
}

function Summary({ found, live, tail, search, isMetric }) {
  const summary = live ? tail.state : found.summary;
  const path = parameters(search, { newest_first: "true" });
  const what = isMetric ? `${found.records.length === 1 ? "" : " "}series` : "records", more = isMetric ? "; there are more" : ", the newest; there are more";
  return html`<div class="summary" role="status">
      <span>${live ? html`<strong>Live</strong>, ${count(tail.records.length)} records` : html`<strong>${count(found.records.length)}</strong> ${what.trim()}${found.summary?.more ? more : ""}${found.running ? ` · searching${found.progress ? progressText(found.progress) : "…"}` : ` · ${duration((found.summary?.elapsed_ms ?? 0) / 1000)}, ${bytes(found.summary?.bytes_read ?? 0)} read`}`}</span>
      <${Complete} summary=${summary} />
      ${!live && !isMetric && html`<span class="row"><a href=${`v1/download?${new URLSearchParams([...path, ["format", "ndjson"]])}`} download>NDJSON</a><a href=${`v1/download?${new URLSearchParams([...path, ["format", "parquet"]])}`} download>Parquet</a></span>`}
    </div>
    <${Missing} summary=${summary} />
    ${(summary?.hints ?? []).map((hint) => html`<${WrongText} key=${hint} text=${search.query} problem=${hint} isHint />`)}`;
}

function equivalent(search, isMetric) {
  const options = ["--since", search.from];
  if (search.to) options.push("--to", search.to);
  if (search.kind !== "logs") options.push("--kind", search.kind);
  return command("sluice query", ...(search.query.trim() ? [search.query] : []), ...(isMetric ? ["--plot"] : []), ...options);
}

function Series({ found }) {
  const series = useMemo(() => found.records.map((one) => ({ labels: one.labels, points: new Map(one.points.map((point) => [Date.parse(point.ts) / 1000, Number(textOf(point.value))])) })), [found.records]);
  if (!found.records.length) return !found.running && !found.problem && html`<${Empty} title="No series">No record in this time has the labels or numbers of the query. Choose a longer time.<//>`;
  return html`<${SeriesChart} series=${series} label="Series of the query" />`;
}

export function Explore({ place }) {
  const search = readSearch(place.query);
  const [live, setLive] = useState(false), [paused, setPaused] = useState(false), [record, setRecord] = useState(null);
  useCell(zone);
  const asked = useData(search.query.trim() ? `v1/logql?${new URLSearchParams({ query: search.query, cursor: "0" })}` : null);
  const described = search.query.trim() ? asked.data : { is_metric: false, problem: null };
  const isMetric = described?.is_metric ?? false, isRight = described && !described.problem, isLive = live && isRight && !isMetric;
  const path = isMetric ? `v1/query?${parameters(search)}` : `v1/query/stream?${parameters(search, { limit: String(LIMIT), highlight: "true" })}`;
  const found = useSearch(isRight && !isLive ? path : null), tail = useTail(search, isLive, paused);
  const records = isLive ? tail.records : found.records;
  // The first records have precedence: histogram and facets would compete with them for the query service.
  const ready = isRight && (found.progress !== null || !found.running);
  const choose = (query) => query !== null && show({ ...search, query });
  const toggle = (name) => show({ ...search, columns: search.columns.includes(name) ? search.columns.filter((one) => one !== name) : [...search.columns, name] });
  const problem = isLive ? tail.problem : found.problem ?? asked.problem;
  if (lacksQuery(problem)) return html`<${Head} title="Explore">Search in the records of all senders.<//><${NoQueryService} /><${Command} text=${equivalent(search, isMetric)} />`;
  return html`<${Head} title="Explore" tools=${html`<${Copy} text=${location.href} label="Copy link" />`} />
    <${Bar} search=${search} described=${described ?? {}} live=${isLive} paused=${paused} setLive=${setLive} setPaused=${setPaused} />
    ${isRight && !isLive && !isMetric && html`<${Histogram} key=${parameters(search).toString()} search=${search} ready=${ready} zoom=${(from, to) => show({ ...search, from: from.toISOString(), to: to.toISOString() })} />`}
    <${Problem} problem=${problem} again=${isLive ? null : found.again} />
    ${isRight && html`<${Summary} found=${found} live=${isLive} tail=${tail} search=${search} isMetric=${isMetric} />
    ${isMetric ? html`<${Series} found=${found} />` : html`<div class="explore">${!isLive && html`<${Facets} search=${search} ready=${ready} choose=${choose} toggle=${toggle} />`}
      <div class="result">${records.length
    ? html`<${Lines} records=${records} columns=${search.columns} open=${setRecord} chosen=${record && keyOf(record)} label="Records, newest first" />`
    : !found.running && !found.problem && !isLive ? html`<${Empty} title="No record matches">Search a longer time, or remove a filter.<//>` : isLive ? html`<${Empty} title=${paused ? "Paused" : "Waiting for records"}>Records of the last minute and new ones appear here.<//>` : null}
        ${record && html`<${Detail} record=${record} query=${search.query} kind=${search.kind} choose=${choose} close=${() => setRecord(null)} />`}</div></div>`}`}
    ${isRight && html`<${Command} text=${equivalent(search, isMetric)} />`}`;
}
