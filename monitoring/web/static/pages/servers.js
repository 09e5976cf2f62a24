// All servers in a table, and one server.

import { cells, chart } from "../chart.js";
import { bytes, full, known, number, percent, plural, rate, since, size } from "../format.js";
import { bar, dataTable, facts, filterField, gpuLink, html, leaseLink, none, nothing, pairs, panel, serverLink, state, userLink, withBar } from "../parts.js";
import { drain, mayDrain, undrain } from "../orders.js";
import { NO_SERIES, RECENT_MS, question, rows } from "../store.js";

export let needs = [];
const charts = question(RECENT_MS);
const detail = question(0);

export function enter([name]) {
  needs = name ? ["work"] : [];
  if (!name) return null;
  return async () => {
    if (!rows("servers").some((each) => each.name === name)) return;
    await charts.load(`recent?${new URLSearchParams({ server: name, metrics: "busy,granted,temperature,power" })}`, name);
    await detail.load(`server/${encodeURIComponent(name)}`, name);
  };
}

const sum = (list) => list.reduce((a, b) => a + (b || 0), 0);

export function withGpus() {
  const gpus = rows("gpus");
  return rows("servers").map((server) => {
    const own = gpus.filter((gpu) => gpu.server === server.i);
    const busy = own.map((gpu) => gpu.busy).filter(known);
    return { ...server, gpus: own, busy: busy.length && !server.stale ? sum(busy) / busy.length : null, granted: sum(own.map((gpu) => gpu.granted)), capacity: sum(own.map((gpu) => gpu.capacity)) };
  });
}

const words = (s) => [s.name, s.state, s.reason, s.role, s.driver, s.version, ...s.gpus.map((g) => g.model), ...Object.entries(s.labels).map((each) => each.join("="))].join(" ");

function everything() {
  const list = withGpus();
  const columns = [
    { key: "name", title: "Server", cell: (s) => serverLink(s.name), sort: (s) => s.name },
    { key: "state", title: "State", cell: (s) => html`${state(s.state)}${s.stale > 1 ? html` <span class="faint">for ${since(s.stale)}</span>` : nothing}`, sort: (s) => s.state },
    { key: "gpus", title: "GPUs", cell: (s) => (s.gpus.length ? cells(s.gpus, s.stale) : html`<span class="faint">none</span>`), sort: (s) => s.gpus.length },
    { key: "model", title: "Model", cell: (s) => [...new Set(s.gpus.map((g) => g.model))].join(", ") || "–", sort: (s) => s.gpus.map((g) => g.model).join(), narrow: true },
    { key: "busy", title: "Busy", num: true, cell: (s) => percent(s.busy), sort: (s) => s.busy },
    { key: "granted", title: "Granted", cell: (s) => (s.capacity ? withBar(`${size(s.granted)} of ${size(s.capacity)}`, [[(100 * s.granted) / s.capacity, "a"]]) : "–"), sort: (s) => (s.capacity ? s.granted / s.capacity : null), num: false, narrow: true },
    { key: "leases", title: "Leases", num: true, cell: (s) => s.leases, sort: (s) => s.leases },
    { key: "traffic", title: "Traffic", num: true, cell: (s) => (s.stale ? "–" : rate(s.in + s.out)), sort: (s) => s.in + s.out, narrow: true },
    { key: "cpu", title: "CPU", num: true, cell: (s) => percent(s.stale ? null : s.cpu), sort: (s) => s.cpu, narrow: true },
    { key: "role", title: "Role", cell: (s) => html`<span class="tag">${s.role}</span>`, sort: (s) => s.role, narrow: true },
    { key: "driver", title: "Driver", cell: (s) => html`<span class="muted">${s.driver || "–"}</span>`, sort: (s) => s.driver, narrow: true },
  ];
  return html`<div class="filters">${filterField("Filter by name, state, model, label")}<span class="faint">${plural(list.length, "server", "servers")}</span></div>
    ${panel("Servers", dataTable("All servers", list, columns, { text: words, sort: "name", dead: (s) => s.stale }), { flush: true })}`;
}

export function gpuColumns(named = true) {
  return [
    { key: "gpu", title: "GPU", cell: (g) => (named ? gpuLink(g.name, g.index) : html`<a class="name" href="/gpus/${encodeURIComponent(g.name)}/${g.index}">GPU ${g.index}</a>`), sort: (g) => `${g.name} ${g.index}` },
    { key: "model", title: "Model", cell: (g) => html`${g.model} ${g.kind ? html`<span class="tag">${g.kind}</span>` : nothing}`, sort: (g) => g.model, narrow: true },
    { key: "state", title: "State", cell: (g) => html`${state(g.state)}${g.fault ? html` <span class="faint">${g.fault}</span>` : nothing}`, sort: (g) => g.state },
    { key: "busy", title: "Busy", num: true, cell: (g) => percent(g.stale ? null : g.busy), sort: (g) => (g.stale ? null : g.busy) },
    { key: "granted", title: "Granted", cell: (g) => withBar(`${size(g.granted)} of ${size(g.capacity)}`, [[(100 * g.granted) / (g.capacity || 1), "a"], [(100 * g.foreign) / (g.capacity || 1), "c"]]), sort: (g) => g.granted },
    { key: "used", title: "Used", num: true, cell: (g) => size(g.stale ? null : g.used), sort: (g) => g.used, narrow: true },
    { key: "temperature", title: "Temp.", num: true, cell: (g) => (known(g.temperature) && !g.stale ? `${g.temperature} °C` : "–"), sort: (g) => g.temperature, narrow: true },
    { key: "power", title: "Power", num: true, cell: (g) => (known(g.power) && !g.stale ? `${g.power} W` : "–"), sort: (g) => g.power, narrow: true },
    { key: "leases", title: "Leases", num: true, cell: (g) => g.leases, sort: (g) => g.leases },
  ];
}

export function leasesOn(check, servers) {
  return rows("leases", "work")
    .filter((lease) => lease.parts.some(([at, index]) => servers[at] && check(servers[at], index)))
    .map((lease) => ({ ...lease, here: sum(lease.parts.filter(([at, index]) => servers[at] && check(servers[at], index)).map((part) => part[2])) }));
}

export const leaseColumns = (sizeTitle) => [
  { key: "id", title: "Lease", cell: (l) => leaseLink(l.id), sort: (l) => l.id },
  { key: "user", title: "User", cell: (l) => userLink(l.user), sort: (l) => l.user },
  { key: "program", title: "Program", cut: true, cell: (l) => l.program, sort: (l) => l.program },
  { key: "here", title: sizeTitle, num: true, cell: (l) => size(l.here), sort: (l) => l.here },
  { key: "since", title: "Held for", num: true, cell: (l) => since(l.granted), sort: (l) => -l.granted },
];

function host(data) {
  const t = data.telemetry;
  const h = t && t.host;
  if (!h) return none("This server says nothing of its machine.");
  const used = known(h.memory_total) && known(h.memory_available) ? h.memory_total - h.memory_available : null;
  const disk = known(h.disk_total) && known(h.disk_free) ? h.disk_total - h.disk_free : null;
  return pairs([
    ["Processors", known(h.cpu_busy) ? withBar(percent(100 * h.cpu_busy), [[100 * h.cpu_busy, "a"]]) : null],
    ["Memory", known(used) ? withBar(`${bytes(used)} of ${bytes(h.memory_total)}`, [[(100 * used) / h.memory_total, "a"]]) : null],
    ["Disk of its state", known(disk) ? withBar(`${bytes(h.disk_free)} free of ${bytes(h.disk_total)}`, [[(100 * disk) / h.disk_total, disk / h.disk_total > 0.9 ? "warn" : "a"]]) : null],
    ["Its processes", Object.entries(h.resident || {}).map(([name, value]) => `${name} ${bytes(value)}`).join(", ")],
    known(h.descriptors) && ["Open files", `${number(h.descriptors)} of ${number(h.descriptors_max)}`],
    ["Event loop, late by", `${(1000 * t.loop_lag_s).toFixed(1)} ms`],
  ]);
}

function one(name) {
  const server = withGpus().find((each) => each.name === name);
  if (!server) return none(`There is no server "${name}" in the pool.`, "It may have left.");
  const servers = rows("servers");
  const told = detail.of(name);
  const consensus = told && told.telemetry && told.telemetry.consensus;
  const names = told ? told.names : {};
  const itself = told ? told.server : {};
  const findings = rows("findings").filter((each) => each.server === server.name);
  const leases = leasesOn((each) => each.name === server.name, servers);
  const gpus = server.gpus.map((gpu) => ({ ...gpu, name: server.name, stale: server.stale }));
  const data = charts.of(name) || NO_SERIES;
  const order = !mayDrain() ? nothing : server.state === "drain" ? html`<button type="button" @click=${() => undrain(server.name)}>Undrain</button>` : html`<button type="button" @click=${() => drain(server.name)}>Drain</button>`;
  return html`
    <div class="filters">${state(server.state)} <span class="tag">${server.role}</span>
      ${server.reason ? html`<span class="muted">${server.reason}</span>` : nothing}
      <span class="right no-print"><a class="button" href=${`/history?${new URLSearchParams({ of: server.name, span: "24h", m: "busy" })}`}>Charts of 24 h</a> ${order}</span></div>
    ${server.stale ? html`<p class="notice fail">It says nothing${server.stale > 1 ? html` since ${full(server.stale)}, ${since(server.stale)} ago` : ""}. What is below is the last that it said.</p>` : nothing}
    ${facts([
      ["Busy, mean", known(server.busy) ? Math.round(server.busy) : "–", "%", bar([[server.busy, "a"]])],
      ["Memory granted", size(server.granted), `of ${size(server.capacity)}`, bar([[(100 * server.granted) / (server.capacity || 1), "a"]])],
      ["Leases", server.leases],
      ["Sessions' traffic", server.stale ? "–" : rate(server.in + server.out), "", `${rate(server.in)} in, ${rate(server.out)} out`],
      ["Link", server.speed ? number(server.speed / 1000) : "–", "Gbit/s", server.rdma ? "with RDMA" : ""],
    ])}
    ${panel("GPUs", dataTable("GPUs of this server", gpus, gpuColumns(false), { sort: "gpu", prefix: "g", dead: () => server.stale }), { flush: true })}
    <div class="grid">
      ${panel("The last hour", chart({ t: data.t, unit: "%", max: 100, height: 210, series: [{ label: "Granted", values: data.series.granted || [], tone: 1 }, { label: "Busy", values: data.series.busy || [], tone: 0, fill: true }] }), { width: "w6", aside: "means of its GPUs" })}
      ${panel("Temperature", chart({ t: data.t, unit: "°C", height: 210, series: [{ label: "Temperature", values: data.series.temperature || [], tone: 2 }] }), { width: "w6", aside: "mean of its GPUs" })}
      ${panel("Machine", told ? host(told) : none("Asking…"), { width: "w6" })}
      ${panel("Membership", pairs([
        ["Address", html`<span class="mono">${itself.address}</span>`], ["Id", html`<span class="mono">${itself.id}</span>`], ["Joined", full(itself.joined_at)],
        ["gpupool", server.version], ["Driver", server.driver], ["CUDA", server.cuda],
        ["Labels", Object.entries(server.labels).map(([key, value]) => html`<span class="tag">${key}=${value}</span> `)],
        consensus && ["Journal", bytes(consensus.journal_bytes)],
        consensus && Object.keys(consensus.link_rtt_s).length && ["Round trip to", Object.entries(consensus.link_rtt_s).map(([id, s]) => html`<div>${names[id] || id}: ${(1000 * s).toFixed(2)} ms</div>`)],
      ].filter(Boolean)), { width: "w6" })}
    </div>
    ${panel("Leases here", dataTable("Leases on this server", leases, leaseColumns("Memory here"), { sort: "since", prefix: "l", empty: none("Nobody has a lease here.") }), { flush: true, aside: plural(leases.length, "lease", "leases") })}
    ${findings.length ? panel("Checks", html`<ul class="list">${findings.map((each) => html`<li>${state(each.level)}<div><b>${each.check}</b> ${each.subject} <span class="muted">${each.text}${each.silence ? ` (${each.silence})` : ""}</span></div><span class="end">${each.since > 1 ? `for ${since(each.since)}` : ""}</span></li>`)}</ul>`, { flush: true }) : nothing}`;
}

export const view = ([name]) => (name ? one(name) : everything());
