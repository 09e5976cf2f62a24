// Series that servers have kept, by the words of "gpupool history", as charts of a page.

import { chart } from "./chart.js";
import { none, panel } from "./parts.js";
import { ask, changed, poolNow } from "./store.js";

const EVERY_MS = 30000;
const DAY_H = 24;
const LINES_MAX = 16;
const WORDS = { sm: "SM activity", rtt: "Round trip", waits: "Waits for answers", "call-time": "Time of a waited call", "bytes-in": "Traffic to the GPUs", "bytes-out": "Traffic from the GPUs", "host-memory": "Memory of the host", cpu: "Processors", lag: "Event loop late by", "link-rtt": "Round trip of links" };

export const title = (metric) => WORDS[metric] || metric[0].toUpperCase() + metric.slice(1).replaceAll("-", " ");
export const spoken = (name) => (name.includes(":") ? name : name.replace("/", " / GPU "));
const word = (name) => (name.includes(":") ? name : name.replace("/", ":"));

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

/** Return the charts of some hours, the last ones or those around a moment: each metric of all subjects, and what did not answer. */
export async function kept(of, metrics, hours, at = 0) {
  const end = at ? Math.min(poolNow(), at + hours * 1800000) : poolNow();
  const until = Math.floor(end / 10000) * 10000;
  const since = until - hours * 3600000;
  const result = { metrics: [], silent: {}, problems: [], panels: [] };
  for (const metric of metrics) {
    const lines = [];
    let unit = "";
    for (const name of of) {
      try {
        const { data } = await ask(`history?${new URLSearchParams({ of: word(name), metric, since: String(since), until: String(until) })}`);
        lines.push(...data.lines);
        unit = data.unit;
        result.metrics = [...new Set([...result.metrics, ...data.metrics])];
        Object.assign(result.silent, data.silent);
        result.problems.push(...data.problems);
      } catch (error) {
        result.problems.push([`${spoken(name)}: ${error.what}`, error.hint && `there is ${error.hint}`].filter(Boolean).join("; "));
      }
    }
    result.panels.push({ metric, unit, max: 0, ...joined(lines.slice(0, LINES_MAX)) });
  }
  result.problems = [...new Set(result.problems)];
  return result;
}

/** The last 24 hours of one subject: a function that keeps them up to date, and draws them. */
export function day(of, metrics) {
  let next = 0;
  const follow = async () => {
    if (performance.now() < next) return;
    next = performance.now() + EVERY_MS;
    follow.data = await kept([of], metrics, DAY_H);
    changed();
  };
  follow.data = null;
  const shown = () => follow.data.panels.filter((each) => each.t.length > 1);
  const nothing = (text) => panel("The last 24 hours", none(text), { width: "w12" });
  follow.charts = (more = {}) => !follow.data ? nothing("Asking the servers…")
    : !shown().length ? nothing("Nothing is known of this time.") : shown().map((each) => panel(title(each.metric), chart({ ...each, height: 190, sync: "kept", ...more }), { width: "w6", aside: `${each.unit}${each.unit ? ", " : ""}24 h` }));
  return follow;
}
