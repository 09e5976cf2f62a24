// What the server has told us: documents made of columns, asked for again and again.
//
// A page that is hidden asks nothing. An answer has only what changed since the version that we
// have. What cannot be refreshed stays, with its age, and is drawn as old.

const SECRET = "gpupool-order-secret";
const OLD_MS = 5000;
const MANY_SERVERS = 100;
export const RECENT_MS = 5000; // between two steps of what this page's program has seen
export const NO_SERIES = { t: [], series: {} };

function empty() {
  return { v: 0, values: {}, tables: {} };
}

export const store = {
  live: empty(),
  work: empty(),
  heardAt: 0, // performance.now() of the last answer
  poolNow: 0, // the pool's time then
  viewAge: 0, // seconds: how old the view was then
  trouble: "",
  stranger: false,
  entry: "key", // what lets a stranger in: an address with a key, or a token
  bytes: 0, // of all answers, for the page about itself
};

const listeners = new Set();
let wanted = ["live"];
let extra = null; // what the page on screen asks for besides
let timer = 0;
let running = false;
let again = false; // the page on screen has changed meanwhile

export function listen(listener) {
  listeners.add(listener);
}

export function changed() {
  for (const listener of listeners) listener();
}

/** The pool's time now, in milliseconds. */
export function poolNow() {
  return store.poolNow ? store.poolNow + (performance.now() - store.heardAt) : Date.now();
}

/** Milliseconds since what is on screen was true; it looks old from five seconds on. */
export function age() {
  if (!store.heardAt) return 0;
  return performance.now() - store.heardAt + Math.max(0, store.viewAge * 1000 - 1500);
}

export function isOld() {
  return age() > OLD_MS;
}

export function table(name, document = "live") {
  return store[document].tables[name] || { n: 0, cols: {} };
}

const made = new WeakMap();

/** The rows of a table as objects, the same ones until the table changes. */
export function rows(name, document = "live") {
  const found = table(name, document);
  if (!made.has(found)) made.set(found, rowsOf(found));
  return made.get(found);
}

function rowsOf({ n, cols }) {
  const names = Object.keys(cols);
  const found = new Array(n);
  for (let i = 0; i < n; i++) {
    const row = { i };
    for (const each of names) row[each] = cols[each][i];
    found[i] = row;
  }
  return found;
}

export const pool = () => store.live.values.pool || {};
export const viewer = () => store.live.values.viewer || {};

function apply(document, answer) {
  const base = answer.full ? empty() : document;
  base.v = answer.v;
  Object.assign(base.values, answer.values);
  for (const [name, part] of Object.entries(answer.tables)) {
    const before = base.tables[name] || { n: 0, cols: {} };
    const cols = part.n === before.n ? { ...before.cols } : {};
    Object.assign(cols, part.cols);
    for (const [title, [steps, values]] of Object.entries(part.at)) {
      const column = cols[title].slice();
      let at = 0;
      steps.forEach((step, i) => {
        at += step;
        column[at] = values[i];
      });
      cols[title] = column;
    }
    base.tables[name] = { n: part.n, cols };
  }
  return base;
}

/** Ask the API; what it refuses is thrown with the words of the server. */
export async function ask(path, body) {
  /** @type {RequestInit} */
  const options = { headers: {}, cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.headers = { "content-type": "application/json", "x-gpupool": secret() };
    options.body = JSON.stringify(body);
  }
  const limit = new AbortController();
  const clock = setTimeout(() => limit.abort(), 40000);
  try {
    const answer = await fetch(`/api/v1/${path}`, { ...options, signal: limit.signal });
    const data = await answer.json();
    if (answer.status === 401 && path !== "login") {
      store.stranger = true;
      store.entry = data.error.entry || "key";
    }
    if (!answer.ok) throw Object.assign(new Error(data.error.what), data.error);
    return { data, headers: answer.headers };
  } finally {
    clearTimeout(clock);
  }
}

/**
 * A question that is asked again once its answer is older; another key is another question.
 * `data` is the last answer, `error` why there is none, and `of(key)` the answer to that question alone.
 * @param {number} everyMs
 */
export function question(everyMs) {
  /** @type {{key: string, next: number, data: any, error: string, of: (key: string) => any, load: (path: string, key?: string) => Promise<void>}} */
  const it = { key: "", next: 0, data: null, error: "", of: (key) => (it.key === key ? it.data : null), load: async (path, key = path) => {
    if (it.key !== key) Object.assign(it, { key, next: 0, data: null, error: "" });
    if (performance.now() < it.next) return;
    it.next = performance.now() + everyMs;
    try {
      const { data } = await ask(path);
      if (it.key === key) Object.assign(it, { data, error: "" });
    } catch (error) {
      if (it.key === key) it.error = error.what || "No server tells.";
    }
    changed();
  } };
  return it;
}

export function mayOrder() {
  return !viewer().readonly && Boolean(secret());
}

function secret() {
  try {
    return localStorage.getItem(SECRET) || "";
  } catch {
    return "";
  }
}

/** Exchange the key of the address's fragment, and take it out of the address. */
export async function enter() {
  const found = /^#key=([\w-]+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    const { data } = await ask("login", { key: found[1] });
    localStorage.setItem(SECRET, data.secret);
  } catch (error) {
    store.refusal = error;
  }
}

/** Let this browser in by a token; throws what the server says when it is none. */
export async function login(token) {
  const { data } = await ask("login", { token });
  localStorage.setItem(SECRET, data.secret);
  store.refusal = null;
  store.stranger = false;
  await loop();
}

/** End this browser's session. */
export async function logout() {
  await ask("logout", {});
  localStorage.removeItem(SECRET);
  location.assign("/");
}

async function poll() {
  for (const name of wanted) {
    const { data, headers } = await ask(`${name}?since=${store[name].v}`);
    if (data.v !== store[name].v || data.full) store[name] = apply(store[name], data);
    store.heardAt = performance.now();
    store.poolNow = Number(headers.get("x-now")) || Date.now();
    store.viewAge = Number(headers.get("x-age")) || 0;
  }
  if (extra) await extra();
}

async function loop() {
  clearTimeout(timer);
  again = running;
  if (running || document.hidden) return;
  running = true;
  const started = performance.now();
  try {
    await poll();
    store.trouble = "";
    store.stranger = false;
  } catch (error) {
    store.trouble = error.what || (viewer().entry === "token" ? "the server does not answer" : "gpupool web does not answer");
  }
  running = false;
  changed();
  const interval = table("servers").n > MANY_SERVERS ? 2000 : 1000;
  timer = setTimeout(loop, again ? 0 : Math.max(200, interval - (performance.now() - started)));
}

/** Say which documents the page on screen needs, and what it asks for besides. */
export function want(documents, besides) {
  wanted = ["live", ...documents.filter((each) => each !== "live")];
  extra = besides || null;
  loop();
}

/** Whether all documents are there that the page on screen needs; nothing is said of what is not. */
export const isReady = () => wanted.every((name) => store[name].v);

export function start() {
  document.addEventListener("visibilitychange", loop);
  return loop();
}
