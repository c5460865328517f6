// Policies: each request that the bucket must deny, the statement that denies it, and the proof.
import { command, count, go, html, quoted, safe, useData, useEffect, useState } from "../lib.js";
import { Ago, Badge, Command, Empty, Loaded, Table } from "../parts.js";

const TONES = { denied: "good", allowed: "error", undecided: "warning" };
const NAMES = { denied: "denied", allowed: "allowed", undecided: "not decided" };
const FIRST = 3;

function callers(row, roles) {
  if (row.others && row.roles.length === roles) return "every caller";
  const names = row.roles.length > FIRST ? `${row.roles.length} roles` : row.roles.join(", ");
  return row.others ? `${names ? `${names} and ` : ""}every other caller` : names;
}

const Names = ({ all }) => html`${all.slice(0, FIRST).map((one, at) => html`${at > 0 && ", "}<code>${safe(one)}</code>`)}
  ${all.length > FIRST && html` <details class="inline"><summary>and ${all.length - FIRST} more</summary>${all.slice(FIRST).map((one, at) => html`${at > 0 && ", "}<code>${safe(one)}</code>`)}</details>`}`;

const Request = ({ row, roles }) => html`<div title=${row.roles.join(", ")}><strong>${callers(row, roles)}</strong></div><div><${Names} all=${row.actions} /></div>
  <div>${row.outside ? "on every object except " : "on "}<${Names} all=${row.resources} /></div>
  ${row.unless.length > 0 && html`<div class="quiet">unless ${safe(row.unless.map((way) => way.join(" and ")).join(", or "))}</div>`}
  <div class="quiet">${safe(row.property)}</div>`;

const Statements = ({ row }) => (row.statements.length === 0 ? html`<span class="quiet">${row.outcome === "denied" ? "no statement allows it" : "none"}</span>`
  : row.statements.map((one) => html`<div key=${one.sid}><code>${safe(one.sid)}</code> <span class="quiet">in ${safe(one.document)}${one.reason && `: ${safe(one.reason)}`}</span></div>`));

const columns = (roles) => [
  { name: "Result", cell: (row) => html`<${Badge} tone=${TONES[row.outcome]}>${NAMES[row.outcome]}<//>` },
  { name: "Request", wide: true, cell: (row) => html`<${Request} row=${row} roles=${roles} />` },
  { name: "Denied by", wide: true, cell: (row) => html`<${Statements} row=${row} />${row.proof
    ? html`<details><summary>Proof</summary>${safe(row.proof)} <span class="quiet">Required: ${safe(row.description)}.</span></details>` : html`<div>${safe(row.example)}</div>`}` },
];

// What is allowed although it must be denied: the request, what allows it, and the remedy.
function Lost({ rows }) {
  if (!rows.length) return null;
  return html`<div class="problem" role="alert"><strong>${count(rows.length)} ${rows.length === 1 ? "denial is" : "denials are"} lost</strong>
    <ul>${rows.slice(0, 20).map((row, at) => html`<li key=${at}>${safe(row.description)}. Allowed, for example: ${safe(row.example)}${row.allowed_by && `, by ${safe(row.allowed_by)}`}.
      ${row.missing.length > 0 && html` Missing or changed: ${row.missing.map((one, n) => html`${n > 0 && ", "}<code>${safe(one)}</code>`)}.`}${row.risk && ` Risk: ${safe(row.risk)}.`}</li>`)}</ul>
    ${rows.length > 20 && html`<p>and ${count(rows.length - 20)} more in the table</p>`}
    <p>Compare the bucket with the rendered documents, then apply these as the deployer.</p>
    <${Command} text="sluice policies diff" /></div>`;
}

const Source = ({ view }) => (view.live ? html`Proved <${Ago} ns=${view.proved_at_unix_ns} /> over the documents of the bucket.`
  : html`Proved <${Ago} ns=${view.proved_at_unix_ns} /> over the documents that sluice renders from <code>${safe(view.file)}</code>. The bucket may have others: set <code>live = true</code> under <code>[console.policies]</code> to read them.`);

function Filters({ view, role, action }) {
  const [typed, setTyped] = useState(action);
  const show = (changes) => go("store", [], Object.fromEntries(Object.entries({ role, action, ...changes }).filter(([, value]) => value)));
  useEffect(() => { const timer = setTimeout(() => typed !== action && show({ action: typed }), 250); return () => clearTimeout(timer); }, [typed]);
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    <label>Role<select value=${role} onChange=${(event) => show({ role: event.target.value })}><option value="">every role</option>
      ${view.roles.map((one) => html`<option value=${one} selected=${one === role}>${one === "other" ? "every other caller" : one}</option>`)}</select></label>
    <label>Action<input data-search type="search" list="policy-actions" value=${typed} placeholder="s3:PutObject" onInput=${(event) => setTyped(event.target.value.trim())} /></label>
    <datalist id="policy-actions">${view.actions.map((one) => html`<option value=${one} />`)}</datalist></form>`;
}

function Proved({ view, role, action }) {
  const { report } = view;
  const shell = `${view.command}${role && ` --role ${role}`}${action && ` --action ${quoted(action)}`}`;
  return html`<p class="quiet"><${Source} view=${view} /></p>
    <${Lost} rows=${report.denials.filter((one) => one.outcome === "allowed")} />
    <${Filters} view=${view} role=${role} action=${action} />
    <p class="quiet">${count(report.denied)} of ${count(report.denials.length)} ${role || action ? `shown denials are proved, ${count(view.total)} in total` : "denials are proved"}.</p>
    <${Table} tall caption="Requests that must be denied" columns=${columns(view.roles.length - 1)} rows=${report.denials} empty=${html`<${Empty} title="No denial matches">This role may do it, or the policies do not know the action. <a href="#store">Show all</a><//>`} />
    <${Command} text=${shell} />
    <p class="quiet">The proof is about the text of the documents. Harmless requests test the bucket itself; they need the credentials of each role.</p>
    <${Command} text=${command("sluice doctor --policies", view.file)} />`;
}

export function Policies({ query }) {
  const role = query.get("role") ?? "", action = query.get("action") ?? "";
  const [waits, setWaits] = useState(true);
  const from = useData(`v1/policies?${new URLSearchParams({ role, action })}`, waits ? 2 : 60);
  useEffect(() => { if (from.data) setWaits(Boolean(from.data.file) && !from.data.report && !from.data.problem); }, [from.data]);
  return html`<section aria-labelledby="policies"><h2 id="policies">Policies</h2>
    <${Loaded} from=${from}>${(view) => (!view.file ? html`<${Empty} title="The console does not know the policies">Set <code>file</code> under <code>[console.policies]</code> to the settings file of the policies. The page then shows each request that the bucket must deny, the statement that denies it, and the proof.<//>
        <${Command} text="sluice policies denials --settings policies.toml" />`
    : view.problem ? html`<div class="problem" role="alert"><strong>The policies cannot be proved</strong><p>${safe(view.problem)}</p></div><${Command} text=${view.command} />`
      : !view.report ? html`<p class="quiet" role="status">Proving; this takes some seconds…</p>`
        : html`<${Proved} view=${view} role=${role} action=${action} />`)}<//></section>`;
}
