// NDJSON while it arrives: lines are parsed as they come, and given on once per frame.
import { ApiProblem, request } from "./lib.js";

// JSON whose numbers keep their digits: JavaScript rounds integers above 2^53 and writes 1.0 as 1.
// Most texts have no such number, and are parsed several times as fast without a function for each value.
const MAY_CHANGE = /(?:":|[[,])\s*(?:-?\d{16}|-?\d+[.eE]|-0)/;
const keptDigits = (_, value, { source }) => (typeof value === "number" && String(value) !== source ? JSON.rawJSON(source) : value);
export const parseExact = (text) => JSON.parse(text, JSON.rawJSON && MAY_CHANGE.test(text) ? keptDigits : undefined);

// The fields of a record are numbers to compute with, and `digits` has those that lost some; its attributes keep their digits.
function withPlainFields(record) {
  if (!JSON.rawJSON) return record;
  const raw = Object.entries(record).filter(([, value]) => JSON.isRawJSON(value));
  for (const [name, value] of raw) record[name] = Number(value.rawJSON);
  if (raw.length) Object.defineProperty(record, "digits", { value: Object.fromEntries(raw.map(([name, value]) => [name, value.rawJSON])) });
  return record;
}

export const parseLine = (text) => withPlainFields(parseExact(text));

// One trace, as `api` would return it, with the digits of the attributes of its spans.
export async function readTrace(path, options) {
  const found = parseExact(await (await request(path, options)).text());
  found.spans.forEach(withPlainFields);
  return found;
}

// The text of a value, as filters compare it.
export const textOf = (value) => (typeof value === "string" || value === undefined ? value : JSON.stringify(value));

// A value as JSON if it is not a text; a text that would look like another type has quotes.
export function shownValue(value) {
  if (typeof value !== "string") return textOf(value);
  try { return typeof JSON.parse(value) === "string" ? value : JSON.stringify(value); } catch { return value; }
}

export async function readLines(path, signal, onLines) {
  const response = await request(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", lines = [], frame = 0, ended = false;
  const flush = () => { frame = 0; if (lines.length && !signal.aborted) { const some = lines; lines = []; onLines(some); } };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part) continue;
      const line = parseLine(part);
      if (line.problem) { flush(); throw new ApiProblem(line.problem.status, line.problem.title, line.problem.detail); }
      if (line.summary) ended = true;
      lines.push(line);
    }
    if (lines.length && !frame) frame = requestAnimationFrame(flush);
  }
  cancelAnimationFrame(frame);
  flush();
  if (!ended) throw new ApiProblem(0, "The response is incomplete", "The connection ended early. Run the search again.");
}
