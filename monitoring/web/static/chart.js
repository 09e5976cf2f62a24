// Charts over time by uPlot, with a table of the same values, and small cells for tables.

import { html, nothing, svg } from "./parts.js";
import { clock, full, known, number, timeZone, when } from "./format.js";
import { colour, palette } from "./heat.js";

const TONES = {
  light: ["#4338ca", "#0e7490", "#b45309", "#9d174d", "#15703b", "#6b21a8", "#475569", "#9a3412"],
  dark: ["#a5adff", "#5fd3e0", "#f0b35c", "#f191bf", "#6fd698", "#d0a6f7", "#b4bfd0", "#f5a074"],
};

export const tone = (at) => {
  const tones = TONES[document.documentElement.dataset.theme] || TONES.light;
  return tones[at % tones.length];
};

const GRID = { light: "#ececf0", dark: "#212229" };

/** A moment on an axis that shows so many seconds. */
function moment(ms, span) {
  if (span > 3 * 86400) return when(ms).replace(/, .*/, "");
  return span < 240 ? clock(ms) : clock(ms).slice(0, 5);
}

class Chart extends HTMLElement {
  connectedCallback() {
    if (this.watching) return;
    this.watching = true;
    this.place = document.createElement("div");
    this.append(this.place);
    new ResizeObserver(() => this.plot && this.plot.setSize(this.measure())).observe(this);
    addEventListener("gp-theme", () => this.remake());
    this.remake();
  }

  /** {t: ms[], series: [{label, values, fill, own}], unit, max, height, sync, marks}; own: what values say where they are sums, as in a stack */
  set data(value) {
    const before = this.value;
    this.value = value;
    if (!this.place) return;
    const same = before && before.series.length === value.series.length && before.series.every((each, i) => each.label === value.series[i].label) && before.zone === value.zone;
    if (this.plot && same) {
      if (before.t !== value.t) this.plot.setData(this.columns()), this.showLast();
      else if (before.marks !== value.marks) this.plot.redraw();
    } else this.remake();
  }

  columns() {
    return [this.value.t.map((ms) => ms / 1000), ...this.value.series.map((each) => each.values)];
  }

  measure() {
    return { width: Math.max(120, Math.floor(this.clientWidth)), height: this.value.height || 190 };
  }

  /** Without a cursor the legend has the last values. */
  showLast(plot = this.plot) {
    if (plot.cursor.idx == null) plot.setLegend({ idx: this.value.t.length - 1 }, false);
  }

  remake() {
    if (this.plot) this.plot.destroy();
    this.plot = null;
    if (!this.value || !this.place || this.value.t.length < 2) {
      if (this.place) {
        this.place.className = "none";
        this.place.textContent = "The chart begins when two readings are there.";
      }
      return;
    }
    if (!window.uPlot) {
      addEventListener("load", () => this.remake(), { once: true });
      return;
    }
    this.place.className = "";
    this.place.textContent = "";
    const theme = document.documentElement.dataset.theme === "dark" ? "dark" : "light";
    const font = `12px ${getComputedStyle(this).fontFamily}`;
    const axis = { stroke: palette().name, font, grid: { stroke: GRID[theme], width: 1 }, ticks: { show: false } };
    const unit = this.value.unit || "";
    const words = (value) => (known(value) ? `${number(value, unit === "%" || value >= 100 ? 0 : 1)}${unit ? ` ${unit}` : ""}` : "–");
    const options = {
      ...this.measure(),
      bands: this.value.bands,
      hooks: { ...(this.value.hooks && this.value.hooks(() => this.value)), setCursor: [(plot) => this.showLast(plot)] },
      padding: [10, 28, 0, 0],
      tzDate: (ts) => (timeZone() ? uPlot.tzDate(new Date(ts * 1000), "Etc/UTC") : new Date(ts * 1000)),
      cursor: { y: false, points: { size: 7 }, sync: this.value.sync ? { key: this.value.sync } : undefined, drag: { x: true, y: false } },
      legend: { live: true, markers: { width: 2, fill: (plot, at) => tone(this.value.series[at - 1].tone ?? at - 1) } },
      scales: { y: { range: (_, low, high) => [Math.min(0, low || 0), this.value.max || Math.max(1, (high || 0) * 1.15)] } },
      axes: [{ ...axis, space: 90, grid: { show: false }, values: (_, list) => list.map((ts, i) => moment(ts * 1000, list[list.length - 1] - list[0])) }, { ...axis, size: 52, values: (_, list, at, room, step) => list.map((each) => number(each, String(step).split(".")[1]?.length) + (unit === "%" ? " %" : "")) }],
      series: [
        { label: "Time", value: (_, ts) => (known(ts) ? clock(ts * 1000) : "–") },
        ...this.value.series.map((each, i) => ({
          label: each.label,
          stroke: tone(each.tone ?? i),
          width: 1.6,
          fill: each.fill ? `${tone(each.tone ?? i)}${each.fill === true ? "1f" : each.fill}` : undefined,
          points: { show: false },
          spanGaps: false,
          value: (_, value, at, i) => words(each.own && known(i) ? this.value.series[at - 1].own[i] : value),
        })),
      ],
    };
    this.plot = new uPlot(options, this.columns(), this.place);
    this.showLast();
    this.plot.root.setAttribute("role", "img");
    this.plot.root.setAttribute("aria-label", this.value.series.map((each) => each.label).join(", "));
  }
}

customElements.define("gp-chart", Chart);

const TABLE_ROWS = 60;

/** A chart, and its values as a table for who cannot see it or wants numbers. */
export function chart(all) {
  // A young pool's chart begins when it did.
  const first = Math.max(0, all.t.findIndex((_, i) => all.series.some((each) => known(each.values[i]))));
  const from = (list) => list?.slice(first);
  const data = !first ? all : { ...all, t: from(all.t), series: all.series.map((each) => ({ ...each, values: from(each.values), own: from(each.own) })) };
  const last = data.t.length - 1;
  const step = Math.max(1, Math.ceil(data.t.length / TABLE_ROWS));
  const lines = [];
  for (let i = last; i >= 0; i -= step) lines.push(i);
  return html`<gp-chart .data=${{ ...data, zone: timeZone() }}></gp-chart>
    ${data.t.length > 1
      ? html`<details class="data no-print">
          <summary>Values as a table</summary>
          <div tabindex="0" role="region" aria-label="Values as a table"><table>
            <thead><tr><th scope="col">Time</th>${data.series.map((each) => html`<th scope="col" class="num">${each.label}${data.unit ? `, ${data.unit}` : ""}</th>`)}</tr></thead>
            <tbody>${lines.map((i) => html`<tr><td>${full(data.t[i])}</td>${data.series.map((each) => html`<td class="num">${number((each.own || each.values)[i], 1)}</td>`)}</tr>`)}</tbody>
          </table></div>
        </details>`
      : nothing}`;
}

/** Eight cells at most, one for each GPU of a server, in a table. */
export function cells(list, old) {
  const shown = list.slice(0, 16);
  const parts = shown.map((gpu, i) => {
    const share = known(gpu.busy) && !old ? gpu.busy / 100 : null;
    const fill = gpu.fault ? palette().fail : share === null ? palette().none : colour(share, false).fill;
    return svg`<rect x=${i * 12} y="1" width="10" height="14" rx="2" fill=${fill} stroke=${old ? palette().line : "none"}></rect>`;
  });
  const words = shown.map((gpu) => (gpu.fault ? "fault" : known(gpu.busy) && !old ? `${gpu.busy} %` : "unknown")).join(", ");
  return html`<svg class="cells" width=${Math.max(1, shown.length) * 12} height="16" role="img" aria-label="Busy: ${words}">${parts}</svg>`;
}
