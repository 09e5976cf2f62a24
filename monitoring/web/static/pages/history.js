// Any series against any, with one cursor; the choice is in the address.

import { chart } from "../chart.js";
import { full, timeZone } from "../format.js";
import { html, none, nothing, panel, params, setParams } from "../parts.js";
import { ask, changed, rows } from "../store.js";

const METRICS = [["busy", "Busy", "%"], ["granted", "Granted", "%"], ["temperature", "Temperature", "°C"], ["power", "Power", "W"]];
const SERIES_MAX = 8;
const shown = { next: 0, key: "", parts: [] };

function chosen() {
  const asked = params();
  const metrics = (asked.get("m") || "busy,granted").split(",").filter((each) => METRICS.some(([name]) => name === each));
  const of = (asked.get("of") || "pool").split(",").filter(Boolean).slice(0, SERIES_MAX);
  return { metrics, of };
}

async function load() {
  const { metrics, of } = chosen();
  const key = `${metrics} ${of}`;
  if (shown.key === key && performance.now() < shown.next) return;
  shown.key = key;
  shown.next = performance.now() + 5000;
  const servers = rows("servers");
  const parts = await Promise.all(of.map(async (name) => {
    const [server, gpu] = name.split("/");
    const found = servers.find((each) => each.name === server);
    const query = new URLSearchParams({ metrics: metrics.join(",") });
    if (name !== "pool" && !found) return { name, data: { t: [], series: {} } };
    if (found) query.set("server", found.id);
    if (gpu !== undefined) query.set("gpu", gpu);
    return { name, data: (await ask(`recent?${query}`)).data };
  }));
  if (shown.key === key) shown.parts = parts;
  changed();
}

export function enter() {
  shown.key = "";
  return load;
}

function csv() {
  const { metrics } = chosen();
  const t = (shown.parts[0] || { data: { t: [] } }).data.t;
  const heads = ["time [UTC]"];
  const columns = [];
  for (const part of shown.parts) for (const metric of metrics) {
    const [, title, unit] = METRICS.find(([name]) => name === metric);
    heads.push(`${part.name} ${title} [${unit}]`);
    columns.push(part.data.series[metric] || []);
  }
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const lines = t.map((ms, i) => [new Date(ms).toISOString(), ...columns.map((each) => each[i] ?? "")].join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([[heads.map(quoted).join(","), ...lines].join("\r\n"), "\r\n"], { type: "text/csv" }));
  link.download = "gpupool-charts.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function view() {
  const { metrics, of } = chosen();
  if (shown.key && shown.key !== `${metrics} ${of}`) queueMicrotask(load);
  const servers = rows("servers");
  const gpus = rows("gpus").slice(0, 600);
  const toggle = (list, name, key, other) => {
    const next = list.includes(name) ? list.filter((each) => each !== name) : [...list, name];
    setParams({ [key]: (next.length ? next : [other]).join(",") }, { push: true });
  };
  const add = (event) => {
    if (event.target.value) toggle(of.filter((each) => each !== event.target.value), event.target.value, "of", "pool");
    event.target.value = "";
  };
  return html`<div class="filters">
      <div class="choice" role="group" aria-label="What">${METRICS.map(([name, title]) => html`<button type="button" aria-pressed=${String(metrics.includes(name))} @click=${() => toggle(metrics, name, "m", "busy")}>${title}</button>`)}</div>
      <label>Add <select @change=${add}><option value="">a server or GPU…</option><option value="pool">the whole pool</option>
        ${servers.map((each) => html`<option value=${each.name}>${each.name}</option>`)}
        ${gpus.map((each) => html`<option value="${servers[each.server].name}/${each.index}">${servers[each.server].name} / GPU ${each.index}</option>`)}</select></label>
      ${of.map((name) => html`<button type="button" aria-label="Take ${name} away" @click=${() => toggle(of, name, "of", "pool")}>${name.replace("/", " / GPU ")} <span aria-hidden="true">×</span></button>`)}
      <span class="right"><button type="button" @click=${csv}>CSV</button></span>
    </div>
    ${METRICS.filter(([name]) => metrics.includes(name)).map(([metric, title, unit]) => {
      const t = shown.parts.length ? shown.parts[0].data.t : [];
      const series = shown.parts.map((part, i) => ({ label: part.name.replace("/", " / GPU "), values: part.data.series[metric] || [], tone: i, fill: shown.parts.length === 1 }));
      return panel(title, series.length ? chart({ t, unit, max: unit === "%" ? 100 : 0, height: 230, sync: "history", series }) : none("Asking…"), { aside: of.length === 1 && of[0] === "pool" ? "mean of all GPUs" : "" });
    })}
    <p class="faint">What this page's program has seen, in steps of 5 s, for an hour at most${shown.parts.length && shown.parts[0].data.t.length ? html`; from ${full(shown.parts[0].data.t[0])}` : nothing}. Drag over a chart to zoom, double-click to see all. Times are ${timeZone() || "of your zone"}.</p>`;
}

