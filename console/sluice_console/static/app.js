// The shell: navigation, login, keyboard, theme and time zone. Pages are loaded when they open.
import { h, render } from "preact";
import { ApiProblem, api, go, html, notice, placeUrl, readPlace, refreshSession, remember, session, sessionEnded, storeUrl, theme, useCell, useEffect, useLayoutEffect, useRef, useState, zone } from "./lib.js";
import { Dialog, Loading, Problem } from "./parts.js";
import { Overview } from "./pages/overview.js";

const PAGES = [
  ["overview", "Overview", "o", async () => Overview],
  ["explore", "Explore", "e", async () => (await import("./pages/explore.js")).Explore],
  ["trace", "Traces", "t", async () => (await import("./pages/trace.js")).Trace],
  ["metrics", "Metrics", "m", async () => (await import("./pages/metrics.js")).Metrics],
  ["batches", "Batches", "b", async () => (await import("./pages/batches.js")).Batches],
  ["agents", "Agents", "a", async () => (await import("./pages/agents.js")).Agents],
  ["conflicts", "Conflicts", "c", async () => (await import("./pages/conflicts.js")).Conflicts],
  ["queue", "Queue", "q", async () => (await import("./pages/queue.js")).Queue],
  ["audit", "Audit & GC", "u", async () => (await import("./pages/audit.js")).Audit],
  ["store", "Store & policies", "s", async () => (await import("./pages/store.js")).Store],
];

const loaded = { overview: Overview };

function usePlace() {
  const [place, setPlace] = useState(readPlace());
  // Before the first paint: a link that is followed as soon as it is visible is not missed.
  useLayoutEffect(() => {
    const read = () => setPlace(readPlace());
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  return place;
}

function Page({ place }) {
  const found = PAGES.find(([name]) => name === place.page);
  const [, setReady] = useState("");
  const [problem, setProblem] = useState(null);
  const focused = useRef(place.page);
  useEffect(() => {
    document.title = `${found?.[1] ?? "Not found"} · sluice console`;
    setProblem(null);
    if (found && !loaded[place.page]) {
      found[3]().then((page) => { loaded[place.page] = page; setReady(place.page); },
        () => setProblem(new ApiProblem(0, "The page could not be loaded", "Check that `sluice console` runs, then reload.")));
    }
  }, [place.page]);
  const Shown = loaded[place.page];
  useEffect(() => {
    if (!Shown || focused.current === place.page) return;
    focused.current = place.page;
    document.querySelector("main h1")?.focus({ preventScroll: true });
    scrollTo(0, 0);
  });
  if (!found) return html`<h1>Not found</h1><p>There is no page of this name. <a href="#overview">Open the overview</a>.</p>`;
  if (problem) return html`<${Problem} problem=${problem} />`;
  return Shown ? h(Shown, { place }) : html`<${Loading} />`;
}

const REFUSED = {
  state: "It was finished before, took longer than ten minutes, or began in another browser. Log in again.",
  provider: "The identity provider refused it or is unreachable. The log of the console contains the reason.",
  token: "The identity token is invalid. The log of the console contains the reason.",
  role: "Your user has no role in this console. Ask an administrator for one of the values of viewer_roles or operator_roles.",
};

function Login() {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState(null);
  const me = useCell(session), ended = useCell(sessionEnded);
  const login = async (event) => {
    event.preventDefault();
    try { session.set(await api("v1/login", { method: "POST", body: { token } })); } catch (error) {
      setProblem(error.status === 401 ? new ApiProblem(401, "Unknown token", "Check the token. Its sha256 must be listed under viewers or operators of [console].") : error);
    }
  };
  const refused = REFUSED[readPlace().query.get("login")];
  return html`<main class="login"><form onSubmit=${login}>
    <h1>sluice console</h1>
    ${ended && html`<div class="notice" role="status"><strong>Your login has ended.</strong> Log in again: the page opens where you left it. Logins end after a time that the console sets, and when it is restarted.</div>`}
    ${refused && html`<${Problem} problem=${new ApiProblem(403, "The login was refused", refused)} />`}
    ${me?.oidc && html`<p><a class="primary" href="v1/oidc/login">Log in at the identity provider</a></p>`}
    ${me?.login_exists
      ? html`<label>Token<input type="password" autocomplete="current-password" autofocus required value=${token} onInput=${(event) => setToken(event.target.value)} /></label>
        <${Problem} problem=${problem} /><button type="submit" class="primary">Log in</button>
        <p class="quiet">An administrator creates tokens and lists their sha256 in the settings of the console.</p>`
      : !me?.oidc && html`<p>Log in at the reverse proxy of this console, then reload the page.</p>`}
  </form></main>`;
}

function Help({ close }) {
  const keys = [["/", "Search on this page, or open Explore"], ["?", "This help"], ["Esc", "Close a dialog"], ["t", "UTC or local time"],
    ...PAGES.map(([, title, key]) => [`g ${key}`, title])];
  return html`<${Dialog} title="Keyboard" close=${close}><dl class="keys">${keys.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl><//>`;
}

const THEMES = { auto: "light", light: "dark", dark: "auto" };

function switchZone() {
  zone.set(zone.get() === "utc" ? "local" : "utc");
  remember("zone", zone.get());
}

function useKeys(openHelp) {
  useLayoutEffect(() => {  // before the page is painted, so that the first key is not lost
    let pending = 0;
    const press = (event) => {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.target.isContentEditable;
      if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const after = Date.now() - pending < 1500;
      pending = 0;
      const page = after && PAGES.find(([, , key]) => key === event.key);
      if (page) { go(page[0]); } else if (event.key === "g") { pending = Date.now(); } else if (event.key === "?") { openHelp(); } else if (event.key === "t") { switchZone(); } else if (event.key === "/") {
        const field = document.querySelector("[data-search]");
        if (field) field.focus(); else go("explore");
      } else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

function Shell() {
  const place = usePlace();
  const me = useCell(session), clock = useCell(zone), colours = useCell(theme), said = useCell(notice);
  const [help, setHelp] = useState(false);
  useKeys(() => setHelp(true));
  useEffect(() => { api("v1/store").then((found) => storeUrl.set(found.url), () => {}); }, []);
  const logout = async () => {
    try { await api("v1/logout", { method: "POST" }); } finally { await refreshSession(true); }
  };
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>Skip to content</a>
    <nav class="menu" aria-label="Pages">
      <a class="brand" href="#overview"><img src="static/icon.svg" alt="" width="22" height="22" />sluice</a>
      <ul>${PAGES.map(([name, title]) => html`<li><a href=${placeUrl(name)} aria-current=${place.page === name ? "page" : null}>${title}</a></li>`)}</ul>
      <div class="session">
        <button type="button" class="plain" onClick=${switchZone} title="UTC or local time (t)">${clock === "utc" ? "UTC" : "Local time"}</button>
        <button type="button" class="plain" onClick=${() => { theme.set(THEMES[colours]); remember("theme", theme.get()); }} title="Light or dark">Theme: ${colours}</button>
        <button type="button" class="plain" onClick=${() => setHelp(true)} title="Keyboard (?)">Keyboard</button>
        <p>${me.name} <span class="quiet">${me.role}</span></p>
        ${me.login_exists && me.csrf && html`<button type="button" class="plain" onClick=${logout}>Log out</button>`}
      </div>
    </nav>
    <main id="main" tabindex="-1"><${Page} place=${place} /></main>
    <div class="hidden" role="status" aria-live="polite">${said}</div>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}`;
}

function App() {
  const me = useCell(session), colours = useCell(theme);
  const [problem, setProblem] = useState(null);
  useEffect(() => {
    if (colours === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = colours;
  }, [colours]);
  const begin = () => refreshSession().then(() => setProblem(null), setProblem);
  useEffect(() => { begin(); }, []);
  if (problem && !me) return html`<main class="login"><${Problem} problem=${problem} again=${begin} /></main>`;
  if (!me) return html`<${Loading} />`;
  return me.needs_login ? html`<${Login} />` : html`<${Shell} />`;
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
