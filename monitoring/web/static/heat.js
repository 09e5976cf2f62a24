// A map with one cell for each GPU on a canvas: a thousand servers fit, and three look good.

import { known, percent, size, plural } from "./format.js";

const LIGHT = {
  cool: ["#eceefb", "#c3c9f7", "#8f97ee", "#5d5fdb", "#38329f"],
  warm: ["#fdf1e3", "#f9c98c", "#ee8f3c", "#c4540f", "#7c2d12"],
  none: "#ebebef", line: "#c9c9d1", text: "#17171c", on: "#ffffff", fail: "#b42318", warn: "#92540a", back: "#ffffff", name: "#55555f",
};
const DARK = {
  cool: ["#1f2136", "#31366b", "#4a50ad", "#757ee6", "#b6bcff"],
  warm: ["#2a2018", "#5e3a17", "#a75a17", "#e98a35", "#ffcf9a"],
  none: "#1f2026", line: "#43444f", text: "#ececf0", on: "#0c0d10", fail: "#ff8a7d", warn: "#e9b452", back: "#131418", name: "#a9a9b4",
};
const dark = () => document.documentElement.dataset.theme === "dark";
export const palette = () => (dark() ? DARK : LIGHT);

/** What cells can show: a value from 0 to 1 or null, and its words. */
export const METRICS = {
  busy: { title: "Busy", low: "0 %", high: "100 %", share: (g) => (known(g.busy) ? g.busy / 100 : null), text: (g) => percent(g.busy), note: "share of time in which any kernel ran" },
  granted: { title: "Granted", low: "free", high: "all granted", share: (g) => (g.capacity ? g.granted / g.capacity : null), text: (g) => percent((100 * g.granted) / g.capacity), note: "share of memory that leases have" },
  memory: { title: "Memory used", low: "empty", high: "full", share: (g) => (known(g.used) && g.total ? g.used / g.total : null), text: (g) => size(g.used), note: "as the driver says" },
  temperature: { title: "Temperature", low: "30 °C", high: "90 °C", warm: true, share: (g) => (known(g.temperature) ? (g.temperature - 30) / 60 : null), text: (g) => (known(g.temperature) ? `${g.temperature} °C` : "–"), note: "" },
  wire: { title: "Wait on wire", low: "0", high: "1 s/s", warm: true, share: (g) => (known(g.wire) ? g.wire : null), text: (g) => (known(g.wire) ? `${g.wire.toFixed(2)} s/s` : "–"), note: "answers that programs wait for, times the round trip" },
};

const ramps = new Map();

/** The colours of a scale, 64 steps of each theme. */
function ramp(warm) {
  const key = `${dark()}${warm}`;
  if (!ramps.has(key)) {
    const stops = (warm ? palette().warm : palette().cool).map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    const found = [];
    for (let i = 0; i < 64; i++) {
      const at = (i / 63) * (stops.length - 1);
      const low = Math.min(stops.length - 2, Math.floor(at));
      const mixed = stops[low].map((value, c) => Math.round(value + (stops[low + 1][c] - value) * (at - low)));
      found.push({ fill: `rgb(${mixed.join(" ")})`, light: mixed[0] * 0.3 + mixed[1] * 0.6 + mixed[2] * 0.1 > 140 });
    }
    ramps.set(key, found);
  }
  return ramps.get(key);
}

export function colour(share, warm) {
  return ramp(warm)[Math.max(0, Math.min(63, Math.round(share * 63)))];
}

/** Places of all cells in a width: blocks of servers, with their names when there is room. */
export function layout(servers, gpus, width) {
  const counts = new Array(servers.length).fill(0);
  const first = new Array(servers.length).fill(-1);
  gpus.server.forEach((at, i) => {
    counts[at]++;
    if (first[at] < 0) first[at] = i;
  });
  const widest = Math.min(8, Math.max(1, ...counts));
  const names = servers.length <= 60;
  const total = gpus.server.length;
  const tall = total > 3000 ? 7 : total > 1000 ? 10 : total > 400 ? 16 : total > 120 ? 24 : total > 32 ? 30 : 46;
  const gap = tall >= 24 ? 4 : tall >= 12 ? 2 : 1;
  const between = names ? 22 : Math.max(4, gap * 4);
  // As many blocks side by side as fit with cells that are about as wide as high; then cells grow
  // until the blocks fill the width.
  const wide = tall >= 30 ? 46 : tall;
  const filled = counts.filter(Boolean).length || 1;
  const fit_ = Math.max(1, Math.floor((width + between) / (widest * (wide + gap) - gap + between)));
  const columns = Math.min(filled, fit_);
  const room = (width + between) / columns - between;
  const cellWidth = Math.max(4, Math.min(260, Math.floor((room + gap) / widest - gap)));
  const blockWidth = widest * (cellWidth + gap) - gap;
  const across = Math.max(1, Math.floor((width + between) / (blockWidth + between)));
  const head = names ? 22 : 0;
  const places = [];
  const labels = [];
  let top = 0;
  let rowHeight = 0;
  let column = 0;
  servers.forEach((server, at) => {
    if (!counts[at]) return;
    if (column === across) {
      column = 0;
      top += rowHeight + (names ? 14 : Math.max(3, gap * 2));
      rowHeight = 0;
    }
    const left = column * (blockWidth + between);
    if (names) labels.push({ at, x: left, y: top + 12, width: blockWidth });
    for (let i = 0; i < counts[at]; i++) {
      places.push({ i: first[at] + i, x: left + (i % widest) * (cellWidth + gap), y: top + head + Math.floor(i / widest) * (tall + gap) });
    }
    rowHeight = Math.max(rowHeight, head + Math.ceil(counts[at] / widest) * (tall + gap) - gap);
    column++;
  });
  return { places, labels, cellWidth, tall, height: top + rowHeight };
}

class Heat extends HTMLElement {
  connectedCallback() {
    if (this.canvas) return;
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.append(this.canvas, this.tip);
    this.chosen = -1;
    new ResizeObserver(() => this.draw()).observe(this);
    addEventListener("gp-theme", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.choose(this.find(event)));
    this.canvas.addEventListener("pointerleave", () => this.choose(-1));
    this.canvas.addEventListener("blur", () => this.choose(-1));
    this.canvas.addEventListener("click", (event) => this.open(this.find(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  set data(value) {
    const old = this.value;
    this.value = value;
    if (old && old.servers === value.servers && old.gpus === value.gpus && old.metric === value.metric) return;
    if (this.canvas) this.draw();
    else queueMicrotask(() => this.canvas && this.draw());
  }

  draw() {
    const width = Math.floor(this.clientWidth);
    if (!this.value || !width) return;
    const { servers, gpus, metric } = this.value;
    const key = `${width} ${gpus.server.length} ${servers.length}`;
    if (this.key_ !== key || this.columns !== gpus.server) {
      this.key_ = key;
      this.columns = gpus.server;
      this.map = layout(servers, gpus, width);
    }
    const { places, labels, cellWidth, tall, height } = this.map;
    const scale = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.height = `${height}px`;
    }
    const busy = METRICS[metric];
    const seen = places.map(({ i }) => this.gpu(i));
    const shares = seen.map(busy.share);
    const mean = places.length ? shares.reduce((sum, each) => sum + (each || 0), 0) / places.length : 0;
    this.canvas.setAttribute("aria-label", `${plural(places.length, "GPU", "GPUs")} by ${busy.title.toLowerCase()}, mean ${percent(mean * 100)}. Arrow keys choose one, Enter opens it.`);
    const ctx = this.canvas.getContext("2d");
    ctx.setTransform(scale, 0, 0, scale, 0, 0);
    ctx.clearRect(0, 0, width, height);
    const colours = palette();
    const font = getComputedStyle(this).fontFamily;
    ctx.textBaseline = "middle";
    for (const { at, x, y, width: room } of labels) {
      const server = servers[at];
      ctx.font = `550 12px ${font}`;
      ctx.fillStyle = server.stale ? colours.fail : colours.name;
      const words = server.stale ? `${server.name} · ${server.state}` : server.state === "drain" ? `${server.name} · drained` : server.name;
      ctx.fillText(fit(ctx, words, room), x, y - 4);
    }
    const radius = cellWidth > 20 ? 5 : cellWidth > 9 ? 2 : 1;
    const small = cellWidth < 34 && radius < 5;
    let last = "";
    places.forEach(({ i, x, y }, at) => {
      const server = servers[gpus.server[i]];
      if (small && !server.stale && server.state !== "drain" && !gpus.fault[i] && !gpus.drain[i] && at !== this.chosen && shares[at] !== null) {
        // Thousands of plain cells: one call for each.
        const { fill } = colour(shares[at], busy.warm);
        if (fill !== last) ctx.fillStyle = last = fill;
        ctx.fillRect(x, y, cellWidth, tall);
        return;
      }
      last = "";
      this.cell(ctx, i, x, y, cellWidth, tall, radius, at === this.chosen, font);
    });
  }

  gpu(i) {
    const { gpus } = this.value;
    return { busy: gpus.busy[i], granted: gpus.granted[i], capacity: gpus.capacity[i], used: gpus.used[i], total: gpus.total[i], temperature: gpus.temperature[i], wire: gpus.wire[i] };
  }

  cell(ctx, i, x, y, width, height, radius, chosen, font) {
    const { servers, gpus, metric } = this.value;
    const colours = palette();
    const server = servers[gpus.server[i]];
    const gpu = this.gpu(i);
    const share = METRICS[metric].share(gpu);
    const step = share === null ? null : colour(share, METRICS[metric].warm);
    ctx.fillStyle = step ? step.fill : colours.none;
    shape(ctx, x, y, width, height, radius);
    ctx.fill();
    const old = server.stale;
    if (old || gpus.fault[i]) hatch(ctx, x, y, width, height, radius, colours, old);
    if (gpus.fault[i]) outline(ctx, x, y, width, height, radius, colours.fail, 2);
    else if (server.state === "drain" || (gpus.drain && gpus.drain[i])) outline(ctx, x, y, width, height, radius, colours.warn, width > 12 ? 2 : 1);
    if (chosen) outline(ctx, x, y, width, height, radius, colours.text, 2);
    if (width >= 34 && height >= 26) {
      ctx.fillStyle = old || !step ? colours.name : step.light ? (dark() ? colours.on : colours.text) : dark() ? colours.text : colours.on;
      ctx.font = `600 13px ${font}`;
      ctx.textAlign = "center";
      const words = METRICS[metric].text(gpu);
      const short = ctx.measureText(words).width <= width - 6 ? words : words.replace(/ .*/, "");
      if (!gpus.fault[i] && ctx.measureText(short).width <= width - 4) ctx.fillText(short, x + width / 2, y + height / 2);
      ctx.textAlign = "left";
    }
  }

  find(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const { places, cellWidth, tall } = this.map;
    return places.findIndex((each) => x >= each.x && x < each.x + cellWidth + 1 && y >= each.y && y < each.y + tall + 1);
  }

  choose(at) {
    if (at === this.chosen) return;
    this.chosen = at;
    this.draw();
    this.tip.hidden = at < 0;
    if (at < 0) return;
    const { servers, gpus } = this.value;
    const { i, x, y } = this.map.places[at];
    const server = servers[gpus.server[i]];
    const gpu = this.gpu(i);
    const title = document.createElement("b");
    title.textContent = `${server.name} / GPU ${gpus.index[i]}`;
    const lines = [
      ["Model", gpus.model[i]],
      ["State", gpus.fault[i] || gpus.state[i]],
      ...["busy", "granted", "memory", "temperature"].map((name) => [METRICS[name].title, METRICS[name].text(gpu)]),
      ["Leases", String(gpus.leases[i])],
    ];
    this.tip.replaceChildren(title, ...lines.map(([name, value]) => {
      const line = document.createElement("span");
      const strong = document.createElement("i");
      strong.textContent = value;
      line.append(name, strong);
      return line;
    }));
    const right = x > this.clientWidth / 2;
    this.tip.style.left = right ? "" : `${x + this.map.cellWidth + 10}px`;
    this.tip.style.right = right ? `${this.clientWidth - x + 10}px` : "";
    this.tip.style.top = `${Math.max(0, y - 10)}px`;
    const said = document.getElementById("said");
    if (said && document.activeElement === this.canvas) said.textContent = `${title.textContent}, ${lines.map((each) => each.join(" ")).join(", ")}`;
  }

  key(event) {
    const { places, tall } = this.map;
    const here = this.chosen < 0 ? -1 : this.chosen;
    let next = here;
    if (event.key === "ArrowRight") next = here + 1;
    else if (event.key === "ArrowLeft") next = here - 1;
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = places.length - 1;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const down = event.key === "ArrowDown";
      const from = places[Math.max(0, here)];
      const rest = places.map((each, at) => ({ each, at })).filter(({ each }) => (down ? each.y > from.y + tall / 2 : each.y < from.y - tall / 2));
      const far = ({ each }) => Math.abs(each.y - from.y) * 4 + Math.abs(each.x - from.x);
      if (rest.length) next = rest.reduce((a, b) => (far(a) <= far(b) ? a : b)).at;
    } else if (event.key === "Enter" && here >= 0) {
      this.open(here);
      return;
    } else if (event.key === "Escape") next = -1;
    else return;
    event.preventDefault();
    this.choose(Math.max(-1, Math.min(places.length - 1, next)));
  }

  open(at) {
    if (at < 0) return;
    const { servers, gpus } = this.value;
    const { i } = this.map.places[at];
    dispatchEvent(new CustomEvent("gp-go", { detail: `/gpus/${encodeURIComponent(servers[gpus.server[i]].name)}/${gpus.index[i]}` }));
  }
}

function shape(ctx, x, y, width, height, radius) {
  ctx.beginPath();
  if (radius < 2) ctx.rect(x, y, width, height);
  else ctx.roundRect(x, y, width, height, radius);
}

function outline(ctx, x, y, width, height, radius, colour_, thick) {
  ctx.strokeStyle = colour_;
  ctx.lineWidth = thick;
  shape(ctx, x + thick / 2, y + thick / 2, width - thick, height - thick, radius);
  ctx.stroke();
}

/** Stripes over what is not of now. */
function hatch(ctx, x, y, width, height, radius, colours, old) {
  ctx.save();
  shape(ctx, x, y, width, height, radius);
  ctx.clip();
  if (old) {
    ctx.globalAlpha = 0.82;
    ctx.fillStyle = colours.none;
    ctx.fillRect(x, y, width, height);
    ctx.globalAlpha = 1;
  }
  ctx.strokeStyle = colours.line;
  ctx.lineWidth = width > 12 ? 1.5 : 1;
  ctx.beginPath();
  for (let d = -height; d < width; d += width > 12 ? 7 : 3.5) {
    ctx.moveTo(x + d, y + height);
    ctx.lineTo(x + d + height, y);
  }
  ctx.stroke();
  ctx.restore();
}

function fit(ctx, text, room) {
  if (ctx.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && ctx.measureText(`${text.slice(0, end)}…`).width > room) end--;
  return `${text.slice(0, end)}…`;
}

customElements.define("gp-heat", Heat);

/** The scale beneath the map. */
class Scale extends HTMLElement {
  connectedCallback() {
    this.canvas = this.canvas || document.createElement("canvas");
    this.append(this.canvas);
    addEventListener("gp-theme", () => this.draw());
    this.draw();
  }

  set warm(value) {
    this.isWarm = value;
    if (this.canvas) this.draw();
  }

  draw() {
    this.canvas.width = 120;
    this.canvas.height = 10;
    this.canvas.setAttribute("aria-hidden", "true");
    const ctx = this.canvas.getContext("2d");
    for (let x = 0; x < 120; x++) {
      ctx.fillStyle = colour(x / 119, this.isWarm).fill;
      ctx.fillRect(x, 0, 1, 10);
    }
  }
}

customElements.define("gp-scale", Scale);
