// Batches: the newest accepted batches, and the timeline of one batch.
import { bytes, command, count, duration, go, html, placeUrl, safe, useData, useState, ofNs } from "../lib.js";
import { Ago, Badge, Command, Copy, Empty, Head, Loaded, Pages, Sha, Table, Time } from "../parts.js";

const subjectOf = (one) => `${one.agent_id}/${one.boot_id}/${one.seq_start}-${one.seq_end}`;
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

const Step = ({ tone, title, time, children }) => html`<li class=${tone}><h3>${title}${time && html` <span class="quiet">· ${time}</span>`}</h3>${children}</li>`;
const Key = ({ value }) => html`<div class="key"><code>${safe(value)}</code><${Copy} text=${value} label="Copy key" /></div>`;

function QueueStep({ one }) {
  const where = `${safe(one.queue)} lane ${one.lane}`;
  if (one.sequence !== null) return html`<${Step} tone="" title=${`Waiting in ${where}`}><p>Entry ${one.sequence}; acknowledged through ${one.acked_through}. The next run of the ingest commits it.</p><${Key} value=${one.work_list} /><//>`;
  if (one.enqueued) return html`<${Step} tone="good" title=${one.queue === "spark" ? "In the lake" : `Consumed from ${where}`}><p>Enqueued in ${where} and acknowledged (through ${one.acked_through}): the consumer committed it.</p><//>`;
  return html`<${Step} tone="" title=${`Not enqueued in ${where}`}><p>The reconciler enqueues it with its next pass.</p><//>`;
}

const INDEXES = { "accepted-by-time": "by time", "accepted-by-blob": "by blob", "raw-blobs-by-time": "among the blobs of its hour" };

function Timeline({ path }) {
  const { manifest: one, identity: who } = path;
  const subject = subjectOf(who);
  return html`<section><h2><code>${safe(subject)}</code></h2><ol class="timeline">
    ${one && one.max_ts_unix_ns && html`<${Step} tone="good" title="Recorded" time=${html`<${Time} ns=${one.min_ts_unix_ns} /> to <${Time} ns=${one.max_ts_unix_ns} />`}><p>The times of its ${count(one.record_count)} ${one.kind}, by the clock of the sender <strong>${safe(one.principal)}</strong>.</p><//>`}
    ${one ? html`<${Step} tone="good" title="Accepted" time=${html`<${Time} ns=${one.accepted_at_unix_ns} />, by the store's clock`}>
        <p>By gateway <strong>${safe(one.collector_id)}</strong>, attempt <code>${safe(one.attempt_id)}</code>. The proof is the manifest: the store allows one create of this key.</p><${Key} value=${path.manifest_key} /><//>
      <${Step} tone=${path.blob === "ok" ? "good" : "bad"} title=${path.blob === "ok" ? "Blob verified now" : "Blob is not usable"}>
        <p>${path.blob === "ok" ? html`${bytes(one.frame_bytes)}, sha256 <code>${one.frame_sha256}</code>.` : html`<strong>${safe(path.blob)}</strong>. Restore the object from a version or a replica; then the reconciler enqueues the batch.`}</p><${Key} value=${one.raw_blob_key} /><//>`
    : html`<${Step} tone="bad" title="Not accepted"><p>${safe(path.blob)}. No batch of this identity was acknowledged.</p><${Key} value=${path.manifest_key} /><//>`}
    ${path.mark && html`<${Step} tone="bad" title="Held back"><p>The reconciler does not enqueue it. <a href="#queue">See the reason</a>.</p><${Key} value=${path.mark} /><//>`}
    ${Object.entries(path.indexes).map(([key, present]) => html`<${Step} tone=${present ? "good" : ""} title=${`${present ? "Indexed" : "Not indexed yet"} ${INDEXES[key.split("/")[0]] ?? ""}`}><${Key} value=${key} /><//>`)}
    ${path.queues.map((one) => html`<${QueueStep} one=${one} />`)}
    ${path.quarantined.map((key) => html`<${Step} tone="bad" title="Other bytes were refused"><p><a href=${placeUrl("conflicts", [], { agent: who.agent_id })}>Conflicts of this agent</a></p><${Key} value=${key} /><//>`)}
  </ol><${Command} text=${command("sluice explain", subject)} /></section>`;
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
