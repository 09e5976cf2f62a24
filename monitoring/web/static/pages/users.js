// Users, their classes and departments: who has what now, what the policy allows, who wasted what.

import { full, known, number, percent, plural, size } from "../format.js";
import { dataTable, filterField, html, none, nothing, panel, params, facts, userLink, setParams, choice, withBar } from "../parts.js";
import { pool, poolNow, question, rows, viewer } from "../store.js";
import { held, memoryOf, missing, over, sum } from "./leases.js";

export const needs = ["work"];
const KINDS = [["user", "Users"], ["class", "Classes"], ["department", "Departments"]];
const LIMITS = { max_gpus: ["GPUs", (value) => number(value, value % 1 ? 2 : 0)], max_memory: ["Memory", size], max_leases: ["Leases", (value) => number(value)] };
const WHOSE = { user: () => "of the user", class: (of) => `of all members of ${of}`, pool: () => "of all users" };
const FULL = 99.5; // percent of a limit
const WEEK_MS = 7 * 86400000;
const limits = question(30000);
const waste = question(30000);
const policy = question(Infinity);
const past = question(30000);

export function enter([name]) {
  return () => {
    const since = Math.floor(poolNow()) - WEEK_MS;
    const by = name ? "user" : kind();
    if (name) void past.load(`records?since=${since}`, name);
    void limits.load(`limits?${new URLSearchParams({ user: name || "" })}`, `${name} ${pool().policy}`);
    void waste.load(`usage?by=${by}&since=${since}`, `${by} ${name}`);
    if (pool().policy) void policy.load("policy", String(pool().policy));
  };
}

const kind = () => (KINDS.find(([each]) => each === params().get("by")) || KINDS[0])[0];

const NO_TERMS = { class: "", department: "", limits: [] };
const termsOf = (user) => (limits.data && Object.hasOwn(limits.data.users, user) ? limits.data.users[user] : NO_TERMS);

/** A limit of a user alone, of the members of a class together, or of all; undefined for none. */
const limitOf = (user, holder, dimension) => (termsOf(user).limits.find(([whose, what]) => whose === holder && what === dimension) || [])[2];

function wasted(name) {
  const row = waste.data && waste.data.rows.find((each) => each.key === name);
  return row ? row.wasted_gpu_hours : null;
}

const hours = (value) => (known(value) ? `${number(value, 1)} h` : "–");

export function capacities() {
  const found = new Map();
  for (const gpu of rows("gpus")) found.set(`${gpu.server}/${gpu.index}`, gpu.capacity);
  return found;
}

/** GPUs that leases have, as shares of their memory. */
export function share(leases, capacity) {
  return sum(leases.flatMap((lease) => lease.parts.map(([at, index, memory]) => memory / (capacity.get(`${at}/${index}`) || Infinity))));
}

function grouped(key) {
  const capacity = capacities();
  const leases = rows("leases", "work");
  const waiting = rows("waiting", "work");
  const all = key === "department" ? leases : [...leases, ...waiting]; // a request has none yet
  const names = new Set(all.map((each) => each[key] || ""));
  return [...names].map((name) => {
    const own = leases.filter((each) => (each[key] || "") === name);
    const one = own[0] || waiting.find((each) => (each[key] || "") === name) || {};
    return { name, one: one.user, leases: own.length, gpus: share(own, capacity), memory: sum(own.map(memoryOf)), waiting: waiting.filter((each) => (each[key] || "") === name).length, classes: [...new Set([...own, ...waiting.filter((each) => each[key] === name)].map((each) => each.class).filter(Boolean))].join(", "), users: new Set(own.map((each) => each.user)).size };
  });
}

function everything() {
  const by = kind();
  const total = rows("gpus").length || 1;
  const title = Object.fromEntries(KINDS)[by];
  const limited = (u, dimension, value) => {
    const limit = by === "department" ? undefined : limitOf(u.one, by, dimension);
    const [, words] = LIMITS[dimension];
    const share = limit ? (100 * value) / limit : 100;
    return known(limit) ? withBar(`${words(value)} of ${words(limit)}`, [[share, share >= FULL ? "c" : "a"]]) : words(value);
  };
  const columns = [
    { key: "name", title: { user: "User", class: "Class", department: "Department" }[by], cell: (u) => (by === "user" ? userLink(u.name) : u.name || html`<span class="faint">none</span>`), sort: (u) => u.name },
    by === "user" ? { key: "class", title: "Class", cell: (u) => (u.classes ? html`<span class="tag">${u.classes}</span>` : "–"), sort: (u) => u.classes } : { key: "users", title: "Users with leases", num: true, cell: (u) => u.users, sort: (u) => u.users },
    by === "user" && limits.data ? { key: "department", title: "Department", cell: (u) => termsOf(u.name).department || "–", sort: (u) => termsOf(u.name).department, wide: true } : null,
    { key: "gpus", title: "GPUs", num: true, cell: (u) => limited(u, "max_gpus", u.gpus), sort: (u) => u.gpus },
    { key: "share", title: "Of the pool", num: true, cell: (u) => percent((100 * u.gpus) / total), sort: (u) => u.gpus, narrow: true },
    { key: "memory", title: "Memory", num: true, cell: (u) => limited(u, "max_memory", u.memory), sort: (u) => u.memory },
    { key: "leases", title: "Leases", num: true, cell: (u) => limited(u, "max_leases", u.leases), sort: (u) => u.leases },
    by !== "department" && { key: "waiting", title: "Waiting", num: true, cell: (u) => u.waiting || "–", sort: (u) => u.waiting },
    { key: "wasted", title: "Wasted, 7 days", num: true, cell: (u) => hours(wasted(u.name)), sort: (u) => wasted(u.name) },
  ];
  return html`<div class="filters">${choice("Sum by", KINDS, by, (value) => setParams({ by: value === "user" ? "" : value, sort: "", page: "" }, { push: true }))} ${filterField("Filter by name")}</div>
    ${trouble()}
    ${panel(by === "user" ? "Users with leases or requests" : title, dataTable("Who has what now", grouped(by), columns, { sort: "-gpus", text: (u) => `${u.name} ${u.classes}`, empty: none("Nobody has or wants anything now.") }), { flush: true, footer: html`<a href="/usage">What they had before: usage reports</a>` })}
    ${pool().policy ? panel("Policy", policy.data ? html`<pre tabindex="0" aria-label="The policy's text">${policy.data.text}</pre>` : none(policy.error || "Asking…"), { flush: true, aside: policy.data ? `version ${policy.data.version} by ${policy.data.by}, ${full(policy.data.at)}` : "" }) : panel("Policy", none("The pool has no policy.", "Everybody may take what is free. gpupool policy edit makes one."))}`;
}

/** What of limits and waste is not to be had, in words. */
function trouble() {
  const words = [limits.error, waste.error, limits.data && limits.data.problem].filter(Boolean);
  return html`${words.length ? html`<p class="notice">${words.join("; ")}.</p>` : nothing} ${missing(waste.data)}`;
}

/** What the policy allows a user, with how much of it is taken by whom it counts. */
function allowed(name, capacity) {
  const terms = termsOf(name);
  const leases = rows("leases", "work");
  const of = { user: leases.filter((each) => each.user === name), class: leases.filter((each) => termsOf(each.user).class === terms.class), pool: leases };
  const taken = { max_gpus: (list) => share(list, capacity), max_memory: (list) => sum(list.map(memoryOf)), max_leases: (list) => list.length };
  const list = terms.limits.map(([holder, dimension, limit]) => ({ holder, dimension, limit, used: taken[dimension](of[holder]) }));
  const text = (row, value) => LIMITS[row.dimension][1](value);
  const part = (row) => (row.limit ? (100 * row.used) / row.limit : 100);
  return panel("Limits", limits.data ? dataTable("What the policy allows", list, [
    { key: "what", title: "What", cell: (r) => LIMITS[r.dimension][0] },
    { key: "whose", title: "Whose", cell: (r) => WHOSE[r.holder](terms.class) },
    { key: "used", title: "Used", num: true, cell: (r) => text(r, r.used) },
    { key: "limit", title: "Limit", num: true, cell: (r) => text(r, r.limit) },
    { key: "share", title: "Reached", num: true, cell: (r) => withBar(percent(part(r)), [[part(r), part(r) >= FULL ? "c" : "a"]]) },
  ], { prefix: "l", empty: none("The policy has no limit for this user.") }) : none(limits.error || "Asking…"), { flush: true, aside: "by the policy, at this moment" });
}

function one(name) {
  const capacity = capacities();
  const leases = rows("leases", "work").filter((each) => each.user === name);
  const waiting = rows("waiting", "work").filter((each) => each.user === name);
  const records = past.data && past.data.records.filter((each) => each.user === name && each.ended);
  const mine = name === viewer().user || viewer().operator;
  return html`${facts([
      ["GPUs held", number(share(leases, capacity), 2), "", plural(leases.length, "lease", "leases")],
      ["Memory", size(sum(leases.map(memoryOf)))],
      ["Waiting", number(waiting.length), "", waiting.length ? waiting[0].reason : "for nothing"],
      ["Class", (leases[0] || waiting[0] || {}).class || termsOf(name).class || "–"],
      ["Department", termsOf(name).department || "–"],
      ["Wasted, 7 days", hours(wasted(name)), "", "GPU-hours in which nothing ran"],
    ])}
    ${trouble()} ${allowed(name, capacity)}
    ${panel("Leases", held(leases, { user: true, empty: none(`${name} has no lease now.`) }), { flush: true })}
    ${mine ? panel("Over in the last week", over(records, past.error, { user: true, prefix: "p", empty: none("No lease ended in the last week.") }), { flush: true }) : nothing}`;
}

export const view = ([name]) => (name ? one(name) : everything());
