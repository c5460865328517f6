// Explore: search with a histogram, fields, live tail, lines around a line, and downloads.
import { api, bytes, command, count, duration, go, html, placeUrl, quoted, safe, timeText, useCell, useData, useEffect, useRef, useState, zone } from "../lib.js";
import { Command, Copy, Empty, Head, NoQueryService, Problem, Time, lacksQuery } from "../parts.js";
import { parseLine, readLines, shownValue, textOf } from "../stream.js";
import { isError, spanTime } from "../trace_rows.js";

const RANGES = [["5m", "5 min"], ["15m", "15 min"], ["1h", "1 hour"], ["6h", "6 hours"], ["1d", "1 day"], ["7d", "7 days"], ["30d", "30 days"]];
const ROW = 24, LIMIT = 2000, TAIL_MAX = 5000;
const NAMES = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];
export const severityName = (number) => (number ? NAMES[Math.min(5, Math.floor((number - 1) / 4))] : "");
const tone = (record) => (isError(record) || record.severity >= 17 ? "bad" : record.severity >= 13 ? "warn" : "");

// The search is the address: every change is a new address, so that it can be shared and undone.
function readSearch(query) {
  return {
    from: query.get("from") ?? "1h", to: query.get("to") ?? "", q: query.get("q") ?? "", kind: query.get("kind") ?? "logs",
    regex: query.get("regex") === "true", ignore_case: query.get("ignore_case") === "true", agent: query.getAll("agent"), filter: query.getAll("filter"), columns: query.getAll("column"),
  };
}

function parameters(search, more = {}) {
  const found = new URLSearchParams({ from: search.from });
  for (const name of ["to", "q"]) if (search[name]) found.set(name, search[name]);
  if (search.kind !== "logs") found.set("kind", search.kind);
  for (const name of ["regex", "ignore_case"]) if (search[name]) found.set(name, "true");
  for (const name of ["agent", "filter"]) for (const value of search[name]) found.append(name, value);
  for (const [name, value] of Object.entries(more)) found.set(name, value);
  return found;
}

const marks = (search) => (search.q ? { highlight: "true" } : {});

function show(search) {
  const query = parameters(search);
  for (const name of search.columns) query.append("column", name);
  location.hash = `#explore?${query}`;
}

export const keyOf = (record) => `${record.agent_id}/${record.boot_id}/${record.seq}`;

// --- the search ---

const BEGUN = { records: [], summary: null, problem: null, running: true, progress: null };

function useSearch(search, live) {
  const [state, setState] = useState(BEGUN);
  const path = `v1/query/stream?${parameters(search, { limit: String(LIMIT), ...marks(search) })}`;
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (live) return undefined;
    const stop = new AbortController();
    setState({ ...BEGUN, path });
    readLines(path, stop.signal, (lines) => setState((old) => {
      const next = { ...old, records: [...old.records, ...lines.filter((line) => line.seq !== undefined)] };
      for (const line of lines) { if (line.summary) next.summary = line.summary; else if (line.progress) next.progress = line.progress; }
      return next;
    })).then(() => setState((old) => ({ ...old, running: false })), (problem) => {
      if (problem.name !== "AbortError") setState((old) => ({ ...old, problem, running: false }));
    });
    return () => stop.abort();
  }, [path, live, round]);
  return { ...(state.path === path ? state : BEGUN), again: () => setRound((number) => number + 1) };
}

function useTail(search, live, paused) {
  const [state, setState] = useState({ records: [], state: null, problem: null });
  const place = useRef(null), known = useRef(new Set());
  const path = parameters(search).toString();
  useEffect(() => { place.current = null; known.current = new Set(); setState({ records: [], state: null, problem: null }); }, [path, live]);
  useEffect(() => {
    if (!live || paused) return undefined;
    const wanted = parameters({ ...search, from: "1m", to: "" }, { ...marks(search), limit: "500" });
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
  const by = { logs: { by: "severity", top: "8" }, spans: { by: "status", top: "3" } }[search.kind] ?? {};
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
  const loud = (bucket) => (split ? split.values.reduce((sum, value, index) => sum + (value >= 17 || value === "error" ? bucket.counts[index] : 0), 0) : 0);
  const label = `${count(summary.results)} records in ${buckets.length} buckets`;
  return html`<figure class="histogram"><svg ref=${box} viewBox=${`0 0 ${buckets.length} 100`} preserveAspectRatio="none" role="img" aria-label=${label}
      onPointerDown=${(event) => { event.currentTarget.setPointerCapture(event.pointerId); setDrag([at(event), at(event)]); }}
      onPointerMove=${(event) => drag && setDrag([drag[0], at(event)])} onPointerUp=${finish} onPointerCancel=${() => setDrag(null)}>
      ${drag && html`<rect class="chosen" x=${Math.min(...drag)} width=${Math.abs(drag[1] - drag[0]) + 1} height="100" />`}
      ${buckets.map((one, index) => { const height = one.count / top * 96, bad = loud(one) / top * 96;
    return html`<g><title>${timeText(new Date(one.ts), false)}: ${count(one.count)}</title><rect class="all" x=${index + 0.08} width="0.84" y=${100 - height} height=${height} />${bad > 0 && html`<rect class="loud" x=${index + 0.08} width="0.84" y=${100 - bad} height=${bad} />`}</g>`; })}</svg>
    <figcaption><span>${buckets.length ? timeText(new Date(buckets[0].ts), false) : ""}</span><span>${label}${split ? "; errors in red" : ""}. Drag to zoom.</span><span>${buckets.length ? timeText(new Date(buckets.at(-1).ts), false) : ""}</span></figcaption></figure>`;
}

// --- fields ---

export const filterText = (field, operator, value) => `${field}${operator}${value}`;

function Values({ search, field, add }) {
  const from = useData(`v1/fields/values?${parameters(search, { field, limit: "10" })}`);
  if (from.problem) return html`<${Problem} problem=${from.problem} />`;
  if (!from.data) return html`<p class="quiet">Counting…</p>`;
  const { values, records, missing } = from.data;
  return html`<ul class="values">${values.map(({ value, count: number, cut }) => html`<li>
      <span class="share"><svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true"><rect width=${records ? number / records * 100 : 0} height="1" /></svg><span class="text" title=${safe(value)}>${safe(value) || html`<em>empty</em>`}</span></span>
      <span class="quiet">${count(number)}</span>
      ${!cut && html`<button type="button" class="copy" aria-label=${`Include ${safe(field)} ${safe(value)}`} title="Include" onClick=${() => add(filterText(field, "=", value))}>+</button><button type="button" class="copy" aria-label=${`Exclude ${safe(field)} ${safe(value)}`} title="Exclude" onClick=${() => add(filterText(field, "!=", value))}>−</button>`}</li>`)}
    ${missing > 0 && html`<li class="quiet">${count(missing)} without it</li>`}</ul>`;
}

function Fields({ search, ready, add, toggle }) {
  const from = useData(ready ? `v1/fields?${parameters(search)}` : null), data = ready ? from.data : null;
  const [open, setOpen] = useState("");
  return html`<aside class="fields" aria-label="Fields"><h2>Fields</h2>
    ${from.problem && html`<p class="quiet">${safe(from.problem.message)}</p>`}
    ${data && !data.fields.some((one) => one.field !== "body" && one.field !== "value") && html`<p class="quiet">None in this search.</p>`}
    ${data?.sampled && html`<p class="quiet">Counts are of the newest ${count(data.records)} records.</p>`}
    <ul>${(data?.fields ?? []).filter((one) => one.field !== "body" && one.field !== "value").map((one) => html`<li key=${one.field}>
      <div class="field"><button type="button" class="plain" aria-expanded=${open === one.field ? "true" : "false"} onClick=${() => setOpen(open === one.field ? "" : one.field)}><code>${safe(one.field)}</code></button><span class="quiet" title=${`${count(one.count)} records`}>${count(one.distinct)}</span>
        <button type="button" class="copy" aria-pressed=${search.columns.includes(one.field) ? "true" : "false"} aria-label=${`Column ${safe(one.field)}`} title="Show as a column" onClick=${() => toggle(one.field)}>▥</button></div>
      ${open === one.field && html`<${Values} search=${search} field=${one.field} add=${add} />`}</li>`)}</ul></aside>`;
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
      <span class="at">${record.ts ? timeText(new Date(record.ts)) : "–"}</span>${record.severity ? html`<span class="level">${severityName(record.severity)}</span>` : ""}${record.duration_ns === undefined ? html`<span class="from">${safe(record.agent_id)}</span>` : html`<span class="service">${safe(record.service ?? record.agent_id)}</span><span class="long">${spanTime(record.duration_ns)}</span>${isError(record) && html`<span class="level">ERROR</span>`}`}${columns.map((name) => html`<span class="column">${safe(fieldOf(record, name))}</span>`)}<span class="body"><${Marked} text=${String(bodyOf(record)).replace(/\r$/, "")} ranges=${record.highlights} /></span></button>`;
  })}</div></div>`;
}

// Fields that the head, the text or the time of a record shows already.
const APART = new Set(["ts", "seq", "body", "key", "value"]);

export function Detail({ record, search, add, close }) {
  const [around, setAround] = useState(null), [problem, setProblem] = useState(null);
  useEffect(() => { setAround(null); setProblem(null); }, [keyOf(record)]);
  const look = async () => {
    const wanted = new URLSearchParams({ agent: record.agent_id, boot: record.boot_id, seq: String(record.seq), kind: search.kind, before: "20", after: "20" });
    const path = record.attributes?.["log.file.path"] ? "attributes.log.file.path" : record.attributes?.path ? "attributes.path" : "";
    if (path) wanted.append("filter", filterText(path, "=", fieldOf(record, path)));
    try { setAround(await api(`v1/context?${wanted}`)); } catch (error) { setProblem(error); }
  };
  const plain = Object.entries(record).filter(([name, value]) => typeof value !== "object" && !APART.has(name));
  const nested = ["attributes", "resource"].flatMap((group) => Object.entries(record[group] ?? {}).map(([key, value]) => [`${group}.${/[=!<>~"]/.test(key) ? JSON.stringify(key) : key}`, textOf(value), shownValue(value)]));
  const line = (one, here) => html`<div class=${here ? "here" : ""}>${safe(one.ts ?? "")} ${safe(bodyOf(one))}</div>`;
  return html`<section class="detail card" aria-label="Record"><div class="head"><h2>Record ${safe(record.seq)} of ${safe(record.agent_id)}</h2><div class="tools"><${Copy} text=${JSON.stringify(record)} label="Copy JSON" /><button type="button" onClick=${look}>Lines around it</button>${record.trace_id && html`<a href=${placeUrl("trace", [record.trace_id], record.span_id ? { span: record.span_id } : null)}>Trace of the record</a>`}<a href=${placeUrl("batches", [keyOf(record)])}>Batch of the record</a><button type="button" class="plain" onClick=${close} aria-label="Close the record">✕</button></div></div>
    <pre>${html`<${Marked} text=${String(bodyOf(record))} ranges=${record.highlights} />`}</pre>
    <dl class="facts"><dt>time</dt><dd>${record.ts ? html`<${Time} at=${record.ts} /> <code class="quiet">${safe(record.ts)}</code>` : "none"}</dd>
      ${[...plain, ...nested].map(([name, value, shown]) => html`<dt><code>${safe(name)}</code></dt><dd>${safe(name === "severity" ? `${value} ${severityName(value)}` : name === "duration_ns" ? `${value} = ${spanTime(value)}` : shown ?? value)} <button type="button" class="copy" aria-label=${`Include ${safe(name)}`} onClick=${() => add(filterText(name, "=", value))}>+</button> <button type="button" class="copy" aria-label=${`Exclude ${safe(name)}`} onClick=${() => add(filterText(name, "!=", value))}>−</button></dd>`)}</dl>
    <${Problem} problem=${problem} />
    ${around && html`<h3>Lines around it</h3><div class="around">${around.before.map((one) => line(one))}${around.record && line(around.record, true)}${around.after.map((one) => line(one))}</div>`}</section>`;
}

// --- the page ---

function Bar({ search, live, paused, setLive, setPaused }) {
  const [typed, setTyped] = useState(search.q);
  useEffect(() => setTyped(search.q), [search.q]);
  const change = (more) => show({ ...search, ...more });
  const preset = RANGES.some(([value]) => value === search.from) && !search.to ? search.from : "";
  return html`<form class="filters search" role="search" onSubmit=${(event) => { event.preventDefault(); change({ q: typed }); }}>
    <label class="grow">Text<input data-search type="search" value=${typed} placeholder=${search.regex ? "a pattern (RE2), for example status=5\\d\\d" : "a text that the line contains"} onInput=${(event) => setTyped(event.target.value)} /></label>
    <label class="inline"><input type="checkbox" checked=${search.regex} onChange=${(event) => change({ regex: event.target.checked, q: typed })} />Pattern</label>
    <label class="inline"><input type="checkbox" checked=${search.ignore_case} onChange=${(event) => change({ ignore_case: event.target.checked, q: typed })} />Ignore case</label>
    <label>Kind<select value=${search.kind} onChange=${(event) => change({ kind: event.target.value, columns: [] })}>${["logs", "metrics", "spans", "entries"].map((kind) => html`<option value=${kind}>${kind}</option>`)}</select></label>
    <label>Time<select value=${preset} onChange=${(event) => event.target.value && change({ from: event.target.value, to: "" })}>${!preset && html`<option value="">chosen range</option>`}${RANGES.map(([value, title]) => html`<option value=${value}>last ${title}</option>`)}</select></label>
    <button type="submit" class="primary">Search</button>
    <button type="button" aria-pressed=${live ? "true" : "false"} onClick=${() => { setLive(!live); setPaused(false); }}>Live tail</button>
    ${live && html`<button type="button" onClick=${() => setPaused(!paused)}>${paused ? "Continue" : "Pause"}</button>`}
  </form>`;
}

function Chips({ search }) {
  const chips = [...search.agent.map((value) => ["agent", value, `agent ${value}`]), ...search.filter.map((value) => ["filter", value, value])];
  if (!chips.length && !search.to) return null;
  return html`<div class="row chips">${search.to && html`<span class="badge">${safe(search.from)} to ${safe(search.to)} <button type="button" class="plain" aria-label="Remove the range" onClick=${() => show({ ...search, from: "1h", to: "" })}>✕</button></span>`}
    ${chips.map(([name, value, text]) => html`<span class="badge"><code>${safe(text)}</code> <button type="button" class="plain" aria-label=${`Remove ${safe(text)}`} onClick=${() => show({ ...search, [name]: search[name].filter((one) => one !== value) })}>✕</button></span>`)}</div>`;
}

function progressText(at) {
  const waiting = at.batches ? `, ${count(at.batches_read)} of ${count(at.batches)} batches that are not in the lake yet` : "";
  return ` ${count(at.segments_read)} of ${count(at.segments)} files${waiting}`;
}

export function Missing({ summary }) {
  return summary?.partial && html`<div class="notice" role="status"><strong>Records may be missing.</strong> ${summary.reasons.map((one) => html`<div>${safe(one)}</div>`)}</div>`;
}

function Summary({ found, live, tail, search }) {
  const summary = live ? tail.state : found.summary;
  const path = parameters(search, { newest_first: "true" });
  return html`<div class="summary" role="status">
      <span>${live ? html`<strong>Live</strong>, ${count(tail.records.length)} records` : html`<strong>${count(found.records.length)}</strong> records${found.summary?.more ? ", the newest; there are more" : ""}${found.running ? ` · searching${found.progress ? progressText(found.progress) : "…"}` : ` · ${duration((found.summary?.elapsed_ms ?? 0) / 1000)}, ${bytes(found.summary?.bytes_read ?? 0)} read`}`}</span>
      ${summary?.accepted_until && html`<span>complete for what was accepted before <${Time} at=${summary.accepted_until} ms=${false} /></span>`}
      ${!live && html`<span class="row"><a href=${`v1/download?${new URLSearchParams([...path, ["format", "ndjson"]])}`} download>NDJSON</a><a href=${`v1/download?${new URLSearchParams([...path, ["format", "parquet"]])}`} download>Parquet</a></span>`}
    </div>
    <${Missing} summary=${summary} />`;
}

const FILTER = /^(!?)(?:attributes\.|resource\.)?(.+?)(?: *(=~|!~|!=|>=|<=|=|>|<) ?(.*))?$/s;

// Returns filters, and texts of line filters, as a LogQL query; patterns of selectors are anchored.
export function logql(filters, lines = []) {
  const matchers = [], stages = [...lines];
  for (const one of filters) {
    const [, not, name, operator, value] = FILTER.exec(one) ?? [];
    if (name === undefined) continue;
    const label = name === "agent_id" ? "agent" : name.replaceAll(/[^A-Za-z0-9_]/g, "_");
    if (operator === undefined) matchers.push(`${label}${not ? "=" : "!="}""`);
    else if (operator.endsWith("~")) matchers.push(`${label}${operator}${JSON.stringify(`.*(?:${value}).*`)}`);
    else if (/^[<>]/.test(operator)) stages.push(`| ${label} ${operator} ${value}`);
    else matchers.push(`${label}${operator}${JSON.stringify(value)}`);
  }
  return [`{${matchers.join(", ")}}`, ...stages].join(" ");
}

function equivalent(search) {
  const options = ["--since", search.from];
  if (search.to) options.push("--to", search.to);
  if (search.kind !== "logs") options.push("--kind", search.kind);
  const text = search.regex ? search.q : search.q?.replaceAll(/[^\p{L}\p{N}\s]/gu, "\\$&");
  const isPattern = search.q && (search.regex || search.ignore_case);
  if (search.q && !isPattern) options.push("-q", search.q);
  const agents = search.agent.map((one) => one.replaceAll(/[^\p{L}\p{N}]/gu, "\\$&")).join("|");
  const filters = [...search.filter, ...(agents ? [`agent_id=~^(?:${agents})$`] : [])];
  const lines = isPattern ? [`|~ ${JSON.stringify(`${search.ignore_case ? "(?i)" : ""}${text}`)}`] : [];
  const query = filters.length || lines.length ? [logql(filters, lines)] : [];
  return command("sluice query", ...query, ...options);
}

export function Explore({ place }) {
  const search = readSearch(place.query);
  const [live, setLive] = useState(false), [paused, setPaused] = useState(false), [record, setRecord] = useState(null);
  useCell(zone);
  const found = useSearch(search, live), tail = useTail(search, live, paused);
  const records = live ? tail.records : found.records;
  // The first records have precedence: histogram and fields would compete with them for the query service.
  const ready = found.progress !== null || !found.running;
  const add = (one) => { if (!search.filter.includes(one)) show({ ...search, filter: [...search.filter, one] }); };
  const toggle = (name) => show({ ...search, columns: search.columns.includes(name) ? search.columns.filter((one) => one !== name) : [...search.columns, name] });
  if (lacksQuery(found.problem)) return html`<${Head} title="Explore">Search in the records of all agents.<//><${NoQueryService} /><${Command} text=${equivalent(search)} />`;
  return html`<${Head} title="Explore" tools=${html`<${Copy} text=${location.href} label="Copy link" />`} />
    <${Bar} search=${search} live=${live} paused=${paused} setLive=${setLive} setPaused=${setPaused} /><${Chips} search=${search} />
    ${!live && html`<${Histogram} key=${parameters(search).toString()} search=${search} ready=${ready} zoom=${(from, to) => show({ ...search, from: from.toISOString(), to: to.toISOString() })} />`}
    <${Problem} problem=${live ? tail.problem : found.problem} again=${live ? null : found.again} />
    <${Summary} found=${found} live=${live} tail=${tail} search=${search} />
    <div class="explore">${!live && html`<${Fields} search=${search} ready=${ready} add=${add} toggle=${toggle} />`}
      <div class="result">${records.length
    ? html`<${Lines} records=${records} columns=${search.columns} open=${setRecord} chosen=${record && keyOf(record)} label="Records, newest first" />`
    : !found.running && !found.problem && !live ? html`<${Empty} title="No record matches">Search a longer time, or remove a filter. Records of the last seconds appear in the live tail.<//>` : live ? html`<${Empty} title=${paused ? "Paused" : "Waiting for records"}>Records of the last minute and new ones appear here.<//>` : null}
        ${record && html`<${Detail} record=${record} search=${search} add=${add} close=${() => setRecord(null)} />`}</div></div>
    <${Command} text=${equivalent(search)} />`;
}
