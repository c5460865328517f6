// Edits of a LogQL text: matchers of its first selector. Only the query service reads the rest of the language.

export const quote = (value) => JSON.stringify(String(value));

const MATCHER = /\s*([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*("(?:[^"\\]|\\.)*"|`[^`]*`)\s*(?:,|(?=\})|$)/gy;
const WORD = /"(?:[^"\\]|\\.)*"|`[^`]*`|#[^\n]*|[{}]/g;

// The place of the first selector between its braces, and its matchers; null without a complete one.
export function readSelector(text) {
  const brackets = [...text.matchAll(WORD)].filter(([word]) => word === "{" || word === "}");
  if (brackets.length < 2 || brackets[0][0] !== "{" || brackets[1][0] !== "}") return null;
  const start = brackets[0].index + 1, end = brackets[1].index, inner = text.slice(start, end), matchers = [];
  let read = 0;
  for (const [whole, label, operator, quoted] of inner.matchAll(MATCHER)) {
    matchers.push({ label, operator, quoted, value: valueOf(quoted) });
    read += whole.length;
  }
  return inner.slice(read).trim() ? null : { start, end, matchers };
}

// A text in quotes may have escapes of Go that JSON does not have; such a matcher stays as it is.
function valueOf(quoted) {
  if (quoted.startsWith("`")) return quoted.slice(1, -1);
  try { return JSON.parse(quoted); } catch { return null; }
}

const escaped = (value) => value.replace(/[\\.+*?()|[\]{}^$]/g, "\\$&");

// The values that a matcher selects: one of `=`, or the alternatives of a pattern without other operators.
function chosenBy({ operator, value }) {
  if (value === null || operator === "=") return value === null ? [] : [value];
  if (operator !== "=~") return [];
  const values = (value.match(/(?:\\.|[^\\|])+/gs) ?? []).map((one) => one.replace(/\\(.)/gs, "$1"));
  return values.map(escaped).join("|") === value ? values : [];
}

const write = (label, operator, value) => ({ label, operator, quoted: quote(value) });

function edited(text, change) {
  const whole = text.trim() ? text : "{}", found = readSelector(whole);
  if (!found) return null;
  const matchers = change(found.matchers).map((one) => `${one.label}${one.operator}${one.quoted}`);
  const next = `${whole.slice(0, found.start)}${matchers.join(", ")}${whole.slice(found.end)}`;
  return next.trim() === "{}" ? "" : next;
}

export const chosenValues = (text, label) => (readSelector(text)?.matchers ?? []).filter((one) => one.label === label).flatMap(chosenBy);

export const isExcluded = (text, label, value) => (readSelector(text)?.matchers ?? []).some((one) => one.label === label && one.operator === "!=" && one.value === value);

// The text without the values that are chosen for a label, so that all of its values can be counted.
export const withoutChoice = (text, label) => edited(text, (matchers) => matchers.filter((one) => one.label !== label || !chosenBy(one).length)) ?? text;

// Returns the text with a value chosen, or without it if it was; several values of a label are alternatives.
export function toggleValue(text, label, value) {
  const before = chosenValues(text, label), wanted = String(value);
  const values = before.includes(wanted) ? before.filter((one) => one !== wanted) : [...before, wanted];
  const added = !values.length ? [] : [values.length === 1 ? write(label, "=", values[0]) : write(label, "=~", values.map(escaped).join("|"))];
  return edited(withoutChoice(text, label), (matchers) => [...matchers, ...added]);
}

export function toggleExcluded(text, label, value) {
  const isIt = (one) => one.label === label && one.operator === "!=" && one.value === String(value);
  return edited(text, (matchers) => (matchers.some(isIt) ? matchers.filter((one) => !isIt(one)) : [...matchers, write(label, "!=", value)]));
}

// The query of records with these values.
export const selector = (values) => `{${Object.entries(values).map(([label, value]) => `${label}=${quote(value)}`).join(", ")}}`;

export const labelOf = (key) => { const label = key.replaceAll(/[^A-Za-z0-9_]/g, "_"); return /^[0-9]/.test(label) ? `_${label}` : label || "_"; };
