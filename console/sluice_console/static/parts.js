// Building blocks of the pages. Every text of the data is a text node; nothing is parsed as HTML.
import { command, count, duration, html, notice, ofNs, quoted, safe, session, storeUrl, timeText, useCell, useEffect, useRef, useState, zone } from "./lib.js";

export function Time({ ns, at, ms = true }) {
  useCell(zone);
  const date = at ? new Date(at) : ofNs(ns);
  if (!date || Number.isNaN(date.getTime())) return html`<span class="quiet">–</span>`;
  return html`<time datetime=${date.toISOString()} title=${ago(date)}>${timeText(date, ms)}</time>`;
}

// Through which time the answer of a search is complete.
export function Complete({ summary }) {
  if (!summary) return null;
  if (summary.complete_now) return html`<span>complete up to now</span>`;
  return summary.accepted_until && html`<span>complete for what was accepted before <${Time} at=${summary.accepted_until} ms=${false} /></span>`;
}

export function ago(date) {
  const seconds = (Date.now() - date.getTime()) / 1000;
  return seconds < 0 ? `in ${duration(-seconds)}` : `${duration(seconds)} ago`;
}

export function Ago({ ns }) {
  const date = ofNs(ns);
  return date ? html`<${Titled} title=${timeText(date)}>${ago(date)}<//>` : html`<span class="quiet">–</span>`;
}

const Titled = ({ title, children }) => html`<span title=${title}>${children}</span>`;

export function Problem({ problem, again }) {
  if (!problem) return null;
  return html`<div class="problem" role="alert">
    <strong>${safe(problem.title ?? "Error")}</strong>
    <p>${safe(problem.message)}</p>
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><strong>${title}</strong><p>${children}</p></div>`;
}

// The console has no query service: its endpoints for searches respond with 404.
// Theirs is 404 too for a trace that does not exist, so the text decides.
export const lacksQuery = (problem) => problem?.status === 404 && problem.message.startsWith("no query service");

export function NoQueryService() {
  useCell(storeUrl);
  return html`<${Empty} title="No query service">Searches are made by a query service. Start one, then start the console with its URL, which is on port 8383 by default.<//>
    <${Command} text=${command("sluice query serve")} /><${Command} text=${`sluice console --store ${quoted(storeUrl.get())} --query URL`} />`;
}

export const Loading = () => html`<p class="loading" role="status">Loading…</p>`;

// The three states of data that every page has: a problem, loading, and the data itself.
export function Loaded({ from, children }) {
  return html`<${Problem} problem=${from.problem} again=${from.reload} />
    ${from.data ? children(from.data) : from.loading ? html`<${Loading} />` : null}`;
}

export function Badge({ tone = "plain", children }) {
  return html`<span class=${`badge ${tone}`}>${children}</span>`;
}

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try { await navigator.clipboard.writeText(text); } catch { selectAndCopy(text); }
    setDone(true);
    notice.set("Copied");
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="copy" onClick=${copy} aria-label=${`${label}: ${safe(text)}`}>${done ? "Copied" : label}</button>`;
}

function selectAndCopy(text) {
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

export function Command({ text }) {
  return html`<div class="command"><code>${safe(text)}</code><${Copy} text=${text} /></div>`;
}

// Columns: {name, cell(row), numeric, wide}. The wrapper scrolls, so it can be focused.
// A `tall` table also scrolls in its height.
export function Table({ caption, columns, rows, rowKey, empty, tall }) {
  if (!rows.length) return empty ?? html`<p class="quiet">None.</p>`;
  return html`<div class=${tall ? "scroll tall" : "scroll"} tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map((one) => html`<th scope="col" class=${one.numeric ? "number" : ""}>${one.name}</th>`)}</tr></thead>
    <tbody>${rows.map((row, at) => html`<tr key=${rowKey ? rowKey(row) : at}>
      ${columns.map((one) => html`<td class=${one.numeric ? "number" : one.wide ? "wide" : ""}>${one.cell(row)}</td>`)}
    </tr>`)}</tbody></table></div>`;
}

// A line of the last hour. Points without a value break the line.
export function Spark({ times, values, label }) {
  const known = values.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return html`<div class="spark quiet" aria-hidden="true"></div>`;
  const top = Math.max(...known) || 1, first = Number(times[0]), span = Number(times.at(-1)) - first || 1;
  const lines = [];
  let line = [];
  values.forEach((value, at) => {
    if (value === null || value === undefined) { if (line.length) lines.push(line); line = []; return; }
    line.push(`${((Number(times[at]) - first) / span * 100).toFixed(2)},${(28 - value / top * 26).toFixed(2)}`);
  });
  if (line.length) lines.push(line);
  return html`<svg class="spark" viewBox="0 0 100 30" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${lines.map((one) => html`<polyline points=${one.join(" ")} />`)}</svg>`;
}

// Accepted parts of a sequence as a bar; what is missing shows as red.
export function Bar({ parts, label }) {
  return html`<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=${label}>
    <rect class="missing" width="100" height="10" />
    ${parts.map(([start, end]) => html`<rect class="present" x=${start * 100} width=${Math.max(0.3, (end - start) * 100)} height="10" />`)}</svg>`;
}

export function Dialog({ title, close, children }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.showModal();
    return () => box.current?.close();
  }, []);
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onClose=${close} onClick=${(event) => event.target === box.current && close()}>
    <div class="dialog"><header><h2 id="dialog-title">${title}</h2><button type="button" class="plain" onClick=${close} aria-label="Close">✕</button></header>${children}</div></dialog>`;
}

// A write of an operator: a reason, then the request. Viewers see what would be needed.
// With `typed`, the operator repeats that text before the button works.
export function Decide({ title, label, danger, explain, required, typed, run, done }) {
  const me = useCell(session);
  const [open, setOpen] = useState(false);
  const [note, setNote] = useState(""), [repeated, setRepeated] = useState("");
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(false);
  if (me?.role !== "operator") {
    return html`<button type="button" disabled title="Only operators may do this: log in with an operator's token">${label}</button>`;
  }
  const act = async (event) => {
    event.preventDefault();
    setBusy(true);
    try { await run(note, repeated); setOpen(false); done?.(); } catch (error) { setProblem(error); }
    setBusy(false);
  };
  return html`<button type="button" class=${danger ? "danger" : ""} onClick=${() => { setProblem(null); setOpen(true); }}>${label}</button>
    ${open && html`<${Dialog} title=${title} close=${() => setOpen(false)}>
      <form onSubmit=${act}><p>${explain}</p>
        ${typed && html`<label>Type ${typed} to confirm<input autofocus required autocomplete="off" spellcheck="false" value=${repeated} onInput=${(event) => setRepeated(event.target.value.trim())} /></label>`}
        <label>Note${required ? "" : " (optional)"}<textarea autofocus=${!typed} required=${required} maxlength="1000" rows="3" value=${note} onInput=${(event) => setNote(event.target.value)}></textarea></label>
        <${Problem} problem=${problem} />
        <footer><button type="button" class="plain" onClick=${() => setOpen(false)}>Cancel</button>
          <button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy || (typed && repeated !== typed)}>${label}</button></footer>
      </form><//>`}`;
}

export function Pages({ shown, total, back, next, first }) {
  if (!back && !next && !first) return null;
  return html`<nav class="pages" aria-label="Pages">
    ${first && html`<button type="button" onClick=${first}>First</button>`}
    ${back && html`<button type="button" onClick=${back}>Previous</button>`}
    <span class="quiet">${shown}${total === undefined ? "" : ` of ${count(total)}`}</span>
    <button type="button" disabled=${!next} onClick=${next}>Next</button></nav>`;
}

// Explains once what a page shows; the title is the page's heading.
export function Head({ title, children, tools }) {
  return html`<header class="head"><div><h1 tabindex="-1">${title}</h1>${children && html`<p class="quiet">${children}</p>`}</div>
    ${tools && html`<div class="tools">${tools}</div>`}</header>`;
}

export function Sha({ value }) {
  return value ? html`<code class="sha" title=${value}>${value.slice(0, 12)}…</code>` : html`<span class="quiet">–</span>`;
}
