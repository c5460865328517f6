// Queue: lanes with owner, consumer and backlog, held batches and dead letters with reasons, and the gateways that feed them.
import { command, count, duration, html, placeUrl, rate, safe, useData, bytes } from "../lib.js";
import { Badge, Command, Copy, Empty, Head, Loaded, Table, Time } from "../parts.js";

// --- who owns a lane, and who consumes it ---

const OWNERSHIP = { owned: "good", lapsed: "error", disputed: "error", unowned: "warning", unknown: "warning" };
const Reconciler = ({ found }) => html`<div>${found.host || found.pid ? `${safe(found.host || "unknown host")}${found.pid ? ` (pid ${found.pid})` : ""}` : !found.url ? html`<code>${safe(found.member)}</code>` : ""} <code>${safe(found.url)}</code>
  ${found.since_unix_ns !== null && html`<br /><span class="quiet">since <${Time} ns=${found.since_unix_ns} ms=${false} /></span>`}</div>`;

function Owner({ found }) {
  if (!found) return html`<span class="quiet">–</span>`;
  return html`${found.state !== "owned" && html`<${Badge} tone=${OWNERSHIP[found.state]}>${safe(found.state)}<//>`}
    ${found.owners.map((one) => html`<${Reconciler} key=${one.member} found=${one} />`)}
    ${found.detail && html`<div class="quiet">${safe(found.detail)}</div>`}`;
}

// A reconciler that serves a lane over HTTP is its consumer; of any other one the register has an id only.
function Consumer({ row, served }) {
  if (!row.epoch) return html`<span class="quiet">none yet</span>`;
  const known = served.find((one) => one.consumer_id === row.consumer_id);
  return html`epoch ${count(row.epoch)}<br /><span class="quiet">${known ? html`over HTTP by <code>${safe(known.url)}</code>, opened ${duration(known.opened_s)} ago` : html`id <code title=${safe(row.consumer_id)}>${safe(row.consumer_id.slice(0, 8))}…</code>`}</span>`;
}

const LEASES = [
  { name: "Lane", cell: (row) => `${safe(row.queue)}.${row.lane}` },
  { name: "Consumer", cell: (row) => (row.consumer ? safe(row.consumer) : html`<span class="quiet">gave no name</span>`) },
  { name: "Entries", numeric: true, cell: (row) => count(row.entries) },
  { name: "Oldest claim", numeric: true, cell: (row) => `${duration(row.oldest_s)} ago` },
  { name: "First lease ends", numeric: true, cell: (row) => `in ${duration(row.ends_s)}` },
  { name: "Claimed before", numeric: true, cell: (row) => (row.attempts ? `${count(row.attempts)} times` : "") },
  { name: "Served by", cell: (row) => html`<code>${safe(row.url)}</code>${row.fenced && html` <${Badge} tone="error">fenced<//><br /><span class="quiet">Another consumer opened the lane: these entries are delivered again.</span>`}` },
];

function Leases({ view, served }) {
  const holders = served.flatMap((lane) => lane.holders.map((one) => ({
    ...one, url: lane.url, queue: lane.queue, lane: lane.lane,
    fenced: view.lanes.some((row) => row.queue === lane.queue && row.lane === lane.lane && row.consumer_id !== lane.consumer_id),
  })));
  return html`<section><h2>Leases over HTTP</h2>
    ${view.leases.filter((one) => one.problem).map((one) => html`<div class="notice">The leases of <code>${safe(one.url)}</code> are not known: ${safe(one.problem)}</div>`)}
    <${Table} caption="Leases" columns=${LEASES} rows=${holders} rowKey=${(row) => `${row.url} ${row.queue} ${row.lane} ${row.consumer}`}
      empty=${view.leases.length ? html`<p class="quiet">No consumer holds a lease.</p>` : html`<p class="quiet">Set <code>reconciler</code> of the console to see which consumers hold leases.</p>`} /></section>`;
}

const lanesOf = (served) => [
  { name: "Queue", cell: (row) => safe(row.queue) },
  { name: "Lane", numeric: true, cell: (row) => row.lane },
  { name: "State", cell: (row) => html`<${Badge} tone=${row.condition === "sound" ? "good" : "error"}>${row.condition}<//>` },
  { name: "Owner", wide: true, cell: (row) => html`<${Owner} found=${row.ownership} />` },
  { name: "Consumer", cell: (row) => html`<${Consumer} row=${row} served=${served} />` },
  { name: "Waiting batches", numeric: true, cell: (row) => count(row.waiting_batches) },
  { name: "Oldest", numeric: true, cell: (row) => (row.oldest_waiting_s === null ? "" : duration(row.oldest_waiting_s)) },
  { name: "Latest entry", numeric: true, cell: (row) => count(row.latest) },
  { name: "Acknowledged", numeric: true, cell: (row) => count(row.acked_through) },
  { name: "Register", numeric: true, cell: (row) => bytes(row.register_bytes) },
];
const REASONS = {
  blob_missing: "The blob is missing. Restore it under its key.",
  blob_corrupt: "The blob has other bytes than its name. Restore the original.",
  invalid_manifest: "The manifest cannot be read. Restore an earlier version of it.",
  foreign_key: "The manifest does not belong under this key. Find out who wrote it.",
};
// The batch that the key of a manifest names; agent and boot are in hexadecimal digits there.
function batchOf(key) {
  const found = /agent=([0-9a-f]+)\/boot=([0-9a-f]+)\/0*(\d+)-0*(\d+)\.json$/.exec(key);
  if (!found) return key;
  const text = (hex) => new TextDecoder().decode(Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16)));
  return `${text(found[1])}/${text(found[2])}/${found[3]}-${found[4]}`;
}

const HELD = [
  { name: "Reason", cell: (row) => html`<${Badge} tone="error">${safe(row.reason)}<//>` },
  { name: "Batch", wide: true, cell: (row) => html`<a href=${placeUrl("batches", [row.key])}>${safe(batchOf(row.key))}</a><br /><code class="quiet">${safe(row.key)}</code>` },
  { name: "Found", wide: true, cell: (row) => html`${safe(row.detail)}<br /><span class="quiet">${REASONS[row.reason] ?? ""}</span>` },
  { name: "Since", cell: (row) => html`<${Time} ns=${row.seen_at_unix_ns} ms=${false} />` },
];
const TONES = { open: "good", lapsed: "error", unreadable: "error" };
const GATEWAYS = [
  { name: "Gateway", cell: (row) => safe(row.gateway) },
  { name: "Process", cell: (row) => html`<code title=${safe(row.process)}>…${safe(row.process.slice(-10))}</code>` },
  { name: "State", cell: (row) => html`<${Badge} tone=${TONES[row.state]}>${row.state}<//>` },
  { name: "Journal read up to", numeric: true, cell: (row) => `${duration(row.behind_s)} ago` },
  { name: "Last written", numeric: true, cell: (row) => `${duration(row.silent_s)} ago` },
  { name: "Not processed", numeric: true, cell: (row) => count(row.unprocessed) },
];

const share = (value) => (value ? `${(value * 100).toFixed(1)}%` : "0");
const troubles = (row) => [row.problem, row.spool_full, row.principals_stale && "An invalid principals file is ignored.",
  row.refused > 0 && row.refused_as && `Most refused uploads: ${row.refused_as}.`].filter(Boolean);
const HEALTH = [
  { name: "Gateway", cell: (row) => html`<code>${safe(row.url)}</code>` },
  { name: "State", cell: (row) => html`<${Badge} tone=${row.problem ? "error" : "good"}>${row.problem ? "no metrics" : "responds"}<//>` },
  { name: "Trouble", wide: true, cell: (row) => troubles(row).map((text) => html`<div>${safe(text)}</div>`) },
  { name: "Refused", numeric: true, cell: (row) => (row.problem ? "" : share(row.refused)) },
  { name: "Slow calls", numeric: true, cell: (row) => (row.problem ? "" : share(row.slow)) },
  { name: "Failed calls", numeric: true, cell: (row) => (row.errors_per_s === null ? "" : `${rate(row.errors_per_s)}/s`) },
  { name: "Journal", numeric: true, cell: (row) => (row.problem ? "" : duration(row.journal_age_s)) },
];

// --- dead letters ---

const REMEDIES = {
  missing: "The blob is missing. Restore it under its key; the reconciler then enqueues the batch again.",
  corrupt: "The blob has other bytes than its name. Restore the original; the reconciler then enqueues the batch again.",
  invalid_frame: "A gateway accepted bytes that are not a frame. Keep the blob and report the fault.",
  disagrees: "Manifest and blob name two different batches. Find out who wrote the manifest.",
};
const nameOf = (row) => `${row.agent_id}/${row.boot_id}/${row.seq_start}-${row.seq_end}`;
const DEAD = [
  { name: "Reason", cell: (row) => html`<${Badge} tone="error">${safe(row.reason)}<//>` },
  { name: "Batch", wide: true, cell: (row) => html`<a href=${placeUrl("batches", [nameOf(row)])}><code>${safe(nameOf(row))}</code></a><br /><span class="quiet">${count(row.record_count)} ${safe(row.kind)}</span>` },
  { name: "Found", wide: true, cell: (row) => html`${safe(row.detail)}<br /><span class="quiet">${REMEDIES[row.reason] ?? ""}</span>` },
  { name: "Accepted", cell: (row) => html`<${Time} at=${row.accepted_at} ms=${false} />` },
  { name: "Last tried", cell: (row) => html`<${Time} at=${row.observed_at} ms=${false} />` },
  { name: "Command", cell: (row) => html`<${Copy} text=${command("sluice explain", nameOf(row))} label="Copy" />` },
];

function DeadLetters() {
  const from = useData("v1/dead-letters?limit=100", 60);
  return html`<section><h2>Dead letters</h2>
    ${from.problem?.status === 404 ? html`<${Empty} title="No query service">Dead letters are rows of the lake. Set <code>query</code> of the console to a query service to see them here.<//>` : html`<${Loaded} from=${from}>${(found) => html`
      <${Table} caption="Dead letters" columns=${DEAD} rows=${found.dead_letters} rowKey=${nameOf} empty=${html`<${Empty} title="No dead letters">Every batch that ingestion has read is in the lake.<//>`} />
      ${found.more && html`<p class="quiet">There may be more than these ${count(found.dead_letters.length)}, accepted earlier.</p>`}`}<//>`}
    <${Command} text=${command("sluice query dead-letters")} /></section>`;
}

export function Queue() {
  const from = useData("v1/queue", 10);
  return html`<${Head} title="Queue">From acceptance to the lake: gateways write journals, the reconciler verifies and enqueues, Spark acknowledges.<//>
    <${Loaded} from=${from}>${(view) => {
    const served = view.leases.flatMap((one) => one.lanes.map((lane) => ({ ...lane, url: one.url })));
    const broken = view.lanes.filter((lane) => lane.condition !== "sound"), found = view.discovery;
    const over = (one) => one.state === "closed" || one.state === "replaced";
    const caughtUp = found.journaled && !found.processes_more && found.processes.length > 0 && found.processes.every((one) => !one.unprocessed && (over(one) || one.state === "open"));
    const ended = caughtUp && found.processes.every(over);
    return html`${broken.map((lane) => html`<div class="problem" role="alert"><strong>Lane ${lane.lane} of ${safe(lane.queue)} is ${lane.condition}</strong><p>${safe(lane.problem)}</p></div>`)}
      <section><h2>Discovery</h2><dl class="facts">
        <dt>enqueued up to</dt><dd>${found.complete_through_unix_ns === null ? "not known: no reconciler has finished a pass" : html`<${Time} ns=${found.complete_through_unix_ns} />, ${ended ? "and now: no gateway is open" : caughtUp ? `${duration(found.behind_s)} ago, the newest report of a gateway` : `${duration(found.behind_s)} behind`}`}</dd>
        ${found.held_by && !caughtUp && html`<dt>held by</dt><dd>${safe(found.held_by)}</dd>`}
        <dt>decided by</dt><dd>${found.journaled ? "the journals of the gateways" : "full passes"}</dd>
        <dt>last full pass</dt><dd>${found.pass_age_s === null ? "none yet" : `began ${duration(found.pass_age_s)} ago`}${found.pass_running ? `; one is running, ${count(found.pass_listed)} keys listed` : ""}</dd></dl>
        <${Command} text=${command("sluice reconciler status")} /></section>
      <section><h2>Lanes</h2><${Table} caption="Lanes" columns=${lanesOf(served)} rows=${view.lanes} rowKey=${(row) => `${row.queue}.${row.lane}`} empty=${html`<${Empty} title="No queue exists yet">The reconciler creates it with the first batch: <code>sluice reconciler</code>.<//>`} /><${Command} text=${command("sluice queue status")} /></section>
      <${Leases} view=${view} served=${served} />
      <section><h2>Held back</h2>
        ${view.held_unreadable.length > 0 && html`<div class="notice">${count(view.held_unreadable.length)} hold records cannot be read: <code>${safe(view.held_unreadable[0])}</code></div>`}
        <${Table} caption="Held batches" columns=${HELD} rows=${view.held} rowKey=${(row) => row.key} empty=${html`<${Empty} title="Nothing is held back">Every accepted batch has a valid manifest and a valid blob.<//>`} />
        ${view.held_more && html`<p class="quiet">More than ${count(view.held.length)} batches are held; the first are shown.</p>`}</section>
      <${DeadLetters} />
      <section><h2>Gateways</h2><${Table} caption="Gateway processes" columns=${GATEWAYS} rows=${found.processes} rowKey=${(row) => row.process} empty=${html`<${Empty} title="No gateway has registered">Start one: <code>sluice gateway</code>.<//>`} />
        ${found.processes_more > 0 && html`<p class="quiet">and ${count(found.processes_more)} older processes</p>`}
        <h3>Metrics of the last minutes</h3><${Table} caption="Metrics of gateways" columns=${HEALTH} rows=${view.gateways} rowKey=${(row) => row.url} empty=${html`<${Empty} title="No metrics are read">Set <code>gateways</code> of the console to the URL of each gateway to see what it refuses, its store calls and its spool.<//>`} /></section>`;
  }}<//>`;
}
