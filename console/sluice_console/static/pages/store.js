// Store and policies: the settings of the authority, what the doctor found, and what is denied.
import { command, count, duration, html, safe, useData, storeUrl } from "../lib.js";
import { Ago, Badge, Command, Empty, Head, Loaded, Table, Time } from "../parts.js";
import { Policies } from "./policies.js";

const NEEDS = { acceptance: "gateways do not start without it", deletion: "garbage collection only plans without it", comfort: "everything works without it" };
const FINDINGS = [
  { name: "Result", cell: (row) => html`<${Badge} tone=${row.kept ? "good" : row.need === "acceptance" ? "error" : "warning"}>${row.kept ? "kept" : "broken"}<//>` },
  { name: "Promise", wide: true, cell: (row) => safe(row.promise) },
  { name: "Needed for", cell: (row) => html`${row.need}<br /><span class="quiet">${NEEDS[row.need] ?? ""}</span>` },
  { name: "What was found", wide: true, cell: (row) => (row.kept ? "" : html`${safe(row.seen)}<br />Otherwise: ${safe(row.cost)}`) },
];
const SETTINGS = { s3_manifest: "at the store: a batch is accepted when its manifest exists", local_spool: "in the spool of one gateway, transferred later" };

export function Store({ place }) {
  const from = useData("v1/store", 60);
  return html`<${Head} title="Store & policies">What the store promises, tested by the doctor, and the settings that every part shares.<//>
    <${Loaded} from=${from}>${({ url, authority, authority_problem: broken, doctor, doctor_problem: sick }) => html`
      <section><h2>Store</h2>${broken && html`<div class="problem" role="alert"><strong>The settings cannot be read</strong><p>${safe(broken)}</p></div>`}
        <dl class="facts"><dt>URL</dt><dd><code>${safe(url)}</code></dd>
        ${authority && html`<dt>authority</dt><dd><code>${safe(authority.authority_id)}</code>, created <${Time} ns=${authority.created_at_unix_ns} ms=${false} /></dd><dt>acceptance</dt><dd>${SETTINGS[authority.acceptance] ?? safe(authority.acceptance)}</dd><dt>lanes</dt><dd>${count(authority.lanes)}</dd><dt>retry horizon</dt><dd>${duration(authority.retry_horizon_s)}: how long an agent may send the same bytes again</dd>`}</dl></section>
      <section><h2>Doctor</h2>${sick && html`<div class="problem" role="alert"><strong>The result cannot be read</strong><p>${safe(sick)}</p></div>`}
        ${doctor ? html`<p>Tested <${Time} ns=${doctor.ended_at_unix_ns} ms=${false} /> (<${Ago} ns=${doctor.ended_at_unix_ns} />): ${count(doctor.rounds)} races of each kind with ${count(doctor.racers)} writers${doctor.endpoints.length > 1 ? `, through ${doctor.endpoints.length} endpoints` : ""}.</p>
          <${Table} caption="Promises of the store" columns=${FINDINGS} rows=${[...doctor.findings].sort((a, b) => a.kept - b.kept)} rowKey=${(row) => row.probe} />`
    : !sick && html`<${Empty} title="The doctor never ran">Gateways do not start without its result. Run <code>sluice doctor</code>.<//>`}
        <${Command} text=${command("sluice doctor")} /></section>`}<//>
    <${Policies} query=${place.query} />`;
}
