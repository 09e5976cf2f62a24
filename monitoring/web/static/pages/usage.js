// Reports of usage: the sums of "gpupool usage" with its options in the address; it prints well.

import { known, number, percent } from "../format.js";
import { bar, choice, clientLink, dataTable, facts, html, none, nothing, panel, params, setParams, userLink, leaseLink, serverLink } from "../parts.js";
import { ask, changed, poolNow } from "../store.js";
import { missing } from "./leases.js";

/** @type {[string, string, number][]} */
const SPANS = [["24h", "24 h", 1], ["7d", "7 days", 7], ["30d", "30 days", 30], ["90d", "90 days", 90], ["365d", "1 year", 365]];
const KEYS = [["user", "User"], ["class", "Class"], ["department", "Department"], ["client", "Client"], ["lease", "Lease"], ["server", "Server"], ["model", "Model"], ["program", "Program"], ["day", "Day"]];
const report = { query: "", data: null, capacity: null, error: "", busy: false };
const DAY_MS = 86400000;
const PARTS = [["granted", "Granted"], ["free", "Free"], ["drained", "Drained"], ["down", "Down"], ["fault", "At fault"], ["outside", "Outside gpupool"]];

function query() {
  const asked = params();
  const span = SPANS.find(([name]) => name === asked.get("span")) || SPANS[2];
  const by = KEYS.find(([name]) => name === asked.get("by")) || KEYS[0];
  const minute = Math.floor(poolNow() / 60000) * 60000;
  const cost = asked.get("cost") === "1";
  // A day counts up to its end, by UTC as sums by day do.
  const day = Date.parse(`${asked.get("until") || ""}T00:00Z`);
  const until = day && day + DAY_MS <= minute ? asked.get("until") : "";
  const end = until ? day + DAY_MS : minute;
  const range = `since=${end - span[2] * DAY_MS}${until ? `&until=${end}` : ""}`;
  return { span: span[0], by: by[0], title: by[1], cost, until, text: `by=${by[0]}&${range}${cost ? "&cost=1" : ""}`, key: `${by[0]} ${span[0]} ${cost} ${until}` };
}

async function load() {
  const { text, key } = query();
  if (report.query === key && (report.data || report.busy)) return;
  Object.assign(report, { query: key, data: null, capacity: null, error: "", busy: true });
  try {
    const { data } = await ask(`usage?${text}`);
    if (report.query === key) report.data = data;
    changed();
    const capacity = (await ask(`capacity?${text}`)).data;
    if (report.query === key) report.capacity = capacity;
  } catch (error) {
    if (report.query === key) report.error = error.what || "No server tells.";
  }
  report.busy = false;
  changed();
}

export function enter() {
  report.query = "";
  return () => void load();
}

const LINKS = { user: userLink, client: clientLink, lease: leaseLink, server: serverLink };

const UNKNOWN = html`<span class="faint">unknown</span>`;
const COVERAGE_LOW = 0.9;
const share = (value) => (known(value) ? percent(100 * value) : UNKNOWN);

/** How much of the hours samples have seen; too little is marked, as on the command line. */
const seen = (r) => (known(r.coverage) && r.coverage < COVERAGE_LOW ? html`<span class="tag warn" title="too little to judge by">${percent(100 * r.coverage)}</span>` : share(r.coverage));

function table(data, by, title) {
  const most = Math.max(1e-9, ...data.rows.map((row) => row.gpu_hours));
  const all = data.total.gpu_hours || 1;
  const priced = known(data.total.cost);
  const money = data.currency ? `, ${data.currency}` : "";
  const amount = (value) => (known(value) ? number(value, 2) : UNKNOWN);
  return dataTable(`Usage by ${title}`, data.rows, [
    { key: "key", title, cell: (r) => (r.key ? (LINKS[by] ? LINKS[by](r.key) : r.key) : html`<span class="faint">none</span>`), sort: (r) => r.key, total: () => "All" },
    { key: "bar", title: html`<span class="away">Share as a bar</span>`, cell: (r) => bar([[(100 * r.gpu_hours) / most, "a"]]), narrow: true },
    { key: "hours", title: "GPU-hours", num: true, cell: (r) => number(r.gpu_hours, 2), sort: (r) => r.gpu_hours, total: (t) => number(t.gpu_hours, 2) },
    { key: "share", title: "Share", num: true, cell: (r) => percent((100 * r.gpu_hours) / all), sort: (r) => r.gpu_hours, total: () => "" },
    { key: "gib", title: "GiB-hours", num: true, cell: (r) => number(r.gib_hours, 1), sort: (r) => r.gib_hours, total: (t) => number(t.gib_hours, 1), narrow: true },
    { key: "busy", title: "Busy hours", num: true, cell: (r) => (known(r.busy_gpu_hours) ? number(r.busy_gpu_hours, 2) : UNKNOWN), sort: (r) => r.busy_gpu_hours, total: (t) => (known(t.busy_gpu_hours) ? number(t.busy_gpu_hours, 2) : UNKNOWN), narrow: true },
    { key: "idle", title: "Idle", num: true, cell: (r) => share(r.idle_share), sort: (r) => r.idle_share, total: (t) => share(t.idle_share), narrow: true },
    { key: "wasted", title: "Wasted hours", num: true, cell: (r) => (known(r.wasted_gpu_hours) ? number(r.wasted_gpu_hours, 2) : UNKNOWN), sort: (r) => r.wasted_gpu_hours, total: (t) => (known(t.wasted_gpu_hours) ? number(t.wasted_gpu_hours, 2) : UNKNOWN) },
    priced && { key: "cost", title: `Cost${money}`, num: true, cell: (r) => amount(r.cost), sort: (r) => r.cost, total: (t) => amount(t.cost) },
    priced && { key: "lost", title: `Wasted${money}`, num: true, cell: (r) => amount(r.wasted_cost), sort: (r) => r.wasted_cost, total: (t) => amount(t.wasted_cost) },
    priced && data.total.unpriced_gpu_hours > 0 && { key: "unpriced", title: "Hours without a price", num: true, cell: (r) => amount(r.unpriced_gpu_hours), sort: (r) => r.unpriced_gpu_hours, total: (t) => amount(t.unpriced_gpu_hours), narrow: true },
    { key: "seen", title: "Seen", num: true, cell: seen, sort: (r) => r.coverage, total: seen, narrow: true },
    { key: "leases", title: "Leases", num: true, cell: (r) => number(r.leases), sort: (r) => r.leases, total: (t) => number(t.leases) },
    { key: "wait", title: "Mean wait", num: true, cell: (r) => `${number(r.leases ? r.wait_s / r.leases : 0, 1)} s`, sort: (r) => (r.leases ? r.wait_s / r.leases : 0), narrow: true },
    { key: "longest", title: "Longest", num: true, cell: (r) => `${number(r.wait_max_s, 1)} s`, sort: (r) => r.wait_max_s, narrow: true },
  ], { sort: by === "day" ? "key" : "-hours", total: data.total, empty: none("No lease in this time.") });
}

const part = (r, name) => r[`${name}_gpu_hours`];
const ofAll = (r, name) => (r.gpu_hours ? (100 * part(r, name)) / r.gpu_hours : null);

/** What became of all GPUs that there were; the parts of a line are all of it. */
function capacity(data) {
  const columns = [
    { key: "key", title: data.by === "day" ? "Day" : "Model", cell: (r) => r.key, sort: (r) => r.key, total: () => "All" },
    { key: "bar", title: html`<span class="away">Parts as a bar</span>`, cell: (r) => bar([[ofAll(r, "granted"), "a"], [ofAll(r, "free"), "none"], [ofAll(r, "drained") + ofAll(r, "down") + ofAll(r, "fault"), "warn"], [ofAll(r, "outside"), "c"]]), narrow: true },
    { key: "hours", title: "GPU-hours", num: true, cell: (r) => number(r.gpu_hours, 1), sort: (r) => r.gpu_hours, total: (t) => number(t.gpu_hours, 1) },
    ...PARTS.map(([name, title]) => ({ key: name, title, num: true, cell: (r) => percent(ofAll(r, name)), sort: (r) => ofAll(r, name), total: (t) => percent(ofAll(t, name)), narrow: name !== "granted" && name !== "free" })),
    known(data.total.free_cost) && { key: "cost", title: `Free${data.currency ? `, ${data.currency}` : ""}`, num: true, cell: (r) => number(r.free_cost, 2), sort: (r) => r.free_cost, total: (t) => number(t.free_cost, 2) },
  ];
  const aside = known(data.seen) ? `${percent(100 * data.seen)} of this time is known` : "";
  return panel("What became of all GPUs", dataTable("Capacity", data.rows, columns, { sort: "key", prefix: "c", total: data.total, empty: none("Nothing is known of this time.") }), { flush: true, aside });
}

export function view() {
  const { span, by, title, cost, until, text } = query();
  if (report.query !== query().key) queueMicrotask(load);
  const { data, error } = report;
  return html`<div class="filters">
      ${choice("Time", SPANS.map(([name, words]) => [name, words]), span, (value) => setParams({ span: value === "30d" ? "" : value, page: "" }, { push: true }))}
      ${choice("Sum by", KEYS, by, (value) => setParams({ by: value === "user" ? "" : value, sort: "", page: "" }, { push: true }))}
      ${choice("Figures", [["", "Hours"], ["1", "With cost"]], cost ? "1" : "", (value) => setParams({ cost: value, page: "" }, { push: true }))}
      <label>Up to <input type="date" .value=${until} max=${new Date(poolNow()).toISOString().slice(0, 10)} @change=${(event) => setParams({ until: event.target.value, page: "" }, { push: true })}></label>
      <span class="right"><a class="button" href="/api/v1/usage?format=csv&${text}" download>CSV</a><button type="button" @click=${() => print()}>Print</button></span>
    </div>
    ${error ? html`<p class="notice fail">${error}</p>` : nothing} ${missing(data)}
    ${data
      ? html`${facts([
          ["GPU-hours", number(data.total.gpu_hours, 1), "", "share of GPUs times time: what nobody else could have"],
          ["GiB-hours", number(data.total.gib_hours, 0)],
          known(data.total.wasted_gpu_hours) && ["Wasted", number(data.total.wasted_gpu_hours, 1), "GPU-hours", `${percent(100 * data.total.idle_share)} of what samples have seen, ${percent(100 * data.total.coverage)} of all`],
          known(data.total.cost) && ["Cost", number(data.total.cost, 2), data.currency, data.total.unpriced_gpu_hours > 0 ? `${number(data.total.unpriced_gpu_hours, 2)} GPU-hours have no price` : "by the prices of the policy then in force"],
          ["Leases", number(data.total.leases)],
          ["Mean wait", number(data.total.leases ? data.total.wait_s / data.total.leases : 0, 1), "s", `longest ${number(data.total.wait_max_s, 1)} s`],
        ])}
        ${panel(`By ${title.toLowerCase()}`, table(data, by, title), { flush: true })}
        ${report.capacity ? capacity(report.capacity) : nothing}
        ${data.others.length ? panel("Other users, by class", dataTable("Other users", data.others, [{ key: "class", title: "Class", cell: (r) => r.class || "none" }, { key: "h", title: "GPU-hours", num: true, cell: (r) => number(r.gpu_hours, 2) }, { key: "g", title: "GiB-hours", num: true, cell: (r) => number(r.gib_hours, 1) }]), { flush: true }) : nothing}`
      : error ? nothing : panel("Usage", none("Asking all servers…"))}`;
}
