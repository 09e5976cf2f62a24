// Any series against any, with one cursor; the choice is in the address.
//
// "Live" is what this page's program has seen in the last hour. All other spans are what servers
// have kept, by the words of "gpupool history".

import { chart } from "../chart.js";
import { full, timeZone } from "../format.js";
import { kept, spoken, title } from "../kept.js";
import { choice, html, none, nothing, panel, params, setParams } from "../parts.js";
import { ask, changed, rows } from "../store.js";
import { missing } from "./leases.js";

const LIVE = [["busy", "Busy", "%"], ["granted", "Granted", "%"], ["temperature", "Temperature", "°C"], ["power", "Power", "W"]];
const SPANS = [["live", "Live", 0], ["1h", "1 h", 1], ["6h", "6 h", 6], ["24h", "24 h", 24], ["7d", "7 days", 168], ["30d", "30 days", 720], ["2y", "2 years", 17544]];
const SERIES_MAX = 8;
const shown = { next: 0, key: "", panels: [], metrics: [], silent: {}, problems: [], error: "" };

function chosen() {
  const asked = params();
  const at = Number(asked.get("at")) || 0;
  const wanted = SPANS.find(([name]) => name === asked.get("span")) || SPANS[0];
  const span = at && !wanted[2] ? SPANS[2] : wanted;
  const of = (asked.get("of") || "pool").split(",").filter(Boolean).slice(0, SERIES_MAX);
  const metrics = (asked.get("m") || "").split(",").filter(Boolean).slice(0, 6);
  return { span, of, metrics, at, key: `${span[0]} ${of} ${metrics} ${at}` };
}

async function live(of, metrics) {
  const wanted = metrics.filter((each) => LIVE.some(([name]) => name === each));
  const names = wanted.length ? wanted : ["busy", "granted"];
  const servers = rows("servers");
  const parts = await Promise.all(of.map(async (name) => {
    const [server, gpu] = name.split("/");
    const found = servers.find((each) => each.name === server);
    if (name !== "pool" && !found) return null;
    const query = new URLSearchParams({ metrics: names.join(",") });
    if (found) query.set("server", found.name);
    if (gpu !== undefined) query.set("gpu", gpu);
    return { name, data: (await ask(`recent?${query}`)).data };
  }));
  const known = parts.filter(Boolean);
  return {
    metrics: LIVE.map(([name]) => name),
    silent: {},
    problems: known.length < of.length ? ["only the pool, servers and GPUs have live charts"] : [],
    panels: names.map((metric) => ({
      metric, unit: LIVE.find(([name]) => name === metric)[2], max: metric === "busy" || metric === "granted" ? 100 : 0,
      t: known.length ? known[0].data.t : [],
      series: known.map((part, i) => ({ label: spoken(part.name), values: part.data.series[metric] || [], tone: i, fill: known.length === 1 })),
    })),
  };
}

async function load() {
  const { span, of, metrics, at, key } = chosen();
  if (shown.key === key && performance.now() < shown.next) return;
  const first = shown.key !== key;
  shown.key = key;
  shown.next = performance.now() + (span[2] ? 30000 : 5000);
  if (first) shown.panels = [];
  const found = span[2] ? await kept(of, metrics.length ? metrics : [of.length === 1 && of[0] === "pool" ? "granted" : "busy"], span[2], at) : await live(of, metrics);
  if (shown.key === key) Object.assign(shown, found);
  changed();
}

export function enter() {
  shown.key = "";
  return load;
}

function csv() {
  const lines = [["metric", "series", "time [UTC]", "value", "unit"]];
  for (const each of shown.panels) for (const series of each.series) each.t.forEach((ms, i) => {
    if (series.values[i] !== null && series.values[i] !== undefined) lines.push([each.metric, series.label, new Date(ms).toISOString(), series.values[i], each.unit]);
  });
  const quoted = (text) => (/[",\r\n]/.test(String(text)) ? `"${String(text).replaceAll('"', '""')}"` : text);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.map((line) => line.map(quoted).join(",")).join("\r\n"), "\r\n"], { type: "text/csv" }));
  link.download = "gpupool-charts.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function view() {
  const { span, of, metrics, at, key } = chosen();
  if (shown.key && shown.key !== key) queueMicrotask(load);
  const servers = rows("servers");
  const gpus = rows("gpus").slice(0, 600);
  const on = metrics.length ? metrics : shown.panels.map((each) => each.metric);
  const toggle = (list, name, parameter) => {
    const next = list.includes(name) ? list.filter((each) => each !== name) : [...list, name];
    setParams({ [parameter]: next.join(",") }, { push: true });
  };
  const add = (event) => {
    const name = event.target.value;
    event.target.value = "";
    if (name && !of.includes(name)) toggle(params().get("of") ? of : [], name, "of");
  };
  return html`<div class="filters">
      ${choice("Time", SPANS.map(([name, words]) => [name, words]), span[0], (value) => setParams({ span: value === "live" ? "" : value, ...(value === "live" ? { at: "" } : {}) }, { push: true }))}
      <label>Of <select @change=${add}><option value="">a server or GPU…</option><option value="pool">the whole pool</option>
        ${servers.map((each) => html`<option value=${each.name}>${each.name}</option>`)}
        ${gpus.map((each) => html`<option value="${servers[each.server].name}/${each.index}">${servers[each.server].name} / GPU ${each.index}</option>`)}</select></label>
      ${of.map((name) => html`<button type="button" aria-label="Take ${spoken(name)} away" ?disabled=${of.length === 1 && name === "pool"} @click=${() => toggle(of, name, "of")}>${spoken(name)} <span aria-hidden="true">×</span></button>`)}
      <span class="right no-print"><button type="button" @click=${csv}>CSV</button></span>
    </div>
    <div class="filters"><div class="choice" role="group" aria-label="What">${shown.metrics.map((name) => html`<button type="button" aria-pressed=${String(on.includes(name))} @click=${() => toggle(on, name, "m")}>${title(name)}</button>`)}</div></div>
    ${at ? html`<p class="notice quiet">Around ${full(at)}. <button class="plain" type="button" @click=${() => setParams({ at: "" }, { push: true })}>Up to now</button></p>` : nothing}
    ${missing(shown)}
    ${shown.panels.length
      ? shown.panels.map((each) => panel(title(each.metric), each.t.length > 1 ? chart({ ...each, height: 230, sync: "history" }) : none("Nothing is known of this time.", span[2] ? "Servers keep what they measure from their start on." : "The chart begins when two readings are there."), { aside: each.unit === "%" ? "" : each.unit }))
      : panel("Charts", none("Asking the servers…"))}
    <p class="faint">${span[2] ? "What servers have kept, as gpupool history tells it; a gap is a gap." : "What this page's program has seen, in steps of 5 s, for an hour at most."} Drag over a chart to zoom, double-click to see all. Times are ${timeZone() || "of your zone"}.</p>`;
}

