// One batch as a timeline from its seal to the rollups: each object with key, size, hash, clock and proof.
import { bytes, command, count, html, placeUrl, safe } from "../lib.js";
import { Command, Copy, Time } from "../parts.js";

export const subjectOf = (one) => `${one.agent_id}/${one.boot_id}/${one.seq_start}-${one.seq_end}`;

const Step = ({ tone, title, time, children }) => html`<li class=${tone}><h3>${title}${time && html` <span class="quiet">· ${time}</span>`}</h3>${children}</li>`;
const Key = ({ value }) => html`<div class="key"><code>${safe(value)}</code><${Copy} text=${value} label="Copy key" /></div>`;

function Stored({ one }) {
  if (!one) return null;
  return html`<p>${safe(one.proof)}</p><${Key} value=${one.key} />${one.present && html`${one.packed_in && html`<p class="quiet">packed in</p><${Key} value=${one.packed_in} />`}
    <p class="quiet">${bytes(one.size_bytes)}, written <${Time} ns=${one.last_modified_unix_ns} /> by the store's clock, sha256 <code>${one.sha256 ? safe(one.sha256) : "not read"}</code></p>`}`;
}

const toneOf = (one) => (one?.right === false ? "bad" : one?.present ? "good" : "");

const SEALERS = { sender: "Sealed by the sender", door_request: "Sealed by the gateway, of one request", door_combined: "Sealed by the gateway, of several requests" };

// No record has the time of a seal, so the page shows between which times it was, and by whose clock.
function Seal({ seal, principal }) {
  const door = seal.sealer !== "sender", by = html`by the clock of gateway <strong>${safe(seal.gateway)}</strong>`;
  return html`<${Step} tone="good" title=${SEALERS[seal.sealer] ?? "Sealed"} time=${door && seal.before_unix_ns ? html`<${Time} ns=${seal.before_unix_ns} />, by the gateway's clock` : "time not recorded"}>
    <p>${safe(seal.meaning)}</p><dl class="facts">
      ${seal.after_unix_ns && html`<dt>after</dt><dd><${Time} ns=${seal.after_unix_ns} />, when its boot began, ${door ? by : html`by the clock of the sender <strong>${safe(principal)}</strong>`}</dd>`}
      ${seal.before_unix_ns && html`<dt>before</dt><dd><${Time} ns=${seal.before_unix_ns} />, when the gateway had the whole frame, ${by}</dd>`}
      <dt>before</dt><dd><${Time} ns=${seal.accepted_before_unix_ns} />, when it was accepted, by the store's clock</dd></dl><//>`;
}

function QueueStep({ one, list }) {
  const where = `${safe(one.queue)} lane ${one.lane}`;
  if (one.sequence !== null) return html`<${Step} tone="" title=${`Waiting in ${where}`}><p>Entry ${one.sequence}; acknowledged through ${one.acked_through}. The next run of its consumer commits it.</p><${Stored} one=${list} /><//>`;
  if (one.enqueued) return html`<${Step} tone="good" title=${`Consumed from ${where}`}><p>The consumer acknowledged it; the lane is acknowledged through ${one.acked_through}.</p><//>`;
  return html`<${Step} tone="" title=${`Not enqueued in ${where}`}><p>The reconciler enqueues it with its next pass.</p><//>`;
}

const INDEXES = { by_time: "by time", by_blob: "by blob", raw_by_time: "among the blobs of its hour" };
const LAKE = { in_lake: ["good", "In the lake"], not_yet: ["", "Not in the lake yet"], dead_letter: ["bad", "A dead letter: not in the lake"], unreadable: ["bad", "The lake cannot be read"] };
const ROLLUPS = { rolled_up: ["good", "Rolled up"], not_yet: ["", "Not rolled up yet"], no_rollups: ["", "Not rolled up yet"], other_kind: ["", "Not rolled up"], unreadable: ["bad", "The rollups cannot be read"] };

function Lake({ lake, kind }) {
  const [tone, title] = LAKE[lake.state] ?? ["", safe(lake.state)];
  return html`<${Step} tone=${tone} title=${title}>
    ${lake.row && html`<p>Its records are in <code>${safe(lake.table)}</code>. The proof is its row in the ledger, which was committed with them: lane ${lake.row.lane}, entry ${lake.row.sequence}.</p><${Key} value=${lake.row.key} /><p class="quiet">${bytes(lake.row.size_bytes)}, with the rows of its hour</p>`}
    ${lake.state === "not_yet" && html`<p>No row of the ledger names it. The ingest commits its ${safe(kind)} and this row together.</p>`}
    ${lake.problem && html`<p>${safe(lake.problem)}${lake.state === "dead_letter" ? html`. <a href="#queue">See the dead letters</a>` : ""}</p>`}<//>`;
}

const WINDOWS = { "1m": "minute", "1h": "hour" };

function Rollup({ rollup }) {
  const [tone, title] = ROLLUPS[rollup.state] ?? ["", safe(rollup.state)];
  const from = rollup.source;
  return html`<${Step} tone=${tone} title=${title} time=${from?.last_modified_unix_ns && html`range decided <${Time} ns=${from.last_modified_unix_ns} />, by the store's clock`}><p>${safe(rollup.reason)}</p>
    ${rollup.windows.length > 0 && html`<dl class="facts">${rollup.windows.map((one) => html`<dt>${WINDOWS[one.window] ?? safe(one.window)}</dt><dd>${count(one.count)} ${one.count === 1 ? "window" : "windows"} of the table <code>rollups</code>: <${Time} ns=${one.first_start_unix_ns} ms=${false} />${one.count > 1 && html` to <${Time} ns=${one.last_start_unix_ns} ms=${false} />`}, by the times of its records</dd>`)}</dl>`}
    ${from && html`<p>Source range ${count(from.number)}: the table names a later one or this one, so its rows are committed.</p><${Key} value=${from.key} />${from.size_bytes !== null && html`<p class="quiet">${bytes(from.size_bytes)}</p>`}`}
    ${rollup.state === "rolled_up" && !from && html`<p class="quiet">The record of its source range was removed at its age.</p>`}<//>`;
}

export function Timeline({ path }) {
  const { manifest: one, identity: who } = path;
  const subject = subjectOf(who), of = (role) => path.objects.filter((object) => object.role === role);
  const byKey = (key) => path.objects.find((object) => object.key === key) ?? null;
  const manifest = of("manifest")[0], blob = of("blob")[0];
  return html`<section><h2><code>${safe(subject)}</code></h2><ol class="timeline">
    ${one && one.max_ts_unix_ns && html`<${Step} tone="good" title="Recorded" time=${html`<${Time} ns=${one.min_ts_unix_ns} /> to <${Time} ns=${one.max_ts_unix_ns} />`}><p>The times of its ${count(one.record_count)} ${safe(one.kind)}, by the clock of the sender <strong>${safe(one.principal)}</strong>.</p><//>`}
    ${path.sealed && html`<${Seal} seal=${path.sealed} principal=${one.principal} />`}
    ${one ? html`<${Step} tone=${path.blob === "ok" ? "good" : "bad"} title=${path.blob === "ok" ? "Blob verified now" : "Blob is not usable"}>
        ${path.blob !== "ok" && html`<p><strong>${safe(path.blob)}</strong>. Restore the object from a version or a replica; then the reconciler enqueues the batch.</p>`}<${Stored} one=${blob} /><//>
      <${Step} tone="good" title="Accepted" time=${html`<${Time} ns=${one.accepted_at_unix_ns} />, by the store's clock`}>
        <p>By gateway <strong>${safe(one.collector_id)}</strong>, attempt <code>${safe(one.attempt_id)}</code>.</p><${Stored} one=${manifest} /><//>`
    : html`<${Step} tone="bad" title="Not accepted"><p>${safe(path.blob)}. No batch of this identity was acknowledged.</p><${Key} value=${path.manifest_key} /><//>`}
    ${path.mark && html`<${Step} tone="bad" title="Held back"><p>The reconciler does not enqueue it. <a href="#queue">See the reason</a>.</p><${Stored} one=${byKey(path.mark)} /><//>`}
    ${Object.entries(INDEXES).map(([role, name]) => of(role).map((object) => html`<${Step} tone=${toneOf(object)} title=${`${object.present ? "Indexed" : "Not indexed yet"} ${name}`}><${Stored} one=${object} /><//>`))}
    ${path.queues.map((place) => html`<${QueueStep} one=${place} list=${byKey(place.work_list)} />`)}
    ${path.lake && html`<${Lake} lake=${path.lake} kind=${one.kind} /><${Rollup} rollup=${path.lake.rollup} />`}
    ${path.quarantined.map((key) => html`<${Step} tone="bad" title="Other bytes were refused"><p><a href=${placeUrl("conflicts", [], { agent: who.agent_id })}>Conflicts of this agent</a></p>${byKey(key) ? html`<${Stored} one=${byKey(key)} />` : html`<${Key} value=${key} />`}<//>`)}
  </ol><${Command} text=${command("sluice explain", subject)} /></section>`;
}
