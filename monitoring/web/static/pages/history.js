// Any series against any, with one cursor; the choice is in the address.
//
// "Live" is what this page's program has seen in the last hour. All other spans are what servers
// have kept, by the words of "gpupool history".

import { chart } from "../chart.js";
import { timeZone } from "../format.js";
import { choice, html, none, panel, params, setParams } from "../parts.js";
import { ask, changed, poolNow, rows } from "../store.js";
import { missing } from "./leases.js";

const LIVE = [["busy", "Busy", "%"], ["granted", "Granted", "%"], ["temperature", "Temperature", "°C"], ["power", "Power", "W"]];
const SPANS = [["live", "Live", 0], ["1h", "1 h", 1], ["6h", "6 h", 6], ["24h", "24 h", 24], ["7d", "7 days", 168], ["30d", "30 days", 720], ["2y", "2 years", 17544]];
const SERIES_MAX = 8;
const WORDS = { sm: "SM activity", rtt: "Round trip", "host-memory": "Memory of the host", cpu: "Processors", lag: "Event loop late by", "link-rtt": "Round trip of links" };
const shown = { next: 0, key: "", panels: [], metrics: [], silent: {}, problems: [], error: "" };

const title = (metric) => WORDS[metric] || metric[0].toUpperCase() + metric.slice(1).replaceAll("-", " ");
const spoken = (name) => name.replace("/", " / GPU ");

function chosen() {
  const asked = params();
  const span = SPANS.find(([name]) => name === asked.get("span")) || SPANS[0];
  const of = (asked.get("of") || "pool").split(",").filter(Boolean).slice(0, SERIES_MAX);
  const metrics = (asked.get("m") || "").split(",").filter(Boolean).slice(0, 6);
  return { span, of, metrics, key: `${span[0]} ${of} ${metrics}` };
}

/** Lines with times of their own on one axis; where a line has no point there is a gap. */
function joined(lines) {
  const times = new Set();
  for (const line of lines) {
    line.t.forEach((t, i) => {
      times.add(t);
      if (i + 1 < line.t.length && line.t[i + 1] - t > 1.6 * line.step) times.add(t + line.step);
    });
  }
  const axis = [...times].sort((a, b) => a - b);
  const at = new Map(axis.map((t, i) => [t, i]));
  const series = lines.map((line, i) => {
    const values = new Array(axis.length).fill(lines.length > 1 ? undefined : null);
    line.t.forEach((t, k) => {
      values[at.get(t)] = line.values[k];
      if (k + 1 < line.t.length && line.t[k + 1] - t > 1.6 * line.step) values[at.get(t + line.step)] = null;
    });
    return { label: line.title, values, tone: i, fill: lines.length === 1 };
  });
  return { t: axis.map((t) => t * 1000), series };
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

async function kept(of, metrics, hours) {
  const until = Math.floor(poolNow() / 10000) * 10000;
  const since = until - hours * 3600000;
  const result = { metrics: [], silent: {}, problems: [], panels: [] };
  for (const metric of metrics.length ? metrics : [of.length === 1 && of[0] === "pool" ? "granted" : "busy"]) {
    const lines = [];
    let unit = "";
    for (const name of of) {
      try {
        const { data } = await ask(`history?${new URLSearchParams({ of: name.replace("/", ":"), metric, since, until })}`);
        lines.push(...data.lines);
        unit = data.unit;
        result.metrics = [...new Set([...result.metrics, ...data.metrics])];
        Object.assign(result.silent, data.silent);
        result.problems.push(...data.problems);
      } catch (error) {
        result.problems.push([`${spoken(name)}: ${error.what}`, error.hint && `there is ${error.hint}`].filter(Boolean).join("; "));
      }
    }
    result.panels.push({ metric, unit, max: 0, ...joined(lines.slice(0, 16)) });
  }
  result.problems = [...new Set(result.problems)];
  return result;
}

async function load() {
  const { span, of, metrics, key } = chosen();
  if (shown.key === key && performance.now() < shown.next) return;
  const first = shown.key !== key;
  shown.key = key;
  shown.next = performance.now() + (span[2] ? 30000 : 5000);
  if (first) shown.panels = [];
  const found = span[2] ? await kept(of, metrics, span[2]) : await live(of, metrics);
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
  const { span, of, metrics, key } = chosen();
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
      ${choice("Time", SPANS.map(([name, words]) => [name, words]), span[0], (value) => setParams({ span: value === "live" ? "" : value }, { push: true }))}
      <label>Of <select @change=${add}><option value="">a server or GPU…</option><option value="pool">the whole pool</option>
        ${servers.map((each) => html`<option value=${each.name}>${each.name}</option>`)}
        ${gpus.map((each) => html`<option value="${servers[each.server].name}/${each.index}">${servers[each.server].name} / GPU ${each.index}</option>`)}</select></label>
      ${of.map((name) => html`<button type="button" aria-label="Take ${spoken(name)} away" ?disabled=${of.length === 1 && name === "pool"} @click=${() => toggle(of, name, "of")}>${spoken(name)} <span aria-hidden="true">×</span></button>`)}
      <span class="right no-print"><button type="button" @click=${csv}>CSV</button></span>
    </div>
    <div class="filters"><div class="choice" role="group" aria-label="What">${shown.metrics.map((name) => html`<button type="button" aria-pressed=${String(on.includes(name))} @click=${() => toggle(on, name, "m")}>${title(name)}</button>`)}</div></div>
    ${missing(shown)}
    ${shown.panels.length
      ? shown.panels.map((each) => panel(title(each.metric), each.t.length > 1 ? chart({ ...each, height: 230, sync: "history" }) : none("Nothing is known of this time.", span[2] ? "Servers keep what they measure from their start on." : "The chart begins when two readings are there."), { aside: each.unit === "%" ? "" : each.unit }))
      : panel("Charts", none("Asking the servers…"))}
    <p class="faint">${span[2] ? "What servers have kept, as gpupool history tells it; a gap is a gap." : "What this page's program has seen, in steps of 5 s, for an hour at most."} Drag over a chart to zoom, double-click to see all. Times are ${timeZone() || "of your zone"}.</p>`;
}

