// The frame around all pages: navigation, health, theme, time zone, keys; and the router.

import { age, changed, enter, isOld, isReady, listen, login, pool, poolNow, start, store, table, want } from "./store.js";
import { clock, duration, toggleZone, zone } from "./format.js";
import { announce, html, icon, nothing, render } from "./parts.js";

// Path, title, icon, group; a page that is not in the navigation has no group.
const PAGES = [
  ["", "Overview", "overview", "Now"],
  ["servers", "Servers", "servers", "Now"],
  ["gpus", "GPUs", "gpus", "Now"],
  ["leases", "Leases", "leases", "Now"],
  ["waiting", "Waiting", "waiting", "Now"],
  ["history", "Charts", "history", "Past"],
  ["usage", "Usage reports", "usage", "Past"],
  ["events", "Events and audit", "events", "Past"],
  ["health", "Health", "health", "Pool"],
  ["users", "Users and classes", "users", "Pool"],
  ["clients", "Clients", "servers", "Pool"],
  ["about", "About", "about", "Pool"],
];
const root = document.getElementById("app");
let current = { name: "", rest: [], page: null };
let openMenu = false;
let frame = 0;

async function go() {
  const [name, ...rest] = location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  const known = PAGES.find(([path]) => path === (name || ""));
  const module = await import(`./pages/${known && known[0] ? known[0] : "overview"}.js`);
  const moved = current.name !== (name || "") || current.rest.join("/") !== rest.join("/");
  current = { name: name || "", rest, title: known ? known[1] : "Overview", page: module };
  const asked = module.enter ? module.enter(rest) : undefined;
  want(module.needs || [], asked || null);
  draw();
  if (moved) {
    scrollTo(0, 0);
    document.title = `${[...rest, current.title].join(" · ")} – ${pool().name || "gpupool"}`;
  }
}

function navigate(where) {
  openMenu = false;
  if (where !== location.pathname + location.search) history.pushState(null, "", where);
  go().then(() => document.querySelector("main").focus({ preventScroll: true }));
}

function counts(name) {
  if (name === "waiting") return pool().waiting ? html`<span class="count">${pool().waiting}</span>` : nothing;
  if (name === "leases") return pool().leases ? html`<span class="count">${pool().leases}</span>` : nothing;
  if (name !== "health") return nothing;
  const { level = [], silence = [] } = table("findings").cols;
  const levels = level.filter((_, at) => !silence[at]);
  const bad = levels.filter((each) => each !== "ok").length;
  return bad ? html`<span class="count ${levels.includes("fail") ? "fail" : "warn"}">${bad}</span>` : nothing;
}

function side() {
  const groups = [...new Set(PAGES.map(([, , , group]) => group))];
  return html`<div class="side ${openMenu ? "open" : ""}">
    <a class="brand" href="/"><img src="/static/icon.svg" alt="" width="20" height="20"><span>${pool().name || "gpupool"}</span></a>
    <button class="menu plain" type="button" aria-expanded=${String(openMenu)} aria-label="Pages" @click=${() => { openMenu = !openMenu; draw(); }}>${icon("menu")}</button>
    <nav aria-label="Pages">
      ${groups.map((group) => html`<h2>${group}</h2>
        <ul>
          ${PAGES.filter((each) => each[3] === group).map(
            ([name, title, sign]) => html`<li><a href="/${name}" aria-current=${name === current.name ? "page" : nothing}>${icon(sign)}${title}${counts(name)}</a></li>`,
          )}
        </ul>`)}
    </nav>
  </div>`;
}

function topBar() {
  const dark = document.documentElement.dataset.theme === "dark";
  const crumbs = current.rest.length ? html`<a href="/${current.name}">${current.title}</a><i aria-hidden="true">/</i><h1>${current.rest.join(" / GPU ")}</h1>` : html`<h1>${current.title}</h1>`;
  return html`<header class="top">
    <div class="where">${crumbs}</div>
    <div class="right">
      <time>${clock(poolNow())} <span class="zone">${zone() === "utc" ? "UTC" : ""}</span></time>
      <button class="plain" type="button" aria-pressed=${String(zone() === "utc")} @click=${switchZone}>UTC</button>
      <button class="plain" type="button" aria-label=${dark ? "Light theme" : "Dark theme"} @click=${switchTheme}>${icon(dark ? "sun" : "moon")}</button>
    </div>
  </header>`;
}

function lost() {
  if (!isOld() && !store.trouble) return nothing;
  const why = store.trouble || "no server of the pool answers";
  return html`<div class="lost" role="status">${why}; what you see is ${duration(age())} old</div>`;
}

async function logIn(event) {
  event.preventDefault();
  const field = event.target.elements.token;
  try {
    await login(field.value.trim());
    current.wrong = "";
  } catch (error) {
    current.wrong = [error.what || "the server does not answer", error.why].filter(Boolean).join("; ");
  }
  field.value = "";
  draw();
}

function form() {
  return html`<main class="gate">
    <img src="/static/icon.svg" alt="" width="40" height="40">
    <h1>Log in to the pool</h1>
    <form @submit=${logIn}>
      <label>Token<input name="token" type="password" required autocomplete="off" spellcheck="false" placeholder="gpupool-…"></label>
      ${current.wrong ? html`<p class="wrong" role="alert">${current.wrong}</p>` : nothing}
      <button class="main">Log in</button>
    </form>
    <p class="muted">Viewer tokens are read-only; user tokens can end your own leases. An operator makes one with <code>gpupool token create</code>. With gpupool installed: <code>gpupool web --on SERVER</code>.</p>
  </main>`;
}

function gate() {
  const wrong = store.refusal;
  if (store.entry === "token") return form();
  return html`<main class="gate">
    <img src="/static/icon.svg" alt="" width="40" height="40">
    <h1>${wrong ? "This address was used already" : "Open the page by its own address"}</h1>
    <p class="muted">The address that <code>gpupool web</code> prints lets one browser in, once. Press Enter in its terminal for a new one.</p>
  </main>`;
}

function draw() {
  frame = 0;
  document.getElementById("first")?.remove();
  if (store.stranger || (store.refusal && !store.live.v)) {
    render(gate(), root);
    return;
  }
  const old = isOld();
  render(
    html`<a class="skip" href="#main">Skip to content</a>
      <div class="frame ${old ? "old" : ""}">
        ${side()}
        <div>
          ${topBar()} ${lost()}
          <main id="main" tabindex="-1">${isReady() && current.page ? current.page.view(current.rest) : nothing}</main>
        </div>
      </div>
      <div class="toast" id="toast" role="status"></div>
      <div class="away" id="said" aria-live="polite"></div>`,
    root,
  );
  if (pool().sentence && pool().sentence !== current.said) {
    if (current.said) announce(pool().sentence);
    current.said = pool().sentence;
  }
}

function soon() {
  if (!frame) frame = requestAnimationFrame(draw);
}

function switchTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("gpupool-theme", next);
  } catch {
    // It holds until the page is left.
  }
  dispatchEvent(new Event("gp-theme"));
  draw();
}

function switchZone() {
  toggleZone();
  draw();
}

function keysAreOn() {
  try {
    return localStorage.getItem("gpupool-keys") !== "off";
  } catch {
    return true;
  }
}

function key(event) {
  const typing = event.target.closest("input, select, textarea, dialog, canvas");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !keysAreOn()) return;
  const at = "1234567890".indexOf(event.key);
  if (at >= 0 && PAGES[at]) navigate(`/${PAGES[at][0]}`);
  else if (event.key === "t") switchTheme();
  else if (event.key === "z") switchZone();
  else if (event.key === "?") navigate("/about");
  else if (event.key === "/") {
    const field = /** @type {HTMLElement | null} */ (document.querySelector("[data-filter]"));
    if (!field) return;
    event.preventDefault();
    field.focus();
  }
}

function click(event) {
  const link = event.target.closest("a[href]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target || link.hasAttribute("download")) return;
  const where = new URL(link.href);
  if (where.origin !== location.origin || where.hash || where.pathname.startsWith("/api/")) return;
  event.preventDefault();
  navigate(where.pathname + where.search);
}

addEventListener("popstate", go);
addEventListener("keydown", key);
addEventListener("click", click);
addEventListener("gp-changed", soon);
addEventListener("gp-go", (/** @type {CustomEvent<string>} */ event) => navigate(event.detail));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  document.documentElement.dataset.theme = event.matches ? "dark" : "light";
  dispatchEvent(new Event("gp-theme"));
});
listen(soon);
setInterval(() => document.hidden || changed(), 1000);

await enter();
await Promise.all([go(), start()]);
draw();
