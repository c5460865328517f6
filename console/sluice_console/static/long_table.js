// A table of up to millions of rows: only the rows in view are loaded, and only they exist in the page.
import { api, html, useCallback, useEffect, useRef, useState, waitUntilVisible } from "./lib.js";

const CHUNK = 200, CHUNKS_MAX = 50, ROW = 40, AROUND = 8, SETTLE_MS = 60;
// Browsers limit the height of an element. A longer table maps the scroll position to a row instead.
const CANVAS_MAX = 12_000_000;

// Rows of a list of the API by their place. `page` is the first response: its totals are those of the list.
export function useRows(path, member, every) {
  const [state, setState] = useState({ path, data: null, problem: null, loading: true, chunks: new Map() });
  const [round, setRound] = useState(0);
  const wanted = useRef([0]), listed = useRef(path);
  const load = useCallback(async (chunk, signal) => {
    try {
      const found = await api(`${path}&after=${chunk * CHUNK}&limit=${CHUNK}`, { signal });
      setState((old) => {
        const chunks = new Map(old.path === path ? old.chunks : []);
        chunks.delete(chunk);
        chunks.set(chunk, found[member]);
        for (const oldest of chunks.keys()) { if (chunks.size <= CHUNKS_MAX) break; chunks.delete(oldest); }
        return { path, data: found, problem: null, loading: false, chunks };
      });
    } catch (problem) {
      if (problem.name !== "AbortError") setState((old) => ({ ...old, path, data: old.path === path ? old.data : null, problem, loading: false }));
    }
  }, [path]);
  useEffect(() => {
    const stop = new AbortController();
    if (listed.current !== path) wanted.current = [0];
    listed.current = path;
    // A new report may have another order: what is not in view is loaded again when it is shown.
    setState((old) => ({ ...old, chunks: new Map([...old.chunks].filter(([chunk]) => wanted.current.includes(chunk))) }));
    for (const chunk of wanted.current) load(chunk, stop.signal);
    const timer = setTimeout(() => waitUntilVisible(() => setRound((number) => number + 1)), every * 1000);
    return () => { stop.abort(); clearTimeout(timer); };
  }, [load, round]);
  const current = state.path === path ? state : { data: null, problem: null, loading: true, chunks: new Map() };
  const rowAt = (place) => current.chunks.get(Math.floor(place / CHUNK))?.[place % CHUNK];
  const show = useCallback((first, last, signal) => {
    const chunks = [];
    for (let chunk = Math.floor(first / CHUNK); chunk * CHUNK < last; chunk += 1) chunks.push(chunk);
    wanted.current = chunks.length ? chunks : [0];
    for (const chunk of chunks) if (!current.chunks.has(chunk)) load(chunk, signal);
  }, [load, current.chunks]);
  return { ...current, rowAt, show, reload: () => setRound((number) => number + 1) };
}

function placesInView(total, top, height) {
  const whole = total * ROW, canvas = Math.min(whole, CANVAS_MAX), visible = Math.ceil(height / ROW) + 1;
  const at = canvas < whole ? Math.round(top / Math.max(1, canvas - height) * Math.max(0, total - visible + 1)) : Math.floor(top / ROW);
  const first = Math.max(0, Math.min(at, total - 1) - AROUND), last = Math.min(total, at + visible + AROUND);
  const above = canvas < whole ? Math.max(0, Math.min(top - (at - first) * ROW, canvas - (last - first) * ROW)) : first * ROW;
  return { first, last, above, below: Math.max(0, canvas - above - (last - first) * ROW) };
}

// As `Table`; `rows` is the result of `useRows`.
export function LongTable({ caption, columns, rows, rowKey, empty }) {
  const [top, setTop] = useState(0), [height, setHeight] = useState(600);
  const box = useRef(null), total = rows.data.total;
  useEffect(() => {
    if (!box.current) return undefined;
    const watch = new ResizeObserver(() => setHeight(box.current?.clientHeight || 600));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, [total > 0]);
  const { first, last, above, below } = placesInView(total, top, height);
  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(() => rows.show(first, last, stop.signal), SETTLE_MS);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [first, last, rows.show]);
  if (!total) return empty;
  const places = Array.from({ length: last - first }, (_, at) => first + at);
  return html`<div class="scroll long" ref=${box} tabindex="0" role="region" aria-label=${caption} onScroll=${(event) => setTop(event.target.scrollTop)}><table aria-rowcount=${total + 1}>
    <caption class="hidden">${caption}</caption>
    <thead><tr aria-rowindex="1">${columns.map((one) => html`<th scope="col" class=${one.numeric ? "number" : ""}>${one.name}</th>`)}</tr></thead>
    <tbody><tr class="space" aria-hidden="true" style=${{ height: `${above}px` }}></tr>${places.map((place) => {
    const row = rows.rowAt(place);
    return html`<tr key=${row ? rowKey(row) : place} aria-rowindex=${place + 2}>${row ? columns.map((one) => html`<td class=${one.numeric ? "number" : ""}>${one.cell(row)}</td>`) : html`<td colspan=${columns.length} class="quiet">…</td>`}</tr>`;
  })}<tr class="space" aria-hidden="true" style=${{ height: `${below}px` }}></tr></tbody></table></div>`;
}
