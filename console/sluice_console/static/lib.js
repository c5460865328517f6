// What every page uses: requests, the session, times, numbers, and text that is safe to show.
import { h } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";

export const html = htm.bind(h);
export { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

// --- shared state: a few values that every page shows, with subscribers ---

function cell(value) {
  const listeners = new Set();
  return {
    get: () => value,
    set(next) { value = next; for (const listener of listeners) listener(next); },
    subscribe(listener) { listeners.add(listener); return () => listeners.delete(listener); },
  };
}

export function useCell(one) {
  const [value, setValue] = useState(one.get());
  useEffect(() => one.subscribe(setValue), [one]);
  return value;
}

const remembered = (name, fallback) => {
  try { return localStorage.getItem(`sluice.${name}`) ?? fallback; } catch { return fallback; }
};
export const remember = (name, value) => {
  try { localStorage.setItem(`sluice.${name}`, value); } catch { /* a private window */ }
};

export const session = cell(null);
export const zone = cell(remembered("zone", "utc"));
export const theme = cell(remembered("theme", "auto"));
export const storeUrl = cell("");
export const notice = cell("");

// --- requests ---

export class ApiProblem extends Error {
  constructor(status, title, detail) {
    super(detail);
    this.status = status;
    this.title = title;
  }
}

const SILENT = new ApiProblem(0, "The console does not respond",
  "The process `sluice console` is stopped or unreachable. Start it again; this page continues by itself.");

export async function problemOf(response) {
  try {
    const problem = await response.json();
    return new ApiProblem(response.status, capital(problem.title ?? "error"), problem.detail ?? "");
  } catch {
    return new ApiProblem(response.status, `Status ${response.status}`, response.statusText);
  }
}

export async function request(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (method !== "GET") {
    headers["Content-Type"] = "application/json";
    headers["X-CSRF-Token"] = session.get()?.csrf ?? "";
  }
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, credentials: "same-origin",
      body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw SILENT;
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status === 401 && path !== "v1/login") refreshSession();
  throw problem;
}

export const api = async (path, options) => (await request(path, options)).json();

export const sessionEnded = cell(false);

// `left` if the visitor logged out: then the login needs no explanation.
export async function refreshSession(left = false) {
  const found = await api("v1/session"), before = session.get();
  if (found.needs_login && before && !before.needs_login) sessionEnded.set(!left);
  session.set(found);
  return found;
}

// Loads a path again whenever it changes, and every `every` seconds while the page is visible.
export function useData(path, every = 0, read = api) {
  const [state, setState] = useState({ data: null, problem: null, loading: true });
  const [round, setRound] = useState(0);
  const shown = useRef(null);
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    setState((old) => (shown.current === path ? old : { data: null, problem: null, loading: true }));
    read(path, { signal: stop.signal }).then(
      (data) => { shown.current = path; setState({ data, problem: null, loading: false }); },
      (problem) => {
        if (problem.name === "AbortError") return;
        setState((old) => ({ data: shown.current === path ? old.data : null, problem, loading: false }));
      },
    );
    const timer = every && setTimeout(() => waitUntilVisible(() => setRound((n) => n + 1)), every * 1000);
    return () => { stop.abort(); clearTimeout(timer); };
  }, [path, round]);
  return { ...state, reload: useCallback(() => setRound((n) => n + 1), []) };
}

export function waitUntilVisible(then) {
  if (!document.hidden) { then(); return; }
  document.addEventListener("visibilitychange", () => waitUntilVisible(then), { once: true });
}

// --- the address: #page/part?name=value ---

export function readPlace() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/").map(decoded);
  return { page: page || "overview", rest, query: new URLSearchParams(query) };
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

export function placeUrl(page, rest = [], query = null) {
  const path = [page, ...rest].map(encodeURIComponent).join("/");
  const text = query ? new URLSearchParams(query).toString() : "";
  return `#${path}${text ? `?${text}` : ""}`;
}

export function go(page, rest, query) { location.hash = placeUrl(page, rest, query); }

// --- text, numbers, times ---

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// Control characters, and characters that reorder or hide text, are shown as escapes.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
export function safe(value) {
  return String(value ?? "").replace(HIDDEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US");
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return value >= 100 ? count(value) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let amount = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (amount < 1024) return unit === "B" ? `${Math.round(amount)} B` : `${amount.toFixed(1)} ${unit}`;
    amount /= 1024;
  }
  return `${amount.toFixed(1)} TiB`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const two = (number) => String(number).padStart(2, "0");

export function timeText(date, withMs = true) {
  if (!(date instanceof Date) || Number.isNaN(date.getTime())) return "–";
  const utc = zone.get() === "utc";
  const part = (name) => (utc ? date[`getUTC${name}`]() : date[`get${name}`]());
  const ms = withMs ? `.${String(part("Milliseconds")).padStart(3, "0")}` : "";
  const day = `${part("FullYear")}-${two(part("Month") + 1)}-${two(part("Date"))}`;
  const offset = -date.getTimezoneOffset();
  const sign = offset < 0 ? "−" : "+";
  const suffix = utc ? "Z" : `${sign}${two(Math.floor(Math.abs(offset) / 60))}:${two(Math.abs(offset) % 60)}`;
  return `${day} ${two(part("Hours"))}:${two(part("Minutes"))}:${two(part("Seconds"))}${ms}${suffix}`;
}

export const ofNs = (ns) => (ns === null || ns === undefined ? null : new Date(Number(ns) / 1e6));

// --- commands to copy: with the store, where the command has that option ---

const PLAIN = /^[A-Za-z0-9_./:=@%+,-]+$/;
export const quoted = (text) => (PLAIN.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);
export function command(text, ...more) {
  const url = storeUrl.get();
  const store = /^sluice (?!init|console|policies)/.test(text) && url ? ["--store", url] : [];
  return [text, ...[...more, ...store].map(quoted)].join(" ");
}
