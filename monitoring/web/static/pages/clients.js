// Clients, the machines on which programs run: what they hold, move and wait for, and one of them.

import { known, micros, number, percent, plural, rate, size } from "../format.js";
import { day } from "../kept.js";
import { clientLink, dataTable, facts, filterField, html, none, panel, userLink } from "../parts.js";
import { rows } from "../store.js";
import { held, memoryOf, missing, sum } from "./leases.js";
import { capacities, share } from "./users.js";

export const needs = ["work"];
const METRICS = ["granted", "busy", "memory", "bytes-in", "bytes-out", "waits", "rtt", "wire"];
let charts = { name: "", follow: null };

export function enter([name]) {
  if (!name) return null;
  if (charts.name !== name) charts = { name, follow: day(`client:${name}`, METRICS) };
  const { follow } = charts;
  return () => void follow();
}

/** The sum of what is known; null where nothing is. */
function added(leases, figure) {
  const found = leases.map((each) => each[figure]).filter(known);
  return found.length ? sum(found) : null;
}

function grouped(list) {
  const found = new Map();
  for (const each of list) found.set(each.client, [...(found.get(each.client) || []), each]);
  return found;
}

function figures(name, leases, waiting, capacity) {
  const trips = leases.map((each) => each.rtt).filter(known);
  const of = (figure) => added(leases, figure);
  return {
    name, leases: leases.length, waiting: waiting.length,
    users: [...new Set([...leases, ...waiting].map((each) => each.user))],
    gpus: share(leases, capacity), memory: sum(leases.map(memoryOf)), used: of("used"), busy: of("busy"),
    in: of("in"), out: of("out"), calls: of("calls"), waits: of("waits"), wire: of("wire"),
    rtt: trips.length ? Math.max(...trips) : null,
  };
}

function everything() {
  const capacity = capacities();
  const leases = grouped(rows("leases", "work"));
  const waiting = grouped(rows("waiting", "work"));
  const list = [...new Set([...leases.keys(), ...waiting.keys()])].map((name) => figures(name, leases.get(name) || [], waiting.get(name) || [], capacity));
  return html`<div class="filters">${filterField("Filter by client or user")}<span class="faint">${plural(list.length, "client", "clients")}</span></div>
    ${panel("Clients with leases or requests", dataTable("What clients hold, move and wait for", list, [
      { key: "name", title: "Client", cut: true, cell: (c) => clientLink(c.name), sort: (c) => c.name },
      { key: "users", title: "Users", cell: (c) => c.users.map((each) => html`${userLink(each)} `), sort: (c) => c.users.join(), wide: true },
      { key: "gpus", title: "GPUs", num: true, cell: (c) => number(c.gpus, 2), sort: (c) => c.gpus },
      { key: "busy", title: "SM share", num: true, cell: (c) => percent(c.busy), sort: (c) => c.busy },
      { key: "in", title: "Up", num: true, cell: (c) => rate(c.in), sort: (c) => c.in },
      { key: "out", title: "Down", num: true, cell: (c) => rate(c.out), sort: (c) => c.out },
      { key: "calls", title: "Calls/s", num: true, cell: (c) => number(c.calls), sort: (c) => c.calls, narrow: true },
      { key: "waits", title: "Waits/s", num: true, cell: (c) => number(c.waits), sort: (c) => c.waits, narrow: true },
      { key: "rtt", title: "Round trip", num: true, cell: (c) => micros(c.rtt), sort: (c) => c.rtt, narrow: true },
      { key: "wire", title: "Wait on wire", num: true, cell: (c) => (known(c.wire) ? `${number(c.wire, 2)} s/s` : "–"), sort: (c) => c.wire, narrow: true },
      { key: "leases", title: "Leases", num: true, cell: (c) => c.leases, sort: (c) => c.leases },
      { key: "waiting", title: "Waiting", num: true, cell: (c) => c.waiting || "–", sort: (c) => c.waiting, narrow: true },
    ], { sort: "-gpus", text: (c) => `${c.name} ${c.users.join(" ")}`, empty: none("No client has or wants anything now.") }), { flush: true, footer: html`<a href="/usage?by=client">What they had before: usage reports</a>` })}`;
}

function one(name) {
  const leases = rows("leases", "work").filter((each) => each.client === name);
  const waiting = rows("waiting", "work").filter((each) => each.client === name);
  const c = figures(name, leases, waiting, capacities());
  const { follow } = charts;
  return html`${facts([
      ["GPUs held", number(c.gpus, 2), "", plural(c.leases, "lease", "leases")],
      ["Memory", size(c.memory), "", known(c.used) ? `${size(c.used)} used` : ""],
      known(c.busy) && ["SM share", c.busy, "%", "sum of its GPUs"],
      ["Traffic", rate(known(c.in) ? c.in + c.out : null), "", known(c.in) ? `${rate(c.in)} up, ${rate(c.out)} down` : ""],
      ["Calls", number(c.calls), "per second", known(c.waits) ? `${number(c.waits)} wait for an answer` : ""],
      known(c.rtt) && ["Round trip", micros(c.rtt), "", known(c.wire) ? `the longest; ${number(c.wire, 2)} s of each second on the wire` : "the longest"],
      ["Waiting", number(c.waiting), "", c.waiting ? waiting[0].reason : "for nothing"],
    ])}
    ${follow && missing(follow.data)}
    <div class="grid">${follow && follow.charts()}</div>
    ${panel("Leases", held(leases, { empty: none("It has no lease now.") }), { flush: true })}`;
}

export const view = ([name]) => (name ? one(name) : everything());
