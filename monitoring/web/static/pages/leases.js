// Leases, held and over, and one lease with its traffic and its end.

import { bytes, duration, full, known, micros, number, percent, plural, rate, since, size, when } from "../format.js";
import { bar, choice, clientLink, dataTable, facts, filterField, gpuLink, html, leaseLink, none, nothing, pairs, panel, params, serverLink, setParams, state, userLink } from "../parts.js";
import { day } from "../kept.js";
import { endLease, mayEnd } from "../orders.js";
import { poolNow, question, rows } from "../store.js";

export const needs = ["work"];
const LATENCY_BOUND = 0.2;
const TITLE_WIDTH = 12; // of a line of "gpupool usage --lease"
const past = question(30000);
const METRICS = ["busy", "memory", "bytes-in", "bytes-out", "calls", "waits", "call-time", "rtt"];
let charts = { id: "", follow: null };
const records = question(10000);

export function enter([id]) {
  if (id) {
    if (charts.id !== id) charts = { id, follow: day(`lease:${id}`, METRICS) };
    const { follow } = charts;
    return () => {
      void records.load(`lease/${encodeURIComponent(id)}`, id);
      void follow();
    };
  }
  return fetchPast;
}

const fetchPast = () => void (params().get("show") === "over" && past.load(`records?since=${Math.floor(poolNow()) - 86400000}`, "day"));

export const sum = (list) => list.reduce((a, b) => a + (b || 0), 0);
export const memoryOf = (lease) => sum(lease.parts.map((part) => part[2]));

export function places(lease, servers) {
  const found = new Map();
  for (const [at] of lease.parts) {
    const name = servers[at] ? servers[at].name : "a server that left";
    found.set(name, (found.get(name) || 0) + 1);
  }
  return [...found].map(([name, count]) => html`<span class="nowrap">${count} on ${servers.some((each) => each.name === name) ? serverLink(name) : name} </span>`);
}

export function held(list, options = {}) {
  const servers = rows("servers");
  const figures = (name) => list.some((each) => known(each[name]));
  const columns = [
    { key: "id", title: "Lease", cell: (l) => leaseLink(l.id), sort: (l) => l.id },
    options.user ? null : { key: "user", title: "User", cell: (l) => userLink(l.user), sort: (l) => l.user },
    { key: "program", title: "Program", cut: true, cell: (l) => l.program, sort: (l) => l.program },
    { key: "state", title: "State", cell: (l) => html`${state(l.state)} ${l.wire > LATENCY_BOUND ? html`<span class="tag warn" title="bound by latency">latency</span>` : nothing}`, sort: (l) => l.state },
    { key: "gpus", title: "GPUs", cell: (l) => places(l, servers), sort: (l) => l.parts.length },
    { key: "memory", title: "Memory", num: true, cell: (l) => size(memoryOf(l)), sort: memoryOf },
    { key: "since", title: "Held for", num: true, cell: (l) => since(l.granted), sort: (l) => -l.granted },
    figures("used") && { key: "used", title: "Used", num: true, cell: (l) => size(l.used), sort: (l) => l.used, narrow: true },
    figures("busy") && { key: "busy", title: "Busy", num: true, cell: (l) => percent(l.busy), sort: (l) => l.busy, narrow: true },
    { key: "traffic", title: "Traffic", num: true, cell: (l) => rate(known(l.in) ? l.in + l.out : null), sort: (l) => (known(l.in) ? l.in + l.out : null), narrow: true },
    { key: "calls", title: "Calls/s", num: true, cell: (l) => number(l.calls), sort: (l) => l.calls, wide: true },
    figures("wire") && { key: "wire", title: "Wait on wire", num: true, cell: (l) => (known(l.wire) ? `${number(l.wire, 2)} s/s` : "–"), sort: (l) => l.wire, narrow: true },
    { key: "class", title: "Class", cell: (l) => (l.class ? html`<span class="tag">${l.class}</span>` : "–"), sort: (l) => l.class, wide: true },
    list.some(mayEnd) && { key: "act", title: "", cell: (l) => (mayEnd(l) ? html`<button class="plain" type="button" aria-label="End lease ${l.id}" @click=${() => endLease(l)}>End…</button>` : nothing) },
  ];
  return dataTable("Leases that are held", list, columns, { sort: "-since", text: (l) => `${l.id} ${l.user} ${l.program} ${l.client} ${l.class} ${l.department} ${l.state} ${l.parts.map(([at]) => (servers[at] ? servers[at].name : "")).join(" ")}`, empty: none("Nobody has a lease.", "gpupool run -n 1 -- python train.py takes one."), ...options });
}

export function over(list, error = "", options = {}) {
  if (error) return none(error);
  if (!list) return none("Asking the servers…");
  return dataTable("Leases that are over", list, [
    { key: "lease", title: "Lease", cell: (r) => leaseLink(r.lease), sort: (r) => r.lease },
    options.user ? null : { key: "user", title: "User", cell: (r) => userLink(r.user), sort: (r) => r.user },
    { key: "program", title: "Program", cut: true, cell: (r) => r.program, sort: (r) => r.program },
    { key: "server", title: "Server", cell: (r) => serverLink(r.server), sort: (r) => r.server },
    { key: "gpus", title: "GPUs", num: true, cell: (r) => r.gpus.length, sort: (r) => r.gpus.length },
    { key: "memory", title: "Memory", num: true, cell: (r) => bytes(sum(r.gpus.map((g) => g.memory))), sort: (r) => sum(r.gpus.map((g) => g.memory)), narrow: true },
    { key: "waited", title: "Waited", num: true, cell: (r) => duration(r.granted - r.requested), sort: (r) => r.granted - r.requested, narrow: true },
    { key: "held", title: "Held for", num: true, cell: (r) => duration((r.freed || 0) - r.granted), sort: (r) => (r.freed || 0) - r.granted },
    { key: "ended", title: "Ended", cell: (r) => when(r.ended), sort: (r) => r.ended },
    { key: "reason", title: "Why", cell: (r) => html`<span class="muted">${r.reason}</span>`, sort: (r) => r.reason },
  ], { sort: "-ended", text: (r) => `${r.lease} ${r.user} ${r.program} ${r.server} ${r.reason}`, empty: none("No lease ended in the last 24 hours."), ...options });
}

function everything() {
  const which = params().get("show") === "over" ? "over" : "held";
  const list = rows("leases", "work");
  const body = which === "over" ? over(past.data && past.data.records.filter((each) => each.ended), past.error) : held(list);
  return html`<div class="filters">
      ${choice("Which leases", [["held", "Held"], ["over", "Over, last 24 h"]], which, (value) => { setParams({ show: value === "over" ? "over" : "", sort: "", page: "" }); past.next = 0; fetchPast(); })}
      ${filterField("Filter by user, program, server")}
      <span class="faint">${which === "held" ? plural(list.length, "lease", "leases") : nothing}</span></div>
    ${missing(past.data)} ${panel(which === "over" ? "Leases that are over" : "Leases", body, { flush: true })}`;
}

/** What an answer lacks, in words. */
export function missing(data) {
  if (!data) return nothing;
  const words = [...Object.entries(data.silent || {}).map(([name, why]) => `${name} did not answer (${why})`), ...(data.problems || []), data.missing ? `${data.missing} records are not to be had, so sums are too small` : ""].filter(Boolean);
  return words.length ? html`<p class="notice">${words.join("; ")}.</p>` : nothing;
}

function advice(lease) {
  const found = [];
  if (lease.wire > LATENCY_BOUND) found.push("It waits for answers more than a fifth of the time: larger batches, fewer copies to the host, or a nearer server would help.");
  if (lease.idle > 1800 && lease.state !== "suspended") found.push(`It has not computed for ${duration(lease.idle * 1000)}.`);
  return found;
}

function one(id) {
  const lease = rows("leases", "work").find((each) => each.id === id);
  const told = records.of(id);
  const servers = rows("servers");
  if (!lease && !told) return records.error ? none(records.error) : none("Asking the servers…");
  const first = told && told.parts[0];
  const ended = !lease && first && first.ended;
  const hours = told ? [["GPU-hours", number(told.total.gpu_hours, 3)], ["GiB-hours", number(told.total.gib_hours, 1)]] : [];
  const shown = lease || { user: first.user, program: first.program, client: first.client, class: first.class, department: first.department, granted: first.granted };
  const words = lease ? advice(lease) : [];
  return html`
    <div class="filters">${state(lease ? lease.state : "over")} ${lease && lease.wire > LATENCY_BOUND ? html`<span class="tag warn">bound by latency</span>` : nothing} <b>${shown.program}</b> <span class="muted">of ${userLink(shown.user)}</span>
      <span class="right no-print"><a class="button" href=${`/history?${new URLSearchParams({ of: `lease:${id}`, span: "24h", m: "busy" })}`}>Charts of 24 h</a> ${lease && mayEnd(lease) ? html`<button type="button" @click=${() => endLease(lease)}>End the lease…</button>` : nothing}</span></div>
    ${lease && lease.reason ? html`<p class="notice">${lease.reason}</p>` : nothing}
    ${ended ? html`<p class="notice quiet">It ended ${full(first.ended)}: ${first.reason}.</p>` : nothing}
    ${lease
      ? facts([
          ["Held for", since(lease.granted), "", `waited ${duration(lease.waited)}`],
          ["Memory", size(memoryOf(lease)), lease.state === "suspended" ? "its GPUs are others' meanwhile" : plural(lease.parts.length, "GPU", "GPUs"), known(lease.used) && memoryOf(lease) ? html`${bar([[(100 * lease.used) / memoryOf(lease), "a"]])}<span>${size(lease.used)} used</span>` : ""],
          known(lease.busy) && ["Busy", lease.busy, "%", lease.parts.length > 1 ? "sum of its GPUs" : ""],
          ["Traffic", rate(known(lease.in) ? lease.in + lease.out : null), "", known(lease.in) ? `${rate(lease.in)} up, ${rate(lease.out)} down` : ""],
          ["Calls", number(lease.calls), "per second", known(lease.waits) ? `${number(lease.waits)} wait for an answer` : ""],
          known(lease.rtt) && ["Round trip", micros(lease.rtt), "", known(lease.wire) ? `${number(lease.wire, 2)} s of each second on the wire` : ""],
        ])
      : nothing}
    ${told && told.lines.length ? panel("Use", pairs(told.lines.map((line) => [line.slice(0, TITLE_WIDTH).trim(), line.slice(TITLE_WIDTH)])), { aside: "by what samples have seen, with advice" }) : nothing}
    ${words.map((text) => html`<p class="notice">${text}</p>`)} ${missing(told)} ${missing(charts.follow.data)}
    <div class="grid">${charts.follow.charts()}
      
      ${panel("Where", lease
        ? dataTable("GPUs of this lease", lease.parts.map(([at, index, memory]) => ({ name: servers[at] ? servers[at].name : "–", index, memory, stale: servers[at] && servers[at].stale })), [
            { key: "gpu", title: "GPU", cell: (p) => gpuLink(p.name, p.index) },
            { key: "memory", title: "Memory", num: true, cell: (p) => size(p.memory) },
          ], { dead: (p) => p.stale })
        : dataTable("GPUs of this lease", told.parts.flatMap((part) => part.gpus.map((gpu) => ({ ...gpu, server: part.server }))), [
            { key: "server", title: "Server", cell: (p) => serverLink(p.server) },
            { key: "model", title: "GPU", cell: (p) => p.model },
            { key: "memory", title: "Memory", num: true, cell: (p) => bytes(p.memory) },
            { key: "share", title: "Share", num: true, cell: (p) => percent(100 * p.share) },
          ]), { width: "w6", flush: true })}
      ${panel("Facts", pairs([
        ["User", userLink(shown.user)], ["Class", shown.class], ["Department", shown.department], ["Client", clientLink(shown.client)], ["Program", shown.program],
        first && ["Requested", full(first.requested)], ["Granted", full(shown.granted)], ended && ["Ended", full(first.ended)], ended && ["Why", first.reason],
        lease && lease.transport && ["Transport", lease.transport], lease && known(lease.exec) && ["Mean time of a waited call", micros(lease.exec)],
        ...hours,
      ].filter(Boolean)), { width: "w6" })}
    </div>`;
}

export const view = ([id]) => (id ? one(id) : everything());
