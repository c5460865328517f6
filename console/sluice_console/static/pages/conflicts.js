// Conflicts: the list, and one conflict with both sides, the differing records and the decision.
import { api, command, count, duration, go, html, ofNs, placeUrl, safe, useData, useState } from "../lib.js";
import { Ago, Badge, Command, Decide, Empty, Head, Loaded, Pages, Problem, Sha, Table, Time } from "../parts.js";

const STATES = { open: ["warning", "open"], accept_existing: ["good", "accepted bytes kept"], quarantine_identity: ["error", "boot quarantined"] };
const State = ({ value }) => html`<${Badge} tone=${STATES[value]?.[0]}>${STATES[value]?.[1] ?? safe(value)}<//>`;

const COLUMNS = [
  { name: "State", cell: (row) => html`<${State} value=${row.state} />` },
  { name: "Agent", cell: (row) => safe(row.agent_id) },
  { name: "Boot", cell: (row) => html`<code>${safe(row.boot_id)}</code>` },
  { name: "Sequence", numeric: true, cell: (row) => `${row.seq_start}–${row.seq_end}` },
  { name: "First seen", cell: (row) => html`<${Time} ns=${row.first_seen_unix_ns} />` },
  { name: "Details", cell: (row) => html`<a href=${placeUrl("conflicts", [row.id])} aria-label=${`Compare the conflict of ${safe(row.agent_id)} ${row.seq_start}`}>Compare</a>` },
];

function List({ query }) {
  const agent = query.get("agent") ?? "", after = query.get("after") ?? "";
  const [text, setText] = useState(agent);
  const wanted = new URLSearchParams({ limit: "100", ...(agent && { agent }), ...(after && { after }) });
  const from = useData(`v1/conflicts?${wanted}`, 15);
  const search = (event) => { event.preventDefault(); go("conflicts", [], text ? { agent: text } : null); };
  return html`<${Head} title="Conflicts">Other bytes that were sent under an accepted identity. They are quarantined; nothing is lost until you decide.<//>
    <form class="filters" role="search" onSubmit=${search}><label>Agent<input data-search value=${text} placeholder="exact agent id" onInput=${(event) => setText(event.target.value)} /></label><button type="submit">Filter</button></form>
    <${Loaded} from=${from}>${(page) => html`
      <${Table} caption="Conflicts" columns=${COLUMNS} rows=${page.conflicts} rowKey=${(row) => row.id}
        empty=${html`<${Empty} title=${agent ? "No conflicts of this agent" : "No conflicts"}>${agent ? html`<a href="#conflicts">Show all conflicts</a>.` : "Every identity was sent with the same bytes each time."}<//>`} />
      <${Pages} shown=${`${page.conflicts.length} conflicts`} first=${after && (() => go("conflicts", [], agent ? { agent } : null))}
        next=${page.next_after && (() => go("conflicts", [], { ...(agent && { agent }), after: page.next_after }))} />`}<//>`;
}

// The part of two lines that differs, so that the eye finds it in a long record.
function parts(ours, theirs) {
  let start = 0, end = 0;
  const most = Math.min(ours.length, theirs.length);
  while (start < most && ours[start] === theirs[start]) start += 1;
  while (end < most - start && ours[ours.length - 1 - end] === theirs[theirs.length - 1 - end]) end += 1;
  return (line) => [line.slice(0, start), line.slice(start, line.length - end), line.slice(line.length - end)];
}

function Line({ text, cut }) {
  if (text === null) return html`<span class="quiet">no record</span>`;
  const [before, changed, behind] = cut ? cut(text) : ["", text, ""];
  return html`${safe(before)}${changed && html`<b>${safe(changed)}</b>`}${safe(behind)}`;
}

function Records({ id, difference }) {
  const from = useData(`v1/conflicts/${encodeURIComponent(id)}/records?limit=100`);
  return html`<section><h2>Records that differ</h2><${Loaded} from=${from}>${(found) => html`
    ${found.accepted_problem && html`<div class="problem"><strong>The accepted side cannot be compared</strong><p>${safe(found.accepted_problem)}</p></div>`}
    ${found.submitted_problem && html`<div class="problem"><strong>The refused side cannot be compared</strong><p>${safe(found.submitted_problem)}</p></div>`}
    ${!found.accepted_problem && !found.submitted_problem && (found.pairs.length === 0
      ? html`<${Empty} title="All records are equal">Only the encoding or the resource of the batch differs. Keeping the accepted bytes loses nothing.<//>`
      : html`<p class="quiet">${count(difference?.differing_count ?? found.pairs.length)} of ${count(Math.max(difference?.accepted_count ?? 0, difference?.submitted_count ?? 0))} records differ${found.more ? `; the first ${found.pairs.length} are shown` : ""}.</p>
        <table class="diff"><caption class="hidden">Records that differ</caption><thead><tr><th scope="col">Sequence</th><th scope="col">Accepted</th><th scope="col">Refused</th></tr></thead><tbody>
        ${found.pairs.map((pair) => { const cut = pair.accepted !== null && pair.submitted !== null ? parts(pair.accepted, pair.submitted) : null;
    return html`<tr><td>${pair.seq}</td><td class="ours"><${Line} text=${pair.accepted} cut=${cut} /></td><td class="theirs"><${Line} text=${pair.submitted} cut=${cut} /></td></tr>`; })}</tbody></table>`)}`}<//></section>`;
}

const Side = ({ title, facts }) => html`<div class="card"><h2>${title}</h2><dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl></div>`;

function One({ id }) {
  const from = useData(`v1/conflicts/${encodeURIComponent(id)}`);
  const resolve = (action) => (note) => api(`v1/conflicts/${encodeURIComponent(id)}/resolve`, { method: "POST", body: { action, note } });
  return html`<p><a href="#conflicts">← All conflicts</a></p><${Loaded} from=${from}>${(view) => {
    const { conflict: one, quarantine: kept, accepted, decision } = view;
    const subject = `${one.agent_id}/${one.boot_id}/${one.seq_start}-${one.seq_end}`;
    return html`<${Head} title=${`Conflict of ${safe(one.agent_id)}`} tools=${html`<${State} value=${one.state} />`}>Sequence ${one.seq_start}–${one.seq_end} of boot <code>${safe(one.boot_id)}</code>, first seen <${Time} ns=${one.first_seen_unix_ns} /> (<${Ago} ns=${one.first_seen_unix_ns} />)<//>
      <div class="sides">
        <${Side} title="Accepted: owns the identity" facts=${[["sha256", html`<code>${kept.accepted_frame_sha256}</code>`], ["accepted", accepted ? html`<${Time} ns=${accepted.accepted_at_unix_ns} /> by ${safe(accepted.collector_id)}` : "the manifest cannot be read"], ["records", accepted ? `${count(accepted.record_count)} ${accepted.kind}` : "–"], ["batch", html`<a href=${placeUrl("batches", [subject])}>Timeline</a>`]]} />
        <${Side} title="Refused: quarantined" facts=${[["sha256", html`<code>${kept.submitted_frame_sha256}</code>`], ["observed", html`<${Time} ns=${kept.observed_at_unix_ns} /> by ${safe(kept.collector_id)}`], ["records", view.difference ? count(view.difference.submitted_count) : "–"], ["blob", html`<code>${kept.submitted_raw_blob_key}</code>`]]} />
      </div>
      <${Records} id=${id} difference=${view.difference} />
      <section><h2>Decision</h2>${decision
    ? html`<p><${State} value=${decision.action} /> by <strong>${safe(decision.decided_by)}</strong>, <${Time} ns=${decision.decided_at_unix_ns} />${decision.note && html`: “${safe(decision.note)}”`}</p>`
    : html`<p>None yet. The agent keeps its copy of the refused bytes until you decide.</p>`}
        <div class="row">
          <${Decide} title="Keep the accepted bytes?" label="Keep the accepted bytes" explain="The agent then deletes its copy of the refused bytes. The quarantined blob stays in the store." run=${resolve("accept_existing")} done=${from.reload} />
          <${Decide} title="Quarantine this boot?" label="Quarantine the boot" danger explain="Gateways refuse everything that this boot of the agent sends from now on. This cannot be undone; the agent returns under a new boot." run=${resolve("quarantine_identity")} done=${from.reload} />
        </div>
        <${Command} text=${command(`sluice conflicts show ${id}`)} />
      </section>`;
  }}<//>`;
}

export function Conflicts({ place }) {
  return place.rest[0] ? html`<${One} key=${place.rest[0]} id=${place.rest[0]} />` : html`<${List} key=${place.query.toString()} query=${place.query} />`;
}
