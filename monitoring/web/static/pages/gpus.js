// All GPUs, and one GPU with what it does and who has it.

import { chart } from "../chart.js";
import { bytes, full, known, number, plural, since, size } from "../format.js";
import { bar, dataTable, facts, filterField, html, none, nothing, pairs, panel, serverLink, state } from "../parts.js";
import { day } from "../kept.js";
import { happened, markTable, marked, memoryByLease } from "../marks.js";
import { drain, mayDrain, undrain } from "../orders.js";
import { missing } from "./leases.js";
import { NO_SERIES, RECENT_MS, poolNow, question, rows } from "../store.js";
import { gpuColumns, leaseColumns, leasesOn } from "./servers.js";

export let needs = [];
const charts = question(RECENT_MS);
const METRICS = ["busy", "sm", "tensor", "temperature", "power"];
let past = { key: "", follow: null, marks: null };
const detail = question(0);

export function enter([name, index]) {
  needs = name ? ["work"] : [];
  if (!name) return null;
  const key = `${name}/${index}`;
  if (past.key !== key) past = { key, follow: day(`${name}:${index}`, METRICS), marks: happened(`${name}:${index}`) };
  return async () => {
    if (!rows("servers").some((each) => each.name === name)) return;
    void past.marks();
    void past.follow();
    await charts.load(`recent?${new URLSearchParams({ server: name, gpu: index, metrics: "busy,granted,temperature,power" })}`, key);
    await detail.load(`server/${encodeURIComponent(name)}`, name);
  };
}

function all() {
  const servers = rows("servers");
  return rows("gpus").map((gpu) => ({ ...gpu, name: servers[gpu.server].name, stale: servers[gpu.server].stale, at: gpu.server }));
}

function everything() {
  const list = all();
  return html`<div class="filters">${filterField("Filter by server, model, state")}<span class="faint">${plural(list.length, "GPU", "GPUs")}</span></div>
    ${panel("GPUs", dataTable("All GPUs", list, gpuColumns(), { sort: "gpu", text: (g) => `${g.name} ${g.model} ${g.state} ${g.fault} ${g.kind}`, dead: (g) => g.stale }), { flush: true })}`;
}

/** Who has it now and since when, as bars of a timeline. */
function timeline(leases) {
  if (!leases.length) return none("Nobody has a part of it now.");
  const now = poolNow();
  const first = Math.min(...leases.map((each) => each.granted), now - 600000);
  const span = now - first;
  return html`<ul class="list">${leases.map(
    (lease) => html`<li><a class="mono" href="/leases/${lease.id}">${lease.id}</a>
      <div>${bar([[(100 * (lease.granted - first)) / span, "none"], [(100 * (now - lease.granted)) / span, "a"]])}</div>
      <span class="end">${lease.user}, ${size(lease.here)}, ${since(lease.granted)}</span></li>`,
  )}</ul>`;
}

function one(name, index) {
  const gpu = all().find((each) => each.name === name && String(each.index) === index);
  if (!gpu) return none(`There is no GPU ${index} on "${name}".`);
  const servers = rows("servers");
  const server = servers[gpu.at];
  const leases = leasesOn((each, at) => each.name === server.name && at === gpu.index, servers);
  const data = charts.of(`${name}/${index}`) || NO_SERIES;
  const of = (metric) => data.series[metric] || [];
  const own = detail.of(name);
  const static_ = own && own.server.gpus.find((each) => each.index === gpu.index);
  const measured = static_ && own.telemetry && own.telemetry.gpus.find((each) => each.gpu === static_.id);
  const free = static_ && !gpu.stale && !gpu.fault ? static_.memory_free / (1024 * 1024) : null;
  const xids = measured ? Object.entries(measured.xids || {}) : [];
  const some = (list) => list.some(known);
  const { day: told, hour } = past.marks;
  const order = !mayDrain() ? nothing : gpu.drain ? html`<button type="button" @click=${() => undrain(name, gpu.index)}>Undrain…</button>` : html`<button type="button" @click=${() => drain(name, gpu.index)}>Drain…</button>`;
  return html`
    <div class="filters">${state(gpu.state)} <b>${gpu.model}</b> ${gpu.kind ? html`<span class="tag">${gpu.kind}</span>` : nothing} <span class="muted">on ${serverLink(name)}</span> <span class="right no-print"><a class="button" href=${`/history?${new URLSearchParams({ of: `${name}/${gpu.index}`, span: "24h", m: "busy" })}`}>Charts of 24 h</a> ${order}</span></div>
    ${gpu.drain ? html`<p class="notice">Drained: ${gpu.drain}. Nothing new is granted on it.</p>` : nothing}
    ${gpu.fault ? html`<p class="notice fail">${gpu.fault}. It is not granted.</p>` : nothing}
    ${gpu.stale ? html`<p class="notice fail">Its server says nothing since ${full(gpu.stale)}. What is below is the last that it said.</p>` : nothing}
    ${facts([
      ["Busy", gpu.stale ? "–" : known(gpu.busy) ? gpu.busy : "–", "%", bar([[gpu.stale ? 0 : gpu.busy, "a"]])],
      known(gpu.sm) && ["SM activity", gpu.sm, "%", bar([[gpu.sm, "a"]])],
      ["Granted", size(gpu.granted), `of ${size(gpu.capacity)}`, bar([[(100 * gpu.granted) / gpu.capacity, "a"], [(100 * gpu.foreign) / gpu.capacity, "c"]])],
      ["Used", size(gpu.stale ? null : gpu.used), `of ${size(gpu.total)}`, bar([[(100 * gpu.used) / gpu.total, "a"]])],
      known(gpu.temperature) && ["Temperature", gpu.temperature, "°C", measured && known(measured.shutdown_c) ? `turns itself off at ${measured.shutdown_c} °C` : ""],
      known(gpu.power) && ["Power", gpu.power, "W", measured && known(measured.power_limit_w) ? `of ${Math.round(measured.power_limit_w)} W` : ""],
    ])}
    <div class="grid two">
      ${panel("Busy and granted", chart({ t: data.t, unit: "%", max: 100, height: 210, sync: "gpu", series: [{ label: "Granted", values: of("granted"), tone: 1 }, { label: "Busy", values: of("busy"), tone: 0, fill: true }], ...marked(hour) }), { width: "w6", aside: "the last hour" })}
      ${some(of("temperature")) || some(of("power")) ? panel("Temperature and power", chart({ t: data.t, height: 210, sync: "gpu", series: [{ label: "Temperature, °C", values: of("temperature"), tone: 2 }, { label: "Power, W", values: of("power"), tone: 3 }], ...marked(hour) }), { width: "w6", aside: "the last hour" }) : nothing}
      ${panel("Held by", timeline(leases), { width: "w6", flush: true, aside: plural(leases.length, "lease", "leases") })}
      ${panel("Memory", html`${bar([...leases.map((lease, i) => [(100 * lease.here) / gpu.capacity, i % 2 ? "b" : "a"]), [(100 * gpu.foreign) / gpu.capacity, "c"]])}
        ${pairs([...leases.map((lease) => [`${lease.id}, ${lease.user}`, size(lease.here)]), gpu.foreign ? ["Outside gpupool", size(gpu.foreign)] : null, ["Free", size(free)]].filter(Boolean))}`, { width: "w6", aside: "granted, by lease" })}
      ${panel("Device", static_ ? pairs([
        ["UUID", html`<span class="mono">${static_.id}</span>`], ["PCI bus", html`<span class="mono">${static_.pci_bus_id || "–"}</span>`], ["Compute capability", static_.compute_capability], ["Memory", bytes(static_.memory_total)],
        measured && known(measured.sm_clock_hz) && ["SM clock", `${number(measured.sm_clock_hz / 1e6)} MHz`],
        measured && known(measured.memory_temperature_c) && ["Memory's temperature", `${measured.memory_temperature_c} °C`],
      ].filter(Boolean)) : none("Asking…"), { width: "w6" })}
      ${panel("Errors", measured ? pairs([
        ["Uncorrected memory errors", number(measured.ecc_errors)], ["Corrected ones", number(measured.ecc_corrected)],
        ["Xid events", xids.length ? xids.map(([xid, count]) => html`<span class="tag warn">Xid ${xid}: ${count}</span> `) : "none seen"],
        known(measured.pcie_replays) && ["PCIe replays", number(measured.pcie_replays)],
        known(measured.nvlink_errors) && ["NVLink errors", number(measured.nvlink_errors)],
        ...Object.entries(measured.remapped_rows || {}).map(([kind, count]) => [`Remapped rows, ${kind}`, number(count)]),
        ...Object.entries(measured.throttled_s || {}).map(([reason, s]) => [`Throttled, ${reason.replaceAll("_", " ")}`, `${number(s, 1)} s`]),
      ].filter(Boolean)) : none("Asking…"), { width: "w6" })}
    </div>
    ${missing(past.follow.data)} ${missing(told)}
    <div class="grid two">${memoryByLease(told)} ${markTable(told)} ${past.follow.charts(marked(told))}</div>
    ${panel("Leases", dataTable("Leases on this GPU", leases, leaseColumns("Memory here"), { sort: "since", empty: none("Nobody has a lease here.") }), { flush: true })}`;
}

export const view = ([name, index]) => (name ? one(name, index) : everything());
