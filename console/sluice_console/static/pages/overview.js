// Overview: what needs attention first, then the path of a batch and what was accepted.
import { api, bytes, count, duration, html, ofNs, placeUrl, rate, safe, storeUrl, timeText, useCell, useEffect, useState, zone, command } from "../lib.js";
import { Badge, Command, Empty, Head, Loading, Problem, Spark, Table, Time } from "../parts.js";

// Samples arrive as server-sent events; the first one is requested, so that it needs no stream.
function useOverview() {
  const [data, setData] = useState(null);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    let source = null, timer = 0, ended = false;
    // A sample is at most a minute old, so a larger difference is one of the two clocks.
    const show = (found) => { setData({ ...found, ahead_s: (Date.now() - found.at_unix_ns / 1e6) / 1000 }); setProblem(null); storeUrl.set(found.store); };
    const follow = () => {
      if (ended) return;
      source = new EventSource("v1/overview/stream");
      source.onmessage = (event) => show(JSON.parse(event.data));
      source.onerror = () => { source.close(); timer = setTimeout(load, 3000); };
    };
    const load = () => api("v1/overview").then((found) => { show(found); follow(); }, (error) => {
      if (ended) return;
      setProblem(error);
      timer = setTimeout(load, 3000);
    });
    load();
    return () => { ended = true; source?.close(); clearTimeout(timer); };
  }, []);
  return { data, problem };
}

const SKEW_S = 120;
const PAGES = { agents: "agents", conflicts: "conflicts", queue: "queue", store: "store", audit: "audits" };

function Attention({ items }) {
  if (!items.length) return html`<div class="calm"><strong>Nothing needs attention.</strong> <span class="quiet">Discovery, queue, conflicts, gaps, store and maintenance are as they should be.</span></div>`;
  return html`<ul class="attention">${items.map((item) => html`<li class=${item.severity}>
    <div><${Badge} tone=${item.severity}>${{ error: "Error", warning: "Warning", notice: "Notice" }[item.severity]}<//> <strong>${safe(item.title)}</strong></div>
    <p>${safe(item.detail)}</p>
    <div class="row"><a href=${placeUrl(item.page)}>Open ${PAGES[item.page] ?? item.page}</a>${item.command && html`<${Command} text=${command(item.command)} />`}</div>
  </li>`)}</ul>`;
}

function Stage({ title, value, unit, detail, history, name, label, late }) {
  return html`<div class=${`stage${late ? " late" : ""}`}><h3>${title}</h3><p class="big">${value}<span>${unit}</span></p><p class="quiet">${detail}</p>
    <${Spark} times=${history.at_unix_ns} values=${history.series[name]} label=${label} /></div>`;
}

// Only a reconciler knows what is not indexed yet.
function unknownLag(services) {
  const known = services.filter((one) => one.service === "reconciler");
  if (!known.length) return html`unknown: set <code>reconciler</code> of the console`;
  return known.every((one) => one.problem) ? "unknown: no reconciler responds" : "not reported yet";
}

function Path({ found }) {
  const { numbers: now, history } = found;
  const lag = (value) => (value === null ? "–" : duration(value));
  return html`<section aria-labelledby="path"><h2 id="path">Path of a batch</h2><div class="stages">
    <${Stage} title="Accepted" value=${`${found.activity_at_least ? "at least " : ""}${rate(now.batches_per_s)}`} unit=" batches/s" detail=${`${rate(now.records_per_s)} records/s, ${bytes(now.bytes_per_s)}/s`} history=${history} name="batches_per_s" label="Accepted batches per second, last hour" />
    <${Stage} title="Indexed" value=${lag(now.index_lag_s)} unit="" detail=${now.index_lag_s === null ? unknownLag(found.services) : "oldest batch that waits"} history=${history} name="index_lag_s" label="Index lag, last hour" late=${now.index_lag_s > 60} />
    <${Stage} title="Enqueued" value=${lag(now.enqueue_lag_s)} unit="" detail="behind the present" history=${history} name="enqueue_lag_s" label="Enqueue lag, last hour" late=${now.enqueue_lag_s > 60} />
    <${Stage} title="In the lake" value=${lag(now.lake_lag_s)} unit="" detail=${now.waiting_batches === 1 ? "1 batch waits" : `${count(now.waiting_batches)} batches wait`} history=${history} name="lake_lag_s" label="Lake lag, last hour" late=${now.lake_lag_s > 600} />
  </div></section>`;
}

function Tile({ title, value, page, history, name, bad }) {
  return html`<a class=${`tile${bad ? " bad" : ""}`} href=${placeUrl(page)}><span>${title}</span><strong>${value}</strong>
    <${Spark} times=${history.at_unix_ns} values=${history.series[name]} label=${`${title}, last hour`} /></a>`;
}

function Tiles({ found }) {
  const { numbers: now, history } = found;
  return html`<section aria-labelledby="tiles"><h2 id="tiles">Trouble</h2><div class="tiles">
    <${Tile} title="Open conflicts" value=${count(now.conflicts_open)} page="conflicts" history=${history} name="conflicts_open" bad=${now.conflicts_open > 0} />
    <${Tile} title="Held-back batches" value=${count(now.held)} page="queue" history=${history} name="held" bad=${now.held > 0} />
    <${Tile} title="Oldest gap" value=${now.oldest_gap_s ? duration(now.oldest_gap_s) : now.oldest_gap_s === null ? "–" : "none"} page="agents" history=${history} name="oldest_gap_s" bad=${now.oldest_gap_s > 0} />
    <${Tile} title="Slowest store read" value=${now.store_ms === null ? "–" : duration(now.store_ms / 1000)} page="store" history=${history} name="store_ms" />
    <${Tile} title="Failed store calls" value=${now.store_errors_per_s === null ? "–" : `${rate(now.store_errors_per_s)}/s`} page="store" history=${history} name="store_errors_per_s" bad=${now.store_errors_per_s > 0} />
  </div></section>`;
}

const usd = (value) => `$${value >= 100 ? count(value) : value.toFixed(2)}`;
const PARTS = { puts: "PUT requests", lists: "LIST requests", gets: "GET and HEAD requests", storage: "stored blobs" };

function Cost({ cost, history }) {
  if (!cost) return null;
  return html`<section aria-labelledby="cost"><h2 id="cost">Cost per day</h2>
    <p class="big">${cost.at_least ? "at least " : "about "}${usd(cost.usd_per_day)}</p>
    <div class="narrow"><${Spark} times=${history.at_unix_ns} values=${history.series.cost_usd_per_day} label="Cost per day, last hour" /></div>
    <dl class="facts">${cost.parts.map((part) => html`<dt>${PARTS[part.name] ?? safe(part.name)}</dt><dd>${usd(part.usd_per_day)} for ${part.name === "storage" ? bytes(part.quantity) : count(part.quantity)}</dd>`)}</dl>
    <p class="quiet">An estimate at the present rate. Requests: ${cost.basis === "counters" ? "the counters of the gateways" : "those that each accepted batch needs"}. ${cost.parts.some((part) => part.name === "storage") ? "Storage: the blobs of the newest audit." : "Storage is unknown until an audit has listed the blobs."} Not contained: transfer, the lake, Spark. List prices: ${safe(cost.price_source)}.</p></section>`;
}

const ACTIVITY = [
  { name: "Agent", cell: (row) => (row.agent_id ? html`<a href=${placeUrl("agents", [row.agent_id])}>${safe(row.agent_id)}</a>` : html`<em>all others</em>`) },
  { name: "Kind", cell: (row) => row.kind },
  { name: "Batches/s", numeric: true, cell: (row) => rate(row.batches_per_s) },
  { name: "Records/s", numeric: true, cell: (row) => rate(row.records_per_s) },
  { name: "Bytes/s", numeric: true, cell: (row) => bytes(row.bytes_per_s) },
];
const TONES = { open: "good", lapsed: "error", closed: "plain", replaced: "plain", unreadable: "error" };
const GATEWAYS = [
  { name: "Gateway", cell: (row) => safe(row.gateway) },
  { name: "State", cell: (row) => html`<${Badge} tone=${TONES[row.state] ?? "plain"}>${row.state}<//>` },
  { name: "Last report", numeric: true, cell: (row) => `${duration(row.silent_s)} ago` },
  { name: "Unprocessed objects", numeric: true, cell: (row) => count(row.unprocessed) },
];

export function Overview() {
  const { data, problem } = useOverview();
  useCell(zone);
  if (!data) return html`<${Head} title="Overview" /><${Problem} problem=${problem} />${problem ? null : html`<${Loading} />`}`;
  const until = data.accepted_until_unix_ns;
  const open = data.gateways.filter((one) => one.state !== "closed" && one.state !== "replaced");
  return html`<${Head} title="Overview" tools=${html`<span class="quiet">Sampled <${Time} ns=${data.at_unix_ns} ms=${false} /></span>`}>
      ${until === null ? "No reconciler has reported yet through which time batches are enqueued." : html`Every batch accepted before <strong>${timeText(ofNs(until), false)}</strong> is enqueued${data.held_by ? html`, held by ${safe(data.held_by)}` : ""}.`}<//>
    <${Problem} problem=${problem} />
    ${Math.abs(data.ahead_s) > SKEW_S && html`<div class="notice" role="status"><strong>The clock of this browser is ${duration(Math.abs(data.ahead_s))} ${data.ahead_s > 0 ? "ahead of" : "behind"} the clock of the console.</strong> Ages and searches of the last minutes are wrong by as much. Correct the clock that is wrong.</div>`}
    <section aria-labelledby="attention"><h2 id="attention">Needs attention</h2><${Attention} items=${data.attention} /></section>
    <${Path} found=${data} /><${Tiles} found=${data} />
    <section aria-labelledby="activity"><h2 id="activity">Accepted now</h2>
      ${data.activity_at_least && html`<p class="quiet">At least: more was accepted than one sample reads. The shares of agents are those of the newest batches.</p>`}
      <${Table} caption="Accepted per second by agent and kind" columns=${ACTIVITY} rows=${data.activity} empty=${html`<${Empty} title="Nothing was accepted in the last minute">Start an agent: <code>sluice agent run</code>, or <a href="#batches">look at earlier batches</a>.<//>`} /></section>
    <${Cost} cost=${data.cost} history=${data.history} />
    <section aria-labelledby="gateways"><h2 id="gateways">Gateways</h2>
      <${Table} caption="Gateway processes" columns=${GATEWAYS} rows=${open} rowKey=${(row) => row.process} empty=${html`<${Empty} title="No gateway is running">Start one: <code>sluice gateway</code>.<//>`} /></section>`;
}
