// The spans of a trace in the order of their tree. Pure: no page, no clock. Nothing here is recursive,
// because a trace can be one chain of 100 000 spans.
import { parseExact } from "./stream.js";

// The time of a record in ns since 1970 as a BigInt, exact to the nanosecond; null if it is not a time.
export function nsOf(text) {
  const found = /^([+-]?\d{4,6})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?Z$/.exec(String(text ?? ""));
  if (!found) return null;
  const [year, month, day, hour, minute, second] = found.slice(1, 7).map(Number);
  const date = new Date(0);
  date.setUTCFullYear(year, month - 1, day);
  if (Number.isNaN(date.getTime())) return null;
  return (BigInt(date.getTime()) + BigInt(((hour * 60 + minute) * 60 + second) * 1000)) * 1_000_000n + BigInt((found[7] ?? "").padEnd(9, "0"));
}

// A duration as one reads it: 850 ns, 12.3 µs, 250 ms, 1.25 s, 3 min 20 s; a negative one keeps its sign.
export function spanTime(ns) {
  if (typeof ns !== "number" || !Number.isFinite(ns)) return "–";
  const size = Math.abs(ns), sign = ns < 0 ? "−" : "";
  for (const [unit, scale] of [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]]) {
    if (size < (unit === "s" ? 120e9 : scale * 1e3 - scale / 2)) return `${sign}${unit === "ns" ? Math.round(size) : Number((size / scale).toPrecision(size / scale >= 100 ? 4 : 3))} ${unit}`;
  }
  const seconds = Math.round(size / 1e9), [days, hours, minutes] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  const parts = days ? [[days, "d"], [days < 100 ? hours : 0, "h"]] : hours ? [[hours, "h"], [minutes, "min"]] : [[minutes, "min"], [seconds % 60, "s"]];
  return sign + parts.filter(([number], at) => number || !at).map(([number, unit]) => `${number} ${unit}`).join(" ");
}

function makeNodes(spans) {
  const nodes = [], byId = new Map(), seen = new Map();
  for (const span of spans) {
    const id = String(span.span_id ?? ""), nth = seen.get(id) ?? 0, start = nsOf(span.ts);
    seen.set(id, nth + 1);
    const length = typeof span.duration_ns === "number" && Number.isFinite(span.duration_ns) ? span.duration_ns : 0;
    const node = { span, key: nth || !id ? `${id}~${nth}` : id, id, start, length, missing: false, duplicate: Boolean(id) && nth > 0, cycle: false, parent: null, children: [] };
    nodes.push(node);
    if (id && !nth) byId.set(id, node);
  }
  return { nodes, byId };
}

const order = (one, other) => {
  const [a, b] = [one.start, other.start];
  if (a === b) return one.at - other.at;
  if (a === null || b === null) return a === null ? 1 : -1;
  return a < b ? -1 : 1;
};

// Link each node to its parent. A parent that is not in the trace becomes a separate node.
function linkParents(nodes, byId) {
  const missing = new Map();
  for (const node of nodes) {
    const wanted = String(node.span.parent_id ?? "");
    if (!wanted) continue;
    let parent = byId.get(wanted) ?? missing.get(wanted);
    if (!parent) {
      parent = { span: null, key: `?${wanted}`, id: wanted, start: node.start, length: 0, missing: true, duplicate: false, cycle: false, parent: null, children: [] };
      missing.set(wanted, parent);
    }
    node.parent = parent;
  }
  return [...missing.values()];
}

// Spans that are their own ancestors have no root: the first of each circle becomes one.
function breakCycles(nodes) {
  const state = new Map();
  for (const begun of nodes) {
    const path = [];
    let node = begun;
    while (node && !state.has(node)) { state.set(node, "open"); path.push(node); node = node.parent; }
    if (node && state.get(node) === "open") {
      const circle = path.slice(path.indexOf(node));
      const first = circle.reduce((best, one) => (order(one, best) < 0 ? one : best));
      first.cycle = true;
      first.parent = null;
    }
    for (const one of path) state.set(one, "done");
  }
}

// Rows in the order of the tree; `end` is the place after the last row below a row.
function inOrder(roots) {
  const rows = [], open = [];
  const enter = (node, depth, position, size) => {
    Object.assign(node, { depth, position, size, place: rows.length, end: 0 });
    rows.push(node);
    open.push([node, 0]);
  };
  roots.forEach((root, at) => {
    enter(root, 0, at + 1, roots.length);
    while (open.length) {
      const last = open.at(-1), [node, next] = last;
      if (next === node.children.length) { node.end = rows.length; open.pop(); continue; }
      last[1] += 1;
      enter(node.children[next], node.depth + 1, next + 1, node.children.length);
    }
  });
  return rows;
}

const textOf = (value) => String(value ?? "");
export const isError = (span) => span?.status === "error";

function measure(nodes) {
  let first = null, last = null;
  const services = new Map();
  let errors = 0, orphans = 0, duplicates = 0, cycles = 0, deepest = 0;
  for (const node of nodes) {
    if (node.start !== null) {
      const end = node.start + BigInt(Math.round(Math.max(0, node.length)));
      if (first === null || node.start < first) first = node.start;
      if (last === null || end > last) last = end;
    }
    const service = textOf(node.span.service);
    services.set(service, (services.get(service) ?? 0) + 1);
    errors += isError(node.span);
    orphans += Boolean(node.parent?.missing);
    duplicates += node.duplicate;
    cycles += node.cycle;
    deepest = Math.max(deepest, node.depth + 1);
  }
  const listed = [...services].map(([name, spans], at) => ({ name, spans, tint: at % 8 }));
  return { first, last, total: first === null ? 0 : Number(last - first), services: listed, errors, orphans, duplicates, cycles, deepest };
}

// Makes the rows and the totals of a trace; `from` and `share` of a row are its bar, as parts of the whole.
export function makeTrace(spans) {
  const { nodes, byId } = makeNodes(spans);
  nodes.forEach((node, at) => { node.at = at; });
  const missing = linkParents(nodes, byId);
  missing.forEach((node, at) => { node.at = nodes.length + at; });
  breakCycles(nodes);
  const all = [...missing, ...nodes];
  for (const node of nodes) {
    const parent = node.parent;
    if (!parent) continue;
    parent.children.push(node);
    if (parent.missing && node.start !== null && (parent.start === null || node.start < parent.start)) parent.start = node.start;
  }
  for (const node of all) node.children.sort(order);
  const rows = inOrder(all.filter((node) => !node.parent).sort(order));
  const whole = measure(nodes), tints = new Map(whole.services.map((one) => [one.name, one.tint]));
  for (const row of rows) {
    row.offset = row.start === null ? 0 : Number(row.start - whole.first);
    row.from = whole.total ? row.offset / whole.total : 0;
    row.share = whole.total ? Math.max(0, row.length) / whole.total : 1;
    row.tint = row.missing ? null : tints.get(textOf(row.span.service));
  }
  return { rows, ...whole };
}

// The rows that are shown when those in `closed` hide what is below them.
export function shownRows(rows, closed) {
  if (!closed.size) return rows;
  const shown = [];
  for (let at = 0; at < rows.length;) {
    shown.push(rows[at]);
    at = closed.has(rows[at].key) ? rows[at].end : at + 1;
  }
  return shown;
}

// What a key does in the tree: `to` is the row to go to, `close` and `open` name a row to change.
export function decideKey(key, row, at, shown, closed) {
  if (key === "ArrowDown") return { to: Math.min(shown.length - 1, at + 1) };
  if (key === "ArrowUp") return { to: Math.max(0, at - 1) };
  if (key === "Home") return { to: 0 };
  if (key === "End") return { to: shown.length - 1 };
  if (key === "PageDown") return { to: Math.min(shown.length - 1, at + 20) };
  if (key === "PageUp") return { to: Math.max(0, at - 20) };
  const children = row.children.length > 0, shut = closed.has(row.key);
  if (key === "ArrowRight") return children ? (shut ? { open: row.key } : { to: at + 1 }) : {};
  if (key === "ArrowLeft") {
    if (children && !shut) return { close: row.key };
    return row.parent ? { to: shown.indexOf(row.parent) } : {};
  }
  return null;
}

// A list of events or links, which spans contain as the text of a JSON list; null if it is none.
export function listOf(text) {
  if (text === undefined || text === null || text === "") return [];
  try {
    const found = parseExact(text);
    return Array.isArray(found) ? found.filter((one) => one && typeof one === "object" && !JSON.isRawJSON?.(one)) : null;
  } catch { return null; }
}
