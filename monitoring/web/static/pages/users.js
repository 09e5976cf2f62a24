// Users and their classes: who has what now, who waits, and the policy in force.

import { full, number, percent, plural, size } from "../format.js";
import { dataTable, filterField, html, none, nothing, panel, params, facts, userLink, setParams, choice } from "../parts.js";
import { ask, pool, rows, viewer } from "../store.js";
import { held, memoryOf, over, sum } from "./leases.js";

export const needs = ["work"];
const policy = { version: -1, data: null, error: "" };
const past = { user: "", next: 0, data: null, error: "" };

export function enter([name]) {
  if (name && past.user !== name) Object.assign(past, { user: name, next: 0, data: null, error: "" });
  return async () => {
    if (name) void load();
    if (!pool().policy || policy.version === pool().policy) return;
    policy.version = pool().policy;
    try {
      policy.data = (await ask("policy")).data;
    } catch (error) {
      policy.error = error.what || "No server tells.";
    }
  };
}

async function load() {
  if (performance.now() < past.next) return;
  past.next = performance.now() + 30000;
  try {
    past.data = (await ask(`records?since=${Date.now() - 7 * 86400000}`)).data;
  } catch (error) {
    past.error = error.what || "No server tells.";
  }
}

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
  const names = new Set([...leases, ...waiting].map((each) => each[key] || ""));
  return [...names].map((name) => {
    const own = leases.filter((each) => (each[key] || "") === name);
    return { name, leases: own.length, gpus: share(own, capacity), memory: sum(own.map(memoryOf)), waiting: waiting.filter((each) => (each[key] || "") === name).length, classes: [...new Set([...own, ...waiting.filter((each) => each[key] === name)].map((each) => each.class).filter(Boolean))].join(", "), users: new Set(own.map((each) => each.user)).size };
  });
}

function everything() {
  const by = params().get("by") === "class" ? "class" : "user";
  const total = rows("gpus").length || 1;
  const columns = [
    { key: "name", title: by === "user" ? "User" : "Class", cell: (u) => (by === "user" ? userLink(u.name) : u.name || html`<span class="faint">none</span>`), sort: (u) => u.name },
    by === "user" ? { key: "class", title: "Class", cell: (u) => (u.classes ? html`<span class="tag">${u.classes}</span>` : "–"), sort: (u) => u.classes } : { key: "users", title: "Users with leases", num: true, cell: (u) => u.users, sort: (u) => u.users },
    { key: "gpus", title: "GPUs", num: true, cell: (u) => number(u.gpus, 2), sort: (u) => u.gpus },
    { key: "share", title: "Of the pool", num: true, cell: (u) => percent((100 * u.gpus) / total), sort: (u) => u.gpus, narrow: true },
    { key: "memory", title: "Memory", num: true, cell: (u) => size(u.memory), sort: (u) => u.memory },
    { key: "leases", title: "Leases", num: true, cell: (u) => u.leases, sort: (u) => u.leases },
    { key: "waiting", title: "Waiting", num: true, cell: (u) => u.waiting || "–", sort: (u) => u.waiting },
  ];
  return html`<div class="filters">${choice("Sum by", [["user", "Users"], ["class", "Classes"]], by, (value) => setParams({ by: value === "user" ? "" : value, sort: "", page: "" }, { push: true }))} ${filterField("Filter by name")}</div>
    ${panel(by === "user" ? "Users with leases or requests" : "Classes", dataTable("Who has what now", grouped(by), columns, { sort: "-gpus", text: (u) => `${u.name} ${u.classes}`, empty: none("Nobody has or wants anything now.") }), { flush: true, footer: html`<a href="/usage">What they had before: usage reports</a>` })}
    ${pool().policy ? panel("Policy", policy.data ? html`<pre tabindex="0" aria-label="The policy's text">${policy.data.text}</pre>` : none(policy.error || "Asking…"), { flush: true, aside: policy.data ? `version ${policy.data.version} by ${policy.data.by}, ${full(policy.data.at)}` : "" }) : panel("Policy", none("The pool has no policy.", "Everybody may take what is free. gpupool policy edit makes one."))}`;
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
      ["Class", (leases[0] || waiting[0] || {}).class || "–"],
    ])}
    ${panel("Leases", held(leases, { user: true, empty: none(`${name} has no lease now.`) }), { flush: true })}
    ${mine ? panel("Over in the last week", over(records, past.error, { user: true, prefix: "p", empty: none("No lease ended in the last week.") }), { flush: true }) : nothing}`;
}

export const view = ([name]) => (name ? one(name) : everything());
