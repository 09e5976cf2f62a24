// The overview: is the pool well, what is used, who waits, what happened.

import { chart } from "../chart.js";
import { known, number, percent, plural, since, size, when, wish } from "../format.js";
import { METRICS } from "../heat.js";
import { bar, choice, dataTable, facts, gpuLink, html, mark, none, nothing, panel, params, setParams, state, userLink } from "../parts.js";
import { pool, poolNow, question, rows, table } from "../store.js";

const MINUTE_MS = 60000;
const day = question(MINUTE_MS);
const week = question(MINUTE_MS);

export function enter() {
  return () => {
    void day.load("day");
    void week.load(`usage?by=user&since=${Math.floor(poolNow()) - 7 * 86400000}`, "week");
  };
}

function figures(servers, gpus) {
  const { used, idle, other, granted, capacity, busy, power } = pool();
  const count = gpus.server.length;
  return facts([
    ["GPUs in use", number(used), `of ${number(count)}`, html`${bar([[(100 * used) / (count || 1), "a"], [(100 * idle) / (count || 1), "b"], [(100 * other) / (count || 1), "c"]])}<span>${idle} idle${other ? `, ${other} not to be had` : ""}</span>`],
    ["Busy, mean", known(busy) ? busy : "–", "%", html`${bar([[busy, "a"]])}<span>time in which kernels ran</span>`],
    ["Memory granted", size(granted), `of ${size(capacity)}`, html`${bar([[(100 * granted) / (capacity || 1), "a"]])}<span>${percent((100 * granted) / (capacity || 1))}</span>`],
    ["Leases", number(pool().leases), "", pool().waiting ? html`<a href="/waiting">${plural(pool().waiting, "request waits", "requests wait")}</a>` : "nobody waits"],
    known(power) ? ["Power", number(power / 1000, 1), "kW", plural(pool().power_count, "GPU measures it", "GPUs measure it")] : ["Servers", number(pool().answer), `of ${servers.length} answer`, pool().leader ? `${pool().leader} leads` : "no leader"],
  ]);
}

// What a map may be coloured by only where it is measured.
const NEEDS = { wire: "wire", temperature: "temperature", memory: "used" };

function heatMap(servers, gpus) {
  const asked = params();
  const metric = METRICS[asked.get("by")] ? asked.get("by") : "busy";
  const kind = METRICS[metric];
  const asTable = asked.get("as") === "table";
  const options = Object.entries(METRICS).filter(([name]) => !NEEDS[name] || gpus[NEEDS[name]].some(known)).map(([name, each]) => [name, each.title]);
  const right = html`${choice("Colour by", options, metric, (value) => setParams({ by: value === "busy" ? "" : value }))}
    ${choice("Show as", [["map", "Map"], ["table", "Table"]], asTable ? "table" : "map", (value) => setParams({ as: value === "map" ? "" : value }))}`;
  const anyDead = servers.some((each) => each.stale);
  const anyDrained = servers.some((each) => each.state === "drain") || gpus.drain.some(Boolean);
  const body = asTable
    ? gpuTable(servers)
    : html`<gp-heat .data=${{ servers, gpus, metric }}></gp-heat>
        <div class="legend">
          <span>${kind.low} <gp-scale .warm=${Boolean(kind.warm)}></gp-scale> ${kind.high}</span>
          ${kind.note ? html`<span>${kind.note}</span>` : nothing}
          ${anyDead ? html`<span><b aria-hidden="true">▨</b> striped: no contact</span>` : nothing}
          ${anyDrained ? html`<span><b aria-hidden="true">▢</b> outlined: drained</span>` : nothing}
        </div>`;
  return panel("GPUs", body, { aside: `${plural(gpus.server.length, "GPU", "GPUs")} on ${plural(servers.length, "server", "servers")}`, right, flush: asTable });
}

function gpuTable(servers) {
  const list = rows("gpus").map((row) => ({ ...row, name: servers[row.server].name, stale: servers[row.server].stale }));
  return dataTable("All GPUs", list, [
    { key: "gpu", title: "GPU", cell: (g) => gpuLink(g.name, g.index), sort: (g) => `${g.name} ${g.index}` },
    { key: "model", title: "Model", cell: (g) => g.model, sort: (g) => g.model, narrow: true },
    { key: "state", title: "State", cell: (g) => state(g.state), sort: (g) => g.state },
    { key: "busy", title: "Busy", num: true, cell: (g) => percent(g.busy), sort: (g) => g.busy },
    { key: "granted", title: "Granted", num: true, cell: (g) => size(g.granted), sort: (g) => g.granted },
    { key: "leases", title: "Leases", num: true, cell: (g) => g.leases, sort: (g) => g.leases, narrow: true },
  ], { sort: "gpu", dead: (g) => g.stale });
}

function waiting() {
  const list = rows("next");
  const more = pool().waiting - list.length;
  const body = list.length
    ? html`<ul class="list">${list.map(
        (row) => html`<li><span class="tag">${wish(row)}</span><div>${userLink(row.user)} <span class="muted">${row.program}</span></div><span class="end">${since(row.since)}</span><span class="sub">${row.reason}</span></li>`,
      )}</ul>`
    : none("Nobody waits.", "Requests that find no free GPU are listed here with the reason.");
  return panel("Waiting now", body, { width: "w4", flush: true, aside: more > 0 ? `the first ${list.length} of ${pool().waiting}` : "", footer: list.length ? html`<a href="/waiting">All that wait</a>` : nothing });
}

function events() {
  const list = rows("events").slice(0, 8);
  const body = list.length
    ? html`<ul class="list">${list.map((row) => html`<li><time class="muted">${when(row.at)}</time><div><b>${row.subject}</b> <span class="muted">${row.text}</span></div><span class="end"><span class="tag">${row.kind}</span></span></li>`)}</ul>`
    : none("Nothing has happened yet.");
  return panel("Latest events", body, { width: "w8", flush: true, footer: html`<a href="/events">All events</a>` });
}

/** Who held GPUs in the week without using them, as far as samples have seen it. */
function wasters() {
  const told = week.data ? week.data.rows : [];
  const list = told.filter((row) => row.wasted_gpu_hours >= 0.01).sort((a, b) => b.wasted_gpu_hours - a.wasted_gpu_hours).slice(0, 5);
  const most = Math.max(0.001, ...list.map((row) => row.wasted_gpu_hours));
  const body = !week.data && !week.error ? none("Asking the servers…") : list.length
    ? html`<ul class="list">${list.map((row) => html`<li><div>${userLink(row.key || "–")}</div><div>${bar([[(100 * row.wasted_gpu_hours) / most, "c"]])}</div><span class="end">${number(row.wasted_gpu_hours, row.wasted_gpu_hours < 1 ? 2 : 1)} h</span><span class="sub">${percent(100 * row.idle_share)} of the time without work</span></li>`)}</ul>`
    : told.some((row) => known(row.wasted_gpu_hours)) ? none("Nobody wasted GPUs.", "As far as samples have seen the week.") : none("Nothing is known of the week.", "No sample has seen a lease.");
  return panel("GPU-hours wasted this week", body, { width: "w4", flush: true, footer: html`<a href="/usage?span=7d&sort=-wasted">Usage reports</a>` });
}

function poolDay() {
  const { data, error } = day;
  if (!data) return panel("The pool in the last 24 hours", none(error || "Asking the servers…"), { width: "w8" });
  const series = [{ label: "Granted", values: data.granted, tone: 1 }];
  if (data.busy.length) series.push({ label: "Busy", values: data.busy, fill: true, tone: 0 });
  return panel("The pool in the last 24 hours", chart({ t: data.t, unit: "%", max: 100, height: 300, sync: "pool", series }), { width: "w8", aside: data.busy.length ? "of all GPUs, by the servers' history" : "memory granted; in a pool this large, how busy GPUs were is in Charts" });
}

export function view() {
  const servers = rows("servers");
  const gpus = table("gpus").cols;
  if (!gpus.server) return nothing;
  return html`
    <div class="health">${mark(pool().level)}<p>${pool().sentence}</p></div>
    ${figures(servers, gpus)} ${heatMap(servers, gpus)}
    <div class="grid even">
      ${poolDay()}
      ${waiting()} ${events()} ${wasters()}
    </div>`;
}
