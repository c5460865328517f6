// The candidates of one deletion plan: why each qualifies, and what its run proved.
import { bytes, capital, command, count, duration, go, html, placeUrl, safe, useData, useState } from "../lib.js";
import { Ago, Badge, Command, Copy, Empty, Head, Loaded, Table, Time } from "../parts.js";
import { LongTable, useRows } from "../long_table.js";

const SETTLED_S = 3600;  // a plan never changes
const apiOf = (plan) => `v1/gc/plans/${encodeURIComponent(plan)}/candidates`;
const words = (text) => safe(text.replaceAll("_", " "));
const kind = (row) => (row.superseded ? "superseded version" : "no record names it");

const columnsOf = (plan) => [
  { name: "Blob", cell: (row) => html`<a href=${placeUrl("audit", [plan, row.sha256])} title=${row.key} aria-label=${`Blob ${safe(row.sha256)}`}><code>${safe(row.sha256.slice(0, 16))}…</code></a>` },
  { name: "Size", numeric: true, cell: (row) => bytes(row.size_bytes) },
  { name: "Age in the plan", numeric: true, cell: (row) => duration(row.age_s) },
  { name: "Why", cell: kind },
  ...["age", "certificate", "audit", "versioning", "incarnation"].map((name) => ({ name: `Clause: ${name}`, cell: (row) => html`<${Clause} of=${row.clauses.find((one) => one.clause === name)} />` })),
  { name: "Key", cell: (row) => html`<code>${safe(row.key)}</code>` },
];

const STATES = { holds: ["good", "holds"], keeps: ["warning", "keeps it"], not_read: ["plain", "read by the run"] };

function Clause({ of }) {
  if (!of) return html`<span class="quiet">not needed</span>`;
  return of.state === "holds" ? safe(of.found) : html`<${State} of=${of} /> ${safe(of.found)}`;
}

function State({ of }) {
  const [tone, text] = STATES[of.state] ?? ["plain", words(of.state)];
  return html`<${Badge} tone=${tone}>${text}<//>`;
}

const CLAUSES = [
  { name: "Clause", cell: (row) => words(row.clause) },
  { name: "State", cell: (row) => html`<${State} of=${row} />` },
  { name: "Values", wide: true, cell: (row) => safe(row.found) },
];

const Clauses = ({ caption, rows }) => html`<${Table} caption=${caption} columns=${CLAUSES} rows=${rows} rowKey=${(row) => row.clause} />`;

function Search({ plan, prefix }) {
  const [typed, setTyped] = useState(prefix);
  const open = (event) => {
    event.preventDefault();
    const wanted = typed.trim().toLowerCase();
    if (wanted.length === 64) go("audit", [plan, wanted]); else go("audit", [plan], wanted ? { prefix: wanted } : null);
  };
  return html`<div class="filters"><form onSubmit=${open} class="row" role="search">
    <label>SHA-256, or its first digits<input data-search size="34" spellcheck="false" autocomplete="off" value=${typed} placeholder="at least 2 hex digits" onInput=${(event) => setTyped(event.target.value)} /></label>
    <button type="submit">Search</button></form></div>`;
}

const Summary = ({ page, children }) => html`<p class="summary">${children}<span>made <${Time} ns=${page.made_at_unix_ns} ms=${false} />, retry horizon ${duration(page.retry_horizon_s)}</span><${Signature} checked=${page.signature_checked} /></p>`;

const Signature = ({ checked }) => (checked ? html`<${Badge} tone="good">signature verified<//>` : html`<span>The signature of the plan is not verified here: set <code>trusted_keys</code> of the console.</span>`);

function All({ plan }) {
  const rows = useRows(`${apiOf(plan)}?`, "candidates", SETTLED_S);
  return html`<${Loaded} from=${rows}>${(page) => html`<${Summary} page=${page}><strong>${page.total === 1 ? "1 candidate" : `${count(page.total)} candidates`}</strong><//>
    <${LongTable} caption="Candidates" columns=${columnsOf(plan)} rows=${rows} rowKey=${(row) => `${row.sha256}/${row.incarnation}`} empty=${html`<${Empty} title="No candidates">This plan deletes nothing.<//>`} />`}<//>`;
}

function Matching({ plan, prefix }) {
  const from = useData(`${apiOf(plan)}?${new URLSearchParams({ prefix, limit: "500" })}`);
  return html`<${Loaded} from=${from}>${(page) => html`<${Summary} page=${page}><strong>${page.more ? "The first " : ""}${count(page.candidates.length)} of ${count(page.total)} candidates</strong><//>
    <${Table} tall caption="Candidates" columns=${columnsOf(plan)} rows=${page.candidates} rowKey=${(row) => `${row.sha256}/${row.incarnation}`}
      empty=${html`<${Empty} title="No candidate begins with these digits">Enter all 64 digits to see why the plan does not name a blob.<//>`} />
    ${page.more && html`<p class="quiet">Enter more digits to see the others.</p>`}`}<//>`;
}

const Version = ({ one, children }) => html`<section class="card"><h2>Version <code>${safe(one.incarnation)}</code></h2>
  <dl class="facts"><dt>size</dt><dd>${bytes(one.size_bytes)}</dd><dt>written</dt><dd><${Time} ns=${one.last_modified_unix_ns} /> (<${Ago} ns=${one.last_modified_unix_ns} />), by the store's clock</dd>${children}</dl></section>`;

function Proof({ proof }) {
  const gone = proof.verdict === "may_go";
  return html`<section><h2>${gone ? "Proved: it may be deleted" : "Proved: it is kept"} <${Badge} tone=${gone ? "warning" : "good"}>${words(proof.verdict)}<//></h2>
    <p class="quiet">Version <code>${safe(proof.incarnation)}</code>, ${proof.proved_at_unix_ns ? html`read <${Time} ns=${proof.proved_at_unix_ns} /> by the store's clock, and written before any deletion.` : "not all evidence could be read, so it was kept."}</p>
    <div class="key"><code>${safe(proof.proof_key)}</code><${Copy} text=${proof.proof_key} label="Copy key" /></div><${Clauses} caption="Clauses of the proof" rows=${proof.clauses} /></section>`;
}

function One({ plan, sha256 }) {
  const from = useData(`${apiOf(plan)}/${encodeURIComponent(sha256)}`);
  return html`<${Loaded} from=${from}>${(blob) => html`
    <section class="card"><h2><code>${safe(blob.sha256)}</code></h2><div class="key"><code>${safe(blob.key)}</code><${Copy} text=${blob.key} label="Copy key" /></div>
      <p><a href=${placeUrl("batches", [blob.sha256])}>Batches that name it now</a> · from audit <code>${safe(blob.audit_id)}</code> · <${Signature} checked=${blob.signature_checked} /></p></section>
    ${blob.reason && html`<${Empty} title="Not a candidate">${safe(capital(blob.reason))}.<//>`}
    ${blob.kept.map((one) => html`<${Version} one=${one}><dt>${one.current ? "current version" : "noncurrent version"}</dt><dd><${State} of=${one.finding} /> ${words(one.finding.clause)}: ${safe(one.finding.found)}</dd><//>`)}
    ${blob.candidates.map((one) => html`<${Version} one=${one}><dt>age in the plan</dt><dd>${duration(one.age_s)}</dd><dt>kind</dt><dd>${kind(one)}</dd><//><${Clauses} caption="Clauses of the plan" rows=${one.clauses} />`)}
    ${blob.candidates.length > 0 && !blob.proofs.length && html`<p class="quiet">No run of this plan has proved it yet, so nothing of it is deleted by this plan.</p>`}
    ${blob.proofs.map((proof) => html`<${Proof} proof=${proof} />`)}
    ${blob.proofs_more && html`<p class="quiet">The plan has more proofs of blobs that begin with ${safe(blob.sha256.slice(0, 2))} than are read here.</p>`}`}<//>`;
}

export function Candidates({ place }) {
  const [plan, sha256] = place.rest, prefix = place.query.get("prefix") ?? "";
  return html`<p><a href="#audit">← Audit & GC</a>${(sha256 || prefix) && html` · <a href=${placeUrl("audit", [plan])}>All candidates</a>`}</p>
    <${Head} title=${sha256 ? "A blob in a plan" : "Candidates"}>${sha256 ? "Why plan" : "What plan"} <code>${safe(plan)}</code> ${sha256 ? "names this blob or keeps it." : "may delete, and the clauses that allow it. A run proves each again before it deletes."}<//>
    <${Search} plan=${plan} prefix=${prefix} key=${prefix} />
    ${sha256 ? html`<${One} plan=${plan} sha256=${sha256} />` : prefix ? html`<${Matching} plan=${plan} prefix=${prefix} />` : html`<${All} plan=${plan} />`}
    <${Command} text=${sha256 || prefix ? command("sluice gc candidates", plan, "--sha256", sha256 || prefix) : command("sluice gc candidates", plan)} />`;
}
