// Numbers, sizes and times as people read them. "–" is what is not known.

import { poolNow } from "./store.js";

export const NONE = "–";
const UNITS = ["MiB", "GiB", "TiB", "PiB"];
const settings = { zone: stored("gpupool-zone") || "local" };

function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function zone() {
  return settings.zone;
}

export function toggleZone() {
  settings.zone = settings.zone === "utc" ? "local" : "utc";
  try {
    localStorage.setItem("gpupool-zone", settings.zone);
  } catch {
    // It holds until the page is left.
  }
}

export const timeZone = () => (settings.zone === "utc" ? "UTC" : undefined);

export const known = (value) => value !== null && value !== undefined;

export function number(value, digits = 0) {
  if (!known(value)) return NONE;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function percent(value) {
  return known(value) ? `${Math.round(value)} %` : NONE;
}

/** A size that is given in MiB. */
export function size(mib) {
  if (!known(mib)) return NONE;
  let value = mib;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  const digits = value >= 100 || Number.isInteger(value) ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

export const bytes = (value) => {
  if (!known(value)) return NONE;
  if (value < 1024) return `${Math.round(value)} B`;
  if (value < 1024 * 1024) return `${(value / 1024).toFixed(1)} KiB`;
  return size(value / 1024 / 1024);
};

export function rate(value) {
  return known(value) ? `${bytes(value)}/s` : NONE;
}

export function duration(ms) {
  if (!known(ms)) return NONE;
  const s = Math.max(0, ms / 1000);
  if (s < 1) return s ? "<1 s" : "0 s";
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const since = (at) => (known(at) && at > 1 ? duration(poolNow() - at) : NONE);

export function micros(us) {
  if (!known(us)) return NONE;
  return us < 1000 ? `${us} µs` : `${(us / 1000).toFixed(us < 10000 ? 1 : 0)} ms`;
}

const forms = new Map();

function form(options) {
  const key = JSON.stringify(options) + settings.zone;
  if (!forms.has(key)) {
    forms.set(key, new Intl.DateTimeFormat("en-GB", { ...options, timeZone: timeZone() }));
  }
  return forms.get(key);
}

const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
const DAY = { day: "numeric", month: "short" };

export function clock(ms) {
  return form(CLOCK).format(ms);
}

/** A moment; its day only if it is not today's. */
export function when(ms) {
  if (!known(ms) || ms <= 1) return NONE;
  const today = form({ ...DAY, year: "numeric" });
  if (today.format(ms) === today.format(poolNow())) return clock(ms);
  return form({ ...DAY, ...CLOCK, second: undefined }).format(ms);
}

export const full = (ms) =>
  known(ms) && ms > 1 ? form({ year: "numeric", ...DAY, ...CLOCK, timeZoneName: "short" }).format(ms) : NONE;

export const plural = (count, one, many) => `${number(count)} ${count === 1 ? one : many}`;

/** What a request or a lease asks for, as one reads it aloud. */
export function wish(row) {
  const each = row.memory ? size(row.memory) : row.fraction === 1 ? "whole" : percent(100 * row.fraction);
  return `${row.count} × ${each}`;
}
