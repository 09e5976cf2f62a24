// What happened to a GPU, on its charts: bands while clocks were held down, lines where Xid errors came.
//
// And the memory that its leases had in use, one above the other. All of it is what its server has kept.

import { chart } from "./chart.js";
import { duration, number, when } from "./format.js";
import { palette } from "./heat.js";
import { dataTable, none, panel } from "./parts.js";
import { ask, changed, poolNow } from "./store.js";

const EVERY_MS = 30000;
const HOUR_MS = 3600000;
const DAY_H = 24;
const OTHERS_TONE = 6;
const USED_TONE = 7;
const LABEL_SPACE = 44; // pixels between the words of two lines
const WORDS = { power: "the power limit", thermal: "heat", hw_thermal: "heat, by the hardware", hw_power_brake: "the power brake", sync_boost: "other GPUs (sync boost)" };

/** A function that keeps what happened to one GPU up to date: ``day`` and ``hour``, null at first. */
export function happened(of) {
  let next = 0;
  const follow = async () => {
    if (performance.now() < next) return;
    next = performance.now() + EVERY_MS;
    const until = Math.floor(poolNow() / 10000) * 10000;
    for (const name of ["hour", "day"]) {
      const hours = name === "day" ? DAY_H : 1;
      try {
        const query = new URLSearchParams({ of, since: String(until - hours * HOUR_MS), until: String(until) });
        follow[name] = (await ask(`gpu-history?${query}`)).data;
      } catch (error) {
        follow[name] = follow[name] || { t: [], used: [], leases: [], throttled: [], xids: [], step: 10, mark_step: 10, silent: {}, problems: [error.what || "No server tells."] };
      }
    }
    changed();
  };
  follow.day = null;
  follow.hour = null;
  return follow;
}

function bands(plot, { mark_step: step, throttled }) {
  const { left, top, width, height } = plot.bbox;
  const { ctx } = plot;
  ctx.save();
  for (const { reason, t, shares } of throttled) {
    ctx.fillStyle = reason === "power" ? palette().warn : palette().fail;
    t.forEach((at, i) => {
      const from = Math.max(left, plot.valToPos(at, "x", true));
      const to = Math.min(left + width, plot.valToPos(at + step, "x", true));
      ctx.globalAlpha = 0.1 + 0.25 * shares[i];
      if (to > from) ctx.fillRect(from, top, to - from, height);
    });
  }
  ctx.restore();
}

function lines(plot, { mark_step: step, xids }) {
  const { left, top, width, height } = plot.bbox;
  const { ctx } = plot;
  const scale = devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = palette().fail;
  ctx.lineWidth = 1.5 * scale;
  ctx.setLineDash([4 * scale, 3 * scale]);
  ctx.font = `${11 * scale}px ${getComputedStyle(plot.root).fontFamily}`;
  ctx.textAlign = "left";
  ctx.textBaseline = "top";
  let free = -Infinity; // from there on there is room for words
  const all = xids.flatMap(({ xid, t }) => t.map((at) => [at, xid])).sort((a, b) => a[0] - b[0]);
  for (const [at, xid] of all) {
    const x = plot.valToPos(at + step / 2, "x", true);
    if (x < left || x > left + width) continue;
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
    if (x < free) continue;
    ctx.fillText(`Xid ${xid}`, Math.min(x + 3 * scale, left + width - LABEL_SPACE * scale), top);
    free = x + LABEL_SPACE * scale;
  }
  ctx.restore();
}

const hooks = (value) => ({
  drawClear: [(plot) => value().marks && bands(plot, value().marks)],
  draw: [(plot) => value().marks && lines(plot, value().marks)],
});

/** What a chart needs to show what happened; ``data`` may be null. */
export const marked = (data) => ({ hooks, marks: data });

/** Times with a gap where the server says nothing, and which values are there. */
function gapped({ t, step }) {
  const times = [];
  const places = [];
  t.forEach((at, i) => {
    if (i && at - t[i - 1] > 1.6 * step) {
      times.push((t[i - 1] + step) * 1000);
      places.push(-1);
    }
    times.push(at * 1000);
    places.push(i);
  });
  return { t: times, values: (list) => places.map((i) => (i < 0 ? null : list[i])) };
}

const stacks = new WeakMap();

/** Series of the memory in use by lease, one above the other; the same object for the same data. */
function stackOf(data) {
  if (!stacks.has(data)) stacks.set(data, stacked(data));
  return stacks.get(data);
}

function stacked(data) {
  const { t, values } = gapped(data);
  let below = data.used.map(() => 0);
  const series = data.leases.map(({ lease, user, values: own }, i) => {
    below = below.map((value, k) => value + own[k]);
    return { label: lease ? [lease, user].filter(Boolean).join(", ") : "other leases", values: values(below), own: values(own), tone: lease ? i : OTHERS_TONE, fill: "59" };
  });
  const between = series.map((_, i) => ({ series: [i + 2, i + 1] })).slice(0, -1);
  series.push({ label: "all that is in use", values: values(data.used), own: undefined, tone: USED_TONE, fill: undefined });
  return { t, series, bands: between };
}

/** The memory in use by lease, as a chart. */
export function memoryByLease(data) {
  if (!data) return panel("Memory by lease", none("Asking the servers…"), { width: "w6" });
  return panel("Memory by lease", chart({ ...stackOf(data), unit: "GiB", height: 190, sync: "kept", ...marked(data) }), { width: "w6", aside: "in use, one above the other, GiB, 24 h" });
}

function rowsOf({ mark_step: step, throttled, xids }) {
  const held = throttled.map(({ reason, t, shares }) => ({ what: `Clocks held down by ${WORDS[reason] || reason}`, t, much: duration(1000 * step * shares.reduce((a, b) => a + b, 0)) }));
  const errors = xids.map(({ xid, t, counts }) => ({ what: `Xid ${xid}`, t, much: `${number(counts.reduce((a, b) => a + b, 0))} ×` }));
  return [...errors, ...held].map((each) => ({ ...each, first: each.t[0] * 1000, last: each.t[each.t.length - 1] * 1000 }));
}

/** The same in words and numbers. */
export function markTable(data) {
  if (!data) return panel("Throttling and errors", none("Asking the servers…"), { width: "w6" });
  const columns = [
    { key: "what", title: "What", cell: (r) => r.what, sort: (r) => r.what },
    { key: "first", title: "First", cell: (r) => when(r.first), sort: (r) => r.first },
    { key: "last", title: "Last", cell: (r) => when(r.last), sort: (r) => r.last },
    { key: "much", title: "How much", num: true, cell: (r) => r.much },
  ];
  return panel("Throttling and errors", dataTable("What happened in the last 24 hours", rowsOf(data), columns, { sort: "-last", prefix: "m", empty: none("Nothing happened.", "No clocks were held down, and no Xid error came.") }), { width: "w6", flush: true, aside: "the last 24 h; shaded, and with lines, in the charts" });
}
