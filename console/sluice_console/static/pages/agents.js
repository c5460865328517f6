// Agents: which sequence numbers of each agent were accepted, and which are missing.
import { bytes, command, count, duration, go, html, placeUrl, rate, safe, useData, useEffect, useState } from "../lib.js";
import { LongTable, useRows } from "../long_table.js";
import { Badge, Bar, Command, Empty, Head, Loaded, Table, Time } from "../parts.js";

const ORDERS = [["gaps", "Gaps first"], ["seen", "Last seen"], ["name", "Name"]];

const Gaps = ({ row }) => (row.gaps === 0 ? html`<${Badge} tone="good">complete<//>`
  : row.in_transit ? html`<${Badge}>${count(row.missing)} in transit<//>`
    : html`<${Badge} tone="error">${count(row.gaps)} ${row.gaps === 1 ? "gap" : "gaps"}, ${count(row.missing)} missing<//>`);

const COLUMNS = [
  { name: "Agent", cell: (row) => html`<a href=${placeUrl("agents", [row.agent_id])}>${safe(row.agent_id)}</a>` },
  { name: "Completeness", cell: (row) => html`<${Gaps} row=${row} />` },
  { name: "Latest boot", cell: (row) => html`<${Bar} parts=${row.bars} label=${row.gaps ? `${row.gaps} gaps` : "complete"} />` },
  { name: "Oldest gap", numeric: true, cell: (row) => (row.oldest_gap_s ? duration(row.oldest_gap_s) : "") },
  { name: "Last batch", numeric: true, cell: (row) => `${duration(row.last_accepted_s)} ago` },
  { name: "Boots", numeric: true, cell: (row) => count(row.boots) },
  { name: "Batches", numeric: true, cell: (row) => count(row.batches) },
  { name: "Overlaps", numeric: true, cell: (row) => (row.overlaps ? count(row.overlaps) : "") },
];

const Source = ({ found }) => html`As of <${Time} at=${found.as_of} ms=${false} />, ${found.source === "reconciler" ? "from the last full pass of a reconciler" : "from a listing of the store"}.`;

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

function Boot({ boot }) {
  const whole = boot.high_water + 1;
  const bars = boot.ranges.map(([start, end]) => [start / whole, (end + 1) / whole]);
  const more = boot.gaps.length + boot.gaps_more - 20;
  return html`<section class="card"><h2>Boot <code>${safe(boot.boot_id)}</code></h2>
    <${Bar} parts=${bars} label=${boot.gaps.length ? `${boot.gaps.length + boot.gaps_more} gaps in ${whole} sequence numbers` : `complete up to ${boot.high_water}`} />
    <dl class="facts"><dt>accepted</dt><dd>${count(boot.batches)} batches, ${boot.ranges.slice(0, 6).map(([start, end]) => `${start}–${end}`).join(", ")}${boot.ranges.length > 6 ? ", …" : ""}</dd>
      <dt>high-water mark</dt><dd>${count(boot.high_water)}</dd><dt>last batch</dt><dd>${duration(boot.last_accepted_s)} ago</dd>
      ${boot.overlaps > 0 && html`<dt>overlaps</dt><dd>${count(boot.overlaps)} batches repeat sequence numbers of earlier ones</dd>`}</dl>
    ${boot.gaps.length > 0 && html`<${Table} caption=${`Gaps of boot ${safe(boot.boot_id)}`} columns=${GAPS} rows=${boot.gaps.slice(0, 20)} />`}
    ${more > 0 && html`<p class="quiet">and ${count(more)} more gaps</p>`}</section>`;
}

// What the newest sample counted; it lists the busiest agents only.
function Rate({ agent }) {
  const from = useData("v1/overview", 30);
  if (!from.data) return null;
  const rows = from.data.activity.filter((row) => row.agent_id === agent);
  const others = from.data.activity.some((row) => row.agent_id === "");
  return html`<p class="quiet">Accepted now: ${rows.length ? rows.map((row) => `${rate(row.records_per_s)} ${row.kind}/s, ${bytes(row.bytes_per_s)}/s`).join("; ") : others ? "less than the busiest agents, which the overview lists." : "nothing in the last minute."}</p>`;
}

function One({ agent }) {
  const from = useData(`v1/agents/boots?${new URLSearchParams({ agent })}`, 30);
  return html`<p><a href="#agents">← All agents</a></p><${Head} title=${safe(agent)} tools=${html`<a href=${placeUrl("batches", [], { agent })}>Batches</a><a href=${placeUrl("conflicts", [], { agent })}>Conflicts</a><a href=${placeUrl("explore", [], { agent })}>Records</a>`} />
    <${Loaded} from=${from}>${(found) => html`<p class="quiet"><${Source} found=${found} /></p><${Rate} agent=${agent} />
      ${found.partial && html`<div class="notice">${safe(found.partial)}</div>`}
      ${found.boots.some((boot) => boot.gaps.some((gap) => !gap.tail)) && html`<div class="notice"><strong>Records are missing.</strong> If the agent still runs, its spool may contain them: <code>sluice agent parked list</code> on its machine lists batches that no gateway accepted. A gap that stays means that the records were lost before they were sent.</div>`}
      ${found.boots.map((boot) => html`<${Boot} boot=${boot} key=${boot.boot_id} />`)}
      ${found.boots_more > 0 && html`<p class="quiet">and ${count(found.boots_more)} older boots</p>`}
      <${Command} text=${command("sluice gaps", "--agent", agent)} />`}<//>`;
}

export function Agents({ place }) {
  return place.rest[0] ? html`<${One} key=${place.rest[0]} agent=${place.rest[0]} />` : html`<${List} query=${place.query} />`;
}
