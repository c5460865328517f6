// The input for LogQL: completion by the query service, and the error of a text under its word.
import { api, html, safe, useEffect, useRef, useState } from "./lib.js";
import { quote } from "./logql.js";

const OPTIONS_MAX = 60, VALUES_MAX = 200, SETTLE_MS = 60;
const IDLE = { options: [], at: -1, from: 0, to: 0 };

// Offsets of the query service count characters, those of an input UTF-16 units.
const charactersBefore = (text, at) => [...text.slice(0, at)].length;

// What follows in a text: words of the language, and labels and values of the records of the range.
async function optionsAt(text, cursor, range, cache, signal) {
  const asked = new URLSearchParams({ query: text, cursor: String(charactersBefore(text, cursor)) });
  const { suggestions: found } = await api(`v1/logql?${asked}`, { signal });
  if (!found) return IDLE;
  const read = (path) => {
    if (!cache.has(path)) cache.set(path, api(path).catch(() => { cache.delete(path); return { fields: [], values: [] }; }));
    return cache.get(path);
  };
  const span = new URLSearchParams(range), words = found.words.map((word) => ({ text: word, what: found.kind }));
  const from = cursor - found.prefix.length;
  let to = cursor, options = words;
  if (found.kind === "label" || found.kind === "stage" || found.kind === "value") {
    const { fields } = await read(`v1/fields?${span}`);
    if (found.kind === "value") {
      const field = fields.find((one) => one.label === found.label)?.field, typed = found.prefix.slice(1).toLowerCase();
      const { values } = field ? await read(`v1/fields/values?${new URLSearchParams({ ...range, field, limit: String(VALUES_MAX) })}`) : { values: [] };
      options = values.filter((one) => !one.cut && String(one.value).toLowerCase().includes(typed)).map((one) => ({ text: quote(one.value), what: `${one.count}` }));
      if (found.prefix && text[cursor] === found.prefix[0]) to += 1;
    } else {
      const labels = fields.filter((one) => one.label?.toLowerCase().startsWith(found.prefix.toLowerCase())).map((one) => ({ text: one.label, what: "label" }));
      options = found.kind === "label" ? [...labels, ...words] : [...words, ...labels];
    }
  }
  // A word that is complete needs no list over the page.
  if (options.length === 1 && options[0].text === found.prefix) return IDLE;
  return { options: options.slice(0, OPTIONS_MAX), at: -1, from, to };
}

// The error of a query, or a hint: the text with the wrong word marked, and what to write instead.
export function WrongText({ text, problem, id, fix, isHint }) {
  const [, column, word] = /column=`(\d+)`(?:, word=`([^`]*)`)?/.exec(problem) ?? [];
  if (!column) return html`<div class="problem" role="alert" id=${id}><p>${safe(problem)}</p></div>`;
  const characters = [...text], start = Number(column) - 1, end = start + Math.max(1, [...(word ?? "")].length);
  return html`<div class=${isHint ? "notice wrong" : "problem wrong"} role=${isHint ? "status" : "alert"} id=${id}>
    <pre aria-hidden="true">${safe(characters.slice(0, start).join(""))}<mark>${safe(characters.slice(start, end).join("")) || " "}</mark>${safe(characters.slice(end).join(""))}</pre>
    <p>${safe(problem)}</p>${fix}</div>`;
}

export function Editor({ text, setText, submit, range, problem }) {
  const [list, setList] = useState(IDLE), input = useRef(null), cache = useRef(new Map()), timer = useRef(0), stop = useRef(null), focus = useRef(null);
  useEffect(() => { cache.current = new Map(); }, [JSON.stringify(range)]);
  useEffect(() => () => { clearTimeout(timer.current); stop.current?.abort(); }, []);
  useEffect(() => {  // after the accepted word is in the input
    if (focus.current === null) return;
    input.current.setSelectionRange(focus.current, focus.current);
    focus.current = null;
    suggest();
  });
  const shut = () => { clearTimeout(timer.current); stop.current?.abort(); setList(IDLE); };
  function suggest() {
    clearTimeout(timer.current);
    timer.current = setTimeout(async () => {
      stop.current?.abort();
      stop.current = new AbortController();
      const { signal } = stop.current, field = input.current;
      if (!field || document.activeElement !== field) return;
      try {
        const found = await optionsAt(field.value, field.selectionStart, range, cache.current, signal);
        if (!signal.aborted) setList(found);
      } catch { if (!signal.aborted) setList(IDLE); }
    }, SETTLE_MS);
  }
  const accept = (option) => {
    focus.current = list.from + option.text.length;
    setText(text.slice(0, list.from) + option.text + text.slice(list.to));
    setList(IDLE);
  };
  const isOpen = list.options.length > 0;
  const press = (event) => {
    if (event.ctrlKey && event.key === " ") { event.preventDefault(); suggest(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && !isOpen) { event.preventDefault(); suggest(); return; }
    if (step) {
      event.preventDefault();
      const size = list.options.length, at = list.at < 0 ? (step > 0 ? 0 : size - 1) : (list.at + step + size) % size;
      setList({ ...list, at });
      document.getElementById(`logql-option-${at}`)?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Escape" && isOpen) { event.preventDefault(); shut(); } else if (event.key === "Tab" && isOpen && !event.shiftKey) { event.preventDefault(); accept(list.options[Math.max(0, list.at)]); } else if (event.key === "Enter" && isOpen && list.at >= 0) { event.preventDefault(); accept(list.options[list.at]); } else if (event.key === "Enter") { shut(); submit(event); } else if (event.key === "ArrowLeft" || event.key === "ArrowRight" || event.key === "Home" || event.key === "End") suggest();
  };
  return html`<div class="editor grow"><label for="logql">Query</label>
    <input id="logql" data-search class="mono" ref=${input} role="combobox" aria-autocomplete="list" aria-haspopup="listbox" aria-expanded=${isOpen ? "true" : "false"} aria-controls="logql-list" aria-activedescendant=${isOpen && list.at >= 0 ? `logql-option-${list.at}` : null} aria-invalid=${problem ? "true" : null} aria-describedby=${problem ? "logql-problem" : null}
      autocomplete="off" autocapitalize="off" spellcheck="false" maxlength="10000" value=${text} placeholder=${'{service="shop", level="error"} |= "timeout"'}
      onInput=${(event) => { setText(event.target.value); suggest(); }} onFocus=${suggest} onClick=${suggest} onKeyDown=${press} onBlur=${shut} />
    <ul id="logql-list" role="listbox" aria-label="Suggestions" hidden=${!isOpen}>${list.options.map((one, at) => html`<li key=${one.text} id=${`logql-option-${at}`} role="option" aria-selected=${at === list.at ? "true" : "false"} onMouseDown=${(event) => { event.preventDefault(); accept(one); }}><code>${safe(one.text)}</code><span class="quiet">${safe(one.what)}</span></li>`)}</ul></div>`;
}
