// Agents: which sequence numbers of each agent were accepted, and which are missing.
import { bytes, command, count, duration, go, html, placeUrl, rate, safe, useData, useEffect, useState } from "../lib.js";
import { LongTable, useRows } from "../long_table.js";
import { Badge, Bar, Command, Empty, Head, Loaded, Table, Time } from "../parts.js";
import { selector } from "../logql.js";

const ORDERS = [["gaps", "Gaps first"], ["seen", "Last seen"], ["name", "Name"]];

const Gaps = ({ row }) => (row.gaps === 0 ? html`<${Badge} tone="good">complete<//>`
  : row.in_transit ? html`<${Badge}>${count(row.missing)} in transit<//>`
    : html`<${Badge} tone="error">${count(row.gaps)} ${row.gaps === 1 ? "gap" : "gaps"}, ${count(row.missing)} missing<//>`);

const COLUMNS = [
  { name: "Agent", cell: (row) => html`<a href=${placeUrl("agents", [row.agent_id])}>${safe(row.agent_id)}</a>` },
  { name: "Completeness", cell: (row) => html`<${Gaps} row=${row} />` },
  { name: "Latest boot", cell: (row) => html`<${Bar} parts=${row.bars} label=${row.gaps ? `${row.gaps} gaps` : "complete"} />` },
  { name: "Last batch", numeric: true, cell: (row) => `${duration(row.last_accepted_s)} ago` },
  { name: "Batches/s", numeric: true, cell: (row) => (row.rate ? rate(row.rate.batches_per_s) : "–") },
  { name: "Bytes/s", numeric: true, cell: (row) => (row.rate ? bytes(row.rate.bytes_per_s) : "–") },
  { name: "Oldest gap", numeric: true, cell: (row) => (row.oldest_gap_s ? duration(row.oldest_gap_s) : "") },
  { name: "Boots", numeric: true, cell: (row) => count(row.boots) },
  { name: "Batches", numeric: true, cell: (row) => count(row.batches) },
  { name: "Overlaps", numeric: true, cell: (row) => (row.overlaps ? count(row.overlaps) : "") },
];

const Source = ({ found }) => html`As of <${Time} at=${found.as_of} ms=${false} />, ${found.source === "reconciler" ? "from the last full pass of a reconciler" : "from a listing of the store"}.`;

// The time of the rates, how much of it was read, and why they may be too low.
function Window({ window }) {
  if (window.since_unix_ns === null) return html`<p class="quiet">Rates: ${safe(window.problem)}.</p>`;
  const whole = window.window_s - window.read_s < 1;
  return html`<p class="quiet">Rates are of the ${duration(window.window_s)} until <${Time} ns=${window.until_unix_ns} ms=${false} />${whole ? "" : `, of which ${duration(window.read_s)} were read`}.${window.problem && html` <strong>Incomplete:</strong> ${safe(window.problem)}.`}</p>`;
}

const rates = (found) => (found ? `${rate(found.batches_per_s)} batches/s, ${rate(found.records_per_s)} records/s, ${bytes(found.bytes_per_s)}/s` : "not known");

function List({ query }) {
  const order = query.get("order") ?? "gaps", text = query.get("text") ?? "";
  const [typed, setTyped] = useState(text);
  const show = (changes) => {
    const next = { order, text, ...changes };
    go("agents", [], Object.fromEntries(Object.entries(next).filter(([name, value]) => value && !(name === "order" && value === "gaps"))));
  };
  useEffect(() => { const timer = setTimeout(() => typed !== text && show({ text: typed }), 250); return () => clearTimeout(timer); }, [typed]);
  const rows = useRows(`v1/agents?${new URLSearchParams({ order, text })}`, "agents", 30);
  return html`<${Head} title="Agents">Sequence numbers of each agent: accepted parts in green, missing parts in red.<//>
    <form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>Search<input data-search type="search" value=${typed} placeholder="part of an agent id" onInput=${(event) => setTyped(event.target.value)} /></label>
      <div class="row" role="group" aria-label="Order">${ORDERS.map(([name, title]) => html`<button type="button" aria-pressed=${order === name ? "true" : "false"} onClick=${() => show({ order: name })}>${title}</button>`)}</div>
    </form>
    <${Loaded} from=${rows}>${(page) => html`<p class="quiet"><${Source} found=${page} /> ${count(page.total)} agents${text ? " match" : ""}, ${count(page.with_gaps)} with gaps.</p>
      <${Window} window=${page.window} />
      ${page.partial && html`<div class="notice">${safe(page.partial)}</div>`}
      <${LongTable} key=${`${order} ${text}`} caption="Agents" columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.agent_id}
        empty=${html`<${Empty} title=${text ? "No agent matches" : "No agent has sent anything yet"}>${text ? "Search for another part of the id." : html`Create a key with <code>sluice agent init</code>, then run <code>sluice agent run</code>.`}<//>`} />`}<//>`;
}

const GAPS = [
  { name: "Missing", cell: (gap) => `${gap.seq_start}–${gap.seq_end}` },
  { name: "Records", numeric: true, cell: (gap) => count(gap.seq_end - gap.seq_start + 1) },
  { name: "For", numeric: true, cell: (gap) => duration(gap.age_s) },
  { name: "What is known", wide: true, cell: (gap) => (gap.tail ? "reported by the agent, not accepted yet" : "later records were accepted") },
];

function Boot({ boot, sent }) {
  const whole = boot.high_water + 1;
  const bars = boot.ranges.map(([start, end]) => [start / whole, (end + 1) / whole]);
  const more = boot.gaps.length + boot.gaps_more - 20;
  return html`<section class="card"><h2>Boot <code>${safe(boot.boot_id)}</code></h2>
    <${Bar} parts=${bars} label=${boot.gaps.length ? `${boot.gaps.length + boot.gaps_more} gaps in ${whole} sequence numbers` : `complete up to ${boot.high_water}`} />
    <dl class="facts"><dt>accepted</dt><dd>${count(boot.batches)} batches, ${boot.ranges.slice(0, 6).map(([start, end]) => `${start}–${end}`).join(", ")}${boot.ranges.length > 6 ? ", …" : ""}</dd>
      <dt>rate</dt><dd>${rates(sent)}</dd><dt>high-water mark</dt><dd>${count(boot.high_water)}</dd><dt>last batch</dt><dd>${duration(boot.last_accepted_s)} ago</dd>
      ${boot.overlaps > 0 && html`<dt>overlaps</dt><dd>${count(boot.overlaps)} batches repeat sequence numbers of earlier ones</dd>`}</dl>
    ${boot.gaps.length > 0 && html`<${Table} caption=${`Gaps of boot ${safe(boot.boot_id)}`} columns=${GAPS} rows=${boot.gaps.slice(0, 20)} />`}
    ${more > 0 && html`<p class="quiet">and ${count(more)} more gaps</p>`}</section>`;
}

function One({ agent }) {
  const from = useData(`v1/agents/boots?${new URLSearchParams({ agent })}`, 30);
  return html`<p><a href="#agents">← All agents</a></p><${Head} title=${safe(agent)} tools=${html`<a href=${placeUrl("batches", [], { agent })}>Batches</a><a href=${placeUrl("conflicts", [], { agent })}>Conflicts</a><a href=${placeUrl("explore", [], { query: selector({ agent_id: agent }) })}>Records</a>`} />
    <${Loaded} from=${from}>${(found) => html`<p class="quiet"><${Source} found=${found} /> All boots: ${rates(found.rate)}.</p><${Window} window=${found.window} />
      ${found.partial && html`<div class="notice">${safe(found.partial)}</div>`}
      ${found.boots.some((boot) => boot.gaps.some((gap) => !gap.tail)) && html`<div class="notice"><strong>Records are missing.</strong> If the agent still runs, its spool may contain them: <code>sluice agent parked list</code> on its machine lists batches that no gateway accepted. A gap that stays means that the records were lost before they were sent.</div>`}
      ${found.boots.map((boot, at) => html`<${Boot} boot=${boot} sent=${found.boot_rates[at]} key=${boot.boot_id} />`)}
      ${found.boots_more > 0 && html`<p class="quiet">and ${count(found.boots_more)} older boots</p>`}
      <${Command} text=${command("sluice gaps", "--agent", agent)} />`}<//>`;
}

export function Agents({ place }) {
  return place.rest[0] ? html`<${One} key=${place.rest[0]} agent=${place.rest[0]} />` : html`<${List} query=${place.query} />`;
}
