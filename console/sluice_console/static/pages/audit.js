// Audit and garbage collection: certificates and their verification, plans, maintenance.
import { api, bytes, command, count, duration, html, placeUrl, safe, useData, useState } from "../lib.js";
import { Ago, Badge, Command, Copy, Decide, Empty, Head, Loaded, Problem, Table, Time } from "../parts.js";
import { Candidates } from "./candidates.js";

const WRONG = ["missing_blobs", "unreadable_manifests", "corrupt_blobs", "misnamed", "foreign", "refused_tombstones"];
const words = (text) => safe(text.replaceAll("_", " "));
const wrong = (audit) => WRONG.filter((name) => audit.counts[name]).map((name) => `${count(audit.counts[name])} ${words(name)}`);

const AUDITS = [
  { name: "#", numeric: true, cell: (row) => row.chain_index },
  { name: "Finished", cell: (row) => (row.unreadable ? html`<${Badge} tone="error">unreadable<//>` : html`<${Time} ns=${row.finished_at_unix_ns} ms=${false} />`) },
  { name: "Result", wide: true, cell: (row) => (row.unreadable ? safe(row.unreadable) : wrong(row).length ? html`<${Badge} tone="error">${wrong(row).join(", ")}<//>` : html`<${Badge} tone="good">nothing wrong<//>`) },
  { name: "Batches", numeric: true, cell: (row) => count(row.counts?.accepted) },
  { name: "Blobs", numeric: true, cell: (row) => (row.counts ? `${count(row.counts.incarnations)}, ${bytes(row.counts.incarnations_bytes)}` : "") },
  { name: "Orphans", numeric: true, cell: (row) => count(row.counts?.orphans) },
  { name: "Signed by", cell: (row) => html`<code>${safe(row.key_id)}</code>` },
  { name: "Certificate", cell: (row) => html`<code>${safe(row.key)}</code>` },
];

function Verify({ can }) {
  const [found, setFound] = useState(null), [problem, setProblem] = useState(null), [busy, setBusy] = useState(false);
  const run = async () => {
    setBusy(true); setProblem(null); setFound(null);
    try { setFound(await api("v1/audits/verification")); } catch (error) { setProblem(error); }
    setBusy(false);
  };
  return html`<div class="row"><button type="button" disabled=${!can || busy} onClick=${run} title=${can ? "" : "Set trusted_keys of the console"}>${busy ? "Verifying…" : "Verify the whole chain"}</button>
      ${found && (found.valid ? html`<${Badge} tone="good">${count(found.certificates)} certificates are valid<//>` : html`<${Badge} tone="error">invalid<//> ${safe(found.problem)}`)}
      ${!can && html`<span class="quiet">To verify signatures here, set <code>trusted_keys</code> of the console to the public key of the auditor.</span>`}</div><${Problem} problem=${problem} />`;
}

const STATES = { planned: ["warning", "planned"], stopped: ["error", "stopped"], finished: ["good", "finished"] };
const versions = (tally) => `${count(tally?.incarnations ?? 0)} ${tally?.incarnations === 1 ? "version" : "versions"}`;
const size = (tally) => (tally?.bytes === undefined ? "" : `, ${bytes(tally.bytes)}`);

// What the finished batches of a plan deleted, and what their proofs kept; read when it is opened.
function Results({ plan }) {
  const [open, setOpen] = useState(false);
  const from = useData(open ? `v1/gc/plans/${encodeURIComponent(plan.plan_id)}/results` : null);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}><summary>What was deleted</summary>
    ${open && html`<${Loaded} from=${from}>${(found) => (found.batches === 0 ? html`<p>No batch has finished, so nothing is deleted.</p>` : html`<dl class="facts">
      <dt>deleted</dt><dd>${found.more ? "at least " : ""}${count(found.deleted)} versions, ${bytes(found.deleted_bytes)}, in ${count(found.batches)} finished ${found.batches === 1 ? "batch" : "batches"}</dd>
      <dt>kept by their proofs</dt><dd>${Object.keys(found.kept).length ? Object.entries(found.kept).map(([clause, number]) => html`<div>${words(clause)}: ${count(number)} versions</div>`) : "none"}</dd>
      ${found.unreadable.length > 0 && html`<dt>unreadable</dt><dd>${count(found.unreadable.length)} records: <code>${safe(found.unreadable[0])}</code></dd>`}
      <dt>proofs</dt><dd>each was written before its deletions, under <code>${safe(found.proofs)}</code>; <code>sluice gc show SHA256</code> prints those of a blob</dd></dl>`)}<//>`}</details>`;
}

const COPIES = [
  { name: "Blob", cell: (row) => html`<code>${safe(row.sha256)}</code>` },
  { name: "Size", numeric: true, cell: (row) => bytes(row.size_bytes) },
  { name: "Deleted", cell: (row) => html`<${Time} ns=${row.copied_at_unix_ns} ms=${false} />` },
  { name: "Restore", cell: (row) => html`<${Copy} text=${command("sluice gc undo", row.sha256)} label="Copy command" />` },
];

function Plan({ plan, reload }) {
  if (plan.unreadable) return html`<div class="card"><h3><code>${safe(plan.key)}</code></h3><p><${Badge} tone="error">unreadable<//> ${safe(plan.unreadable)}</p></div>`;
  const [tone, state] = STATES[plan.state] ?? ["plain", plan.state];
  const kept = Object.entries(plan.kept);
  return html`<div class="card"><div class="row"><h3>Plan <code>${safe(plan.plan_id)}</code></h3><${Badge} tone=${tone}>${state}<//><span class="quiet">made <${Time} ns=${plan.made_at_unix_ns} ms=${false} /> (<${Ago} ns=${plan.made_at_unix_ns} />), from audit <code>${safe(plan.audit_id)}</code></span></div>
    <dl class="facts"><dt>may be deleted</dt><dd>${versions(plan.orphans)}${size(plan.orphans)} that no record names, ${versions(plan.superseded)}${size(plan.superseded)} superseded</dd>
      <dt>of</dt><dd>${versions(plan.blobs)}${size(plan.blobs)} in the audit</dd>
      ${plan.stopped && html`<dt>stopped</dt><dd>${safe(plan.stopped)}</dd>`}
      <dt>approved</dt><dd>${plan.approval_problem ? html`<${Badge} tone="error">does not count<//> ${safe(plan.approval_problem)}` : plan.approval ? html`by ${safe(plan.approval.by)} <${Time} ns=${plan.approval.approved_at_unix_ns} ms=${false} />${plan.approval.note ? `: ${safe(plan.approval.note)}` : ""}` : html`<span class="quiet">no; runs with <code>require_approval</code> do not execute it</span>`}</dd>
      <dt>kept, and why</dt><dd>${kept.length ? kept.map(([clause, tally]) => html`<div>${words(clause)}: ${versions(tally)}${size(tally)}</div>`) : "nothing else"}</dd></dl>
    <p><a href=${placeUrl("audit", [plan.plan_id])}>Candidates, and why each qualifies</a></p>
    <${Results} plan=${plan} />
    <div class="row">${plan.state === "planned" && html`<${Decide} title="Stop this plan?" label="Stop the plan" danger required explain="Nothing of this plan is deleted from now on, also by a run that has begun. This cannot be undone; make a new plan instead." run=${(reason) => api(`v1/gc/plans/${encodeURIComponent(plan.plan_id)}/stop`, { method: "POST", body: { reason } })} done=${reload} />`}
      ${plan.state === "planned" && !plan.approval && html`<${Decide} title="Approve this plan?" label="Approve the plan" typed=${safe(plan.plan_id)} explain=${`After its grace period a run may delete ${versions(plan.orphans)} that no record names and ${versions(plan.superseded)} superseded. Each is proved again before its deletion. To withdraw an approval, stop the plan.`} run=${(note, typed) => api(`v1/gc/plans/${encodeURIComponent(plan.plan_id)}/approve`, { method: "POST", body: { typed_plan_id: typed, plan_sha256: plan.sha256, note } })} done=${reload} />`}
      ${plan.state === "planned" && html`<${Command} text=${command("sluice gc run", plan.plan_id, "--dry-run")} />${!plan.approval && html`<${Command} text=${command("sluice gc approve", plan.plan_id, "--sha256", plan.sha256)} />`}`}</div></div>`;
}

const HOLDS = [
  { name: "Case", cell: (row) => safe(row.case) },
  { name: "Keeps", cell: (row) => html`${row.agent_id ? html`agent <code>${safe(row.agent_id)}</code> ` : ""}${row.principal ? html`principal <code>${safe(row.principal)}</code> ` : ""}${row.from_unix_ns ? html`from <${Time} ns=${row.from_unix_ns} ms=${false} /> ` : ""}${row.to_unix_ns ? html`to <${Time} ns=${row.to_unix_ns} ms=${false} />` : ""}${!row.agent_id && !row.principal && !row.from_unix_ns && !row.to_unix_ns ? "every batch" : ""}` },
  { name: "Reason", wide: true, cell: (row) => safe(row.reason) },
  { name: "By", cell: (row) => safe(row.held_by) },
  { name: "Review", cell: (row) => html`<${Time} ns=${row.review_at_unix_ns} ms=${false} />${row.due && html` <${Badge} tone="warning">due<//>`}` },
];

// How long records and raw batches are kept; the counts are those of the newest audit.
function Retention({ state, audit }) {
  const counts = audit?.counts ?? {}, keep = state.rule?.raw_keep_s, tables = state.rule?.tables_keep_s;
  const holds = state.holds.map((one) => ({ ...one, due: state.due.includes(one.hold_id) }));
  const tally = (name) => `${count(counts[name] ?? 0)} batches, ${bytes(counts[`${name}_bytes`] ?? 0)}`;
  return html`<section><h2>Retention</h2><dl class="facts">
      <dt>records of tables</dt><dd>${tables ? `are deleted after ${count(tables / 86400)} days` : "are kept permanently"}; the setting <code>retention_days</code> of <code>sluice maintain</code> has priority</dd>
      <dt>raw batches</dt><dd>${keep ? html`may expire after ${count(keep / 86400)} days, decided by ${safe(state.rule.decided_by)} <${Time} ns=${state.rule.decided_at_unix_ns} ms=${false} />` : "never expire"}</dd>
      ${keep && html`<dt>old enough</dt><dd>${tally("expiring")} in the newest audit</dd><dt>within a week</dt><dd>${tally("expiring_soon")}</dd>`}
      ${counts.expired > 0 && html`<dt>expired</dt><dd>${count(counts.expired)} batches</dd>`}
      ${state.unreadable.length > 0 && html`<dt>holds</dt><dd><${Badge} tone="error">unreadable<//> ${safe(state.unreadable[0])}</dd>`}</dl>
    <p class="quiet">How long? One decision ends both, for example after 90 days:</p><${Command} text=${command("sluice retention set", "--raw", "90d", "--tables", "90d")} />
    <${Table} caption="Holds" columns=${HOLDS} rows=${holds} rowKey=${(row) => row.hold_id} empty=${html`<p class="quiet">No holds. <code>sluice hold add</code> keeps the batches of a case.</p>`} /><${Command} text=${command("sluice retention run", "--dry-run")} /></section>`;
}

const TASKS = [
  { name: "Task", cell: (row) => row.task },
  { name: "State", cell: (row) => html`<${Badge} tone=${row.halted ? "error" : row.failures || row.overdue_s ? "warning" : row.state === "running" ? "good" : "plain"}>${row.halted ? "halted" : row.overdue_s ? "overdue" : row.failures ? "failing" : words(row.state)}<//>` },
  { name: "Last run", cell: (row) => (row.last_outcome ? html`${words(row.last_outcome)} in ${duration(row.last_duration_s)}` : html`<span class="quiet">never</span>`) },
  { name: "Last success", cell: (row) => html`<${Ago} ns=${row.last_success_unix_ns} />` },
  { name: "Next run", cell: (row) => html`<${Time} ns=${row.next_run_unix_ns} ms=${false} />` },
  { name: "Problem", wide: true, cell: (row) => safe(row.halted || row.last_reason || (row.overdue_s ? `Due for ${duration(row.overdue_s)}, and no process runs it. Start sluice maintain.` : "")) },
];

export function Audit({ place }) {
  return place.rest[0] ? html`<${Candidates} place=${place} />` : html`<${Overview} />`;
}

function Overview() {
  const from = useData("v1/audits?limit=20", 30);
  return html`<${Head} title="Audit & GC">An audit lists everything and signs a certificate. A plan names what may be deleted; each deletion is proved again before it happens.<//>
    <${Loaded} from=${from}>${(found) => html`
      <section><h2>Certificates</h2><${Verify} can=${found.can_verify} />
        <${Table} caption="Certificates" columns=${AUDITS} rows=${found.audits} rowKey=${(row) => row.key} empty=${html`<${Empty} title="No audit yet">Run <code>sluice audit run</code>, or let <code>sluice maintain</code> run it.<//>`} /><${Command} text=${command("sluice audit verify")} /></section>
      <section><h2>Deletion plans</h2>${found.plans.length ? found.plans.map((plan) => html`<${Plan} plan=${plan} reload=${from.reload} key=${plan.key} />`) : html`<${Empty} title="No plan">Nothing is planned to be deleted. After an audit, <code>sluice gc plan</code> makes one.<//>`}</section>
      <${Retention} state=${found.retention} audit=${found.audits[0]} />
      <section><h2>Restorable blobs</h2><${Table} caption="Restorable blobs" columns=${COPIES} rows=${found.restorable.blobs} rowKey=${(row) => row.sha256} empty=${html`<p class="quiet">None. Runs with <code>undo</code> keep a copy of each blob until <code>sluice gc purge</code> removes it.</p>`} />
        ${found.restorable.more && html`<p class="quiet">There are more than these ${count(found.restorable.blobs.length)}.</p>`}</section>
      <section><h2>Maintenance</h2><${Table} caption="Maintenance tasks" columns=${TASKS} rows=${found.maintenance.tasks} rowKey=${(row) => row.task} /><${Command} text=${command("sluice maintain status")} /></section>`}<//>`;
}
