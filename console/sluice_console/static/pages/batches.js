// Batches: the newest accepted batches, and the timeline of one batch.
import { bytes, command, count, go, html, placeUrl, safe, useData, useState } from "../lib.js";
import { Command, Empty, Head, Loaded, Pages, Sha, Table, Time } from "../parts.js";
import { Timeline, subjectOf } from "./timeline.js";

const COLUMNS = [
  { name: "Accepted", cell: (row) => html`<${Time} ns=${row.accepted_at_unix_ns} />` },
  { name: "Agent", cell: (row) => safe(row.agent_id) },
  { name: "Sequence", cell: (row) => html`<a href=${placeUrl("batches", [subjectOf(row)])}>${row.seq_start}–${row.seq_end}</a>` },
  { name: "Kind", cell: (row) => row.kind },
  { name: "Records", numeric: true, cell: (row) => count(row.record_count) },
  { name: "Size", numeric: true, cell: (row) => bytes(row.frame_bytes) },
  { name: "Gateway", cell: (row) => safe(row.collector_id) },
  { name: "sha256", cell: (row) => html`<${Sha} value=${row.frame_sha256} />` },
  { name: "Boot", cell: (row) => html`<code>${safe(row.boot_id)}</code>` },
];

function List({ query }) {
  const agent = query.get("agent") ?? "", before = query.get("before") ?? "", after = query.get("after") ?? "";
  const [typed, setTyped] = useState(agent), [subject, setSubject] = useState("");
  const wanted = new URLSearchParams({ limit: "100", ...(agent && { agent }), ...(agent && after && { after }), ...(!agent && before && { before }) });
  const from = useData(`v1/batches?${wanted}`, before || after ? 0 : 15);
  const open = (event) => { event.preventDefault(); if (subject.trim()) go("batches", [subject.trim()]); };
  const filter = (event) => { event.preventDefault(); go("batches", [], typed ? { agent: typed } : null); };
  const seek = (event) => { const at = new Date(event.target.value); if (!Number.isNaN(at.getTime())) go("batches", [], { before: String(BigInt(at.getTime()) * 1000000n) }); };
  return html`<${Head} title="Batches">${agent ? `Batches of ${safe(agent)}, in the order of their sequence numbers.` : "Accepted batches, the newest first. A batch appears when the reconciler has indexed it."}<//>
    <div class="filters"><form onSubmit=${open} class="row" role="search"><label>Batch<input data-search size="34" value=${subject} placeholder="agent/boot/start-end, or a sha256" onInput=${(event) => setSubject(event.target.value)} /></label><button type="submit">Open</button></form>
      <form onSubmit=${filter} class="row"><label>Agent<input value=${typed} placeholder="exact agent id" onInput=${(event) => setTyped(event.target.value)} /></label><button type="submit">Filter</button></form>
      ${!agent && html`<label>Accepted before (local time)<input type="datetime-local" onChange=${seek} /></label>`}</div>
    <${Loaded} from=${from}>${(page) => html`
      ${page.unreadable.length > 0 && html`<div class="notice">${count(page.unreadable.length)} objects cannot be read, so batches may be missing: <code>${safe(page.unreadable[0])}</code>. Run <code>sluice rebuild --verify</code>.</div>`}
      <${Table} caption="Accepted batches" columns=${COLUMNS} rows=${page.batches} rowKey=${subjectOf} empty=${html`<${Empty} title="No batches here">${agent ? "This agent has no accepted batch." : html`None was indexed in the seven days before this time. ${before ? "Choose another time" : html`Start <code>sluice reconciler</code>`}, or filter by agent.`}<//>`} />
      <${Pages} shown=${`${page.batches.length} batches`} first=${(before || after) && (() => go("batches", [], agent ? { agent } : null))}
        next=${page.next && (() => go("batches", [], agent ? { agent, after: page.next } : { before: page.next }))} />
      <${Command} text=${agent ? command("sluice batches", "--agent", agent) : command("sluice batches")} />`}<//>`;
}

function One({ subject }) {
  const from = useData(`v1/batches/path?${new URLSearchParams({ subject })}`);
  return html`<p><a href="#batches">← All batches</a></p><${Head} title="Batch" tools=${html`<button type="button" onClick=${from.reload}>Verify again</button>`}>Every object of one batch, read and verified now.<//>
    <${Loaded} from=${from}>${(paths) => (paths.length ? paths.map((path) => html`<${Timeline} path=${path} />`)
    : subject.includes("/") ? html`<${Empty} title="No accepted batch contains this record">It was never accepted, or the agent, the boot or the number is another one. <code>sluice gaps</code> lists what is missing.<//>`
      : html`<${Empty} title="Nothing names this blob">It is an orphan, or a blob that is not indexed yet. Garbage collection deletes orphans after the retry horizon, each with a proof.<//>`)}<//>`;
}

export function Batches({ place }) {
  const subject = place.rest.join("/");
  return subject ? html`<${One} key=${subject} subject=${subject} />` : html`<${List} key=${place.query.toString()} query=${place.query} />`;
}
