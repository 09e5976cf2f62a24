// Parts of pages: states, bars, tables with sort, filter and pages in the address, dialogs.

import { html, nothing, render, svg } from "/vendor/lit-html.js";
import { NONE, full, known, number } from "./format.js";

export { html, nothing, render, svg };

const PATHS = {
  overview: svg`<rect x="3" y="3" width="7" height="7" rx="1.5"/><rect x="14" y="3" width="7" height="7" rx="1.5"/><rect x="3" y="14" width="7" height="7" rx="1.5"/><rect x="14" y="14" width="7" height="7" rx="1.5"/>`,
  servers: svg`<rect x="3" y="4" width="18" height="7" rx="1.5"/><rect x="3" y="13" width="18" height="7" rx="1.5"/><path d="M7 7.5h.01M7 16.5h.01"/>`,
  gpus: svg`<rect x="5" y="5" width="14" height="14" rx="2"/><rect x="9.5" y="9.5" width="5" height="5"/><path d="M9 2v3M15 2v3M9 19v3M15 19v3M2 9h3M2 15h3M19 9h3M19 15h3"/>`,
  leases: svg`<path d="M4 6h16M4 12h16M4 18h10"/>`,
  waiting: svg`<circle cx="12" cy="12" r="8.5"/><path d="M12 7v5l3 2"/>`,
  users: svg`<circle cx="9" cy="8" r="3.5"/><path d="M2.5 20c.6-4 3-6 6.5-6s5.900 2 6.500 6M16 4.800a3.500 3.500 0 0 1 0 6.400M18 14.500c2 .8 3.200 2.600 3.500 5.500"/>`,
  usage: svg`<path d="M4 20V10M10 20V4M16 20v-7M21 20H3"/>`,
  health: svg`<path d="M3 12h4l2.500-7 5 14 2.500-7h4"/>`,
  events: svg`<path d="M5 4h14v16H5zM9 9h6M9 13h6M9 17h3"/>`,
  history: svg`<path d="M3 17l5-6 4 3 5-7 4 4"/><path d="M3 21h18"/>`,
  about: svg`<circle cx="12" cy="12" r="8.5"/><path d="M12 11v5M12 8h.01"/>`,
  sun: svg`<circle cx="12" cy="12" r="4"/><path d="M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.500 1.500M17.500 17.500 19 19M5 19l1.500-1.500M17.500 6.500 19 5"/>`,
  moon: svg`<path d="M20 14.500A8.500 8.500 0 0 1 9.500 4 8.500 8.500 0 1 0 20 14.500z"/>`,
  menu: svg`<path d="M4 7h16M4 12h16M4 17h16"/>`,
  ok: svg`<path d="M5 12.500 10 17.500 19.500 7"/>`,
  warn: svg`<path d="M12 7v6M12 17h.01"/>`,
  fail: svg`<path d="M7 7l10 10M17 7 7 17"/>`,
};

export function icon(name) {
  return html`<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.7"
    stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">${PATHS[name]}</svg>`;
}

/** A level as a round mark; its word is read aloud. */
export function mark(level) {
  const words = { ok: "Healthy", warn: "Warning", fail: "Failing" };
  return html`<span class="mark ${level}">${icon(level)}<span class="away">${words[level]}:</span></span>`;
}

const STATES = {
  idle: ["", "idle"],
  mix: ["accent", "in use"],
  full: ["accent", "full"],
  drain: ["warn", "drained"],
  down: ["fail", "down"],
  fault: ["fail", "fault"],
  new: ["", "new"],
  away: ["fail", "away"],
  held: ["accent", "held"],
  moving: ["warn", "moving"],
  suspending: ["warn", "suspending"],
  suspended: ["warn", "suspended"],
  resuming: ["warn", "resuming"],
  ending: ["warn", "ending"],
  unreachable: ["fail", "unreachable"],
  over: ["", "over"],
  ok: ["ok", "passes"],
  warn: ["warn", "warns"],
  fail: ["fail", "fails"],
};

/** A state: its word, and a dot of another shape for each kind. */
export function state(name) {
  const [kind, word] = STATES[name] || ["", name];
  return html`<span class="state ${kind}">${word}</span>`;
}

/** A bar of parts in percent; the text beside it says the same. */
export function bar(parts) {
  let from = 0;
  const shown = parts.map(([value, kind]) => {
    const width = Math.max(0, Math.min(100 - from, value || 0));
    const piece = svg`<rect class=${kind} x=${from} y="0" width=${width} height="4"></rect>`;
    from += width;
    return piece;
  });
  return html`<svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true">${shown}</svg>`;
}

export const withBar = (text, parts) => html`<span class="withbar"><span>${text}</span>${bar(parts)}</span>`;

export function facts(list) {
  return html`<dl class="panel facts">
    ${list.filter(Boolean).map(
      ([title, value, unit, under]) => html`<div>
        <dt>${title}</dt>
        <dd>${value} ${unit ? html`<small>${unit}</small>` : nothing}
          ${under ? html`<div class="under">${under}</div>` : nothing}</dd>
      </div>`,
    )}
  </dl>`;
}

/**
 * A part of a page under a heading.
 * @param {string} title
 * @param {unknown} content
 * @param {{aside?: unknown, right?: unknown, footer?: unknown, width?: string, flush?: boolean}} [options]
 */
export function panel(title, content, { aside, right, footer, width = "", flush = false } = {}) {
  return html`<section class="panel ${width}" aria-label=${title}>
    <header>
      <h2>${title}</h2>
      ${aside ? html`<p>${aside}</p>` : nothing} ${right ? html`<div class="right">${right}</div>` : nothing}
    </header>
    <div class=${flush ? "flush" : "body"}>${content}</div>
    ${footer && footer !== nothing ? html`<footer>${footer}</footer>` : nothing}
  </section>`;
}

export const none = (title, text = "") => html`<div class="empty"><b>${title}</b>${text}</div>`;

export function pairs(list) {
  return html`<dl class="pairs">
    ${list.filter(Boolean).map(([name, value]) => html`<dt>${name}</dt><dd>${known(value) && value !== "" ? value : NONE}</dd>`)}
  </dl>`;
}

/** Buttons of which one is pressed. */
export function choice(label, options, chosen, pick) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(
      ([value, text]) => html`<button type="button" aria-pressed=${String(value === chosen)} @click=${() => pick(value)}>${text}</button>`,
    )}
  </div>`;
}

// --- addresses -------------------------------------------------------------------------------------

export const params = () => new URLSearchParams(location.search);

/** Change parameters of the address; empty ones go. */
export function setParams(changes, { push = false } = {}) {
  const next = params();
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null) next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString();
  history[push ? "pushState" : "replaceState"](null, "", location.pathname + (text ? `?${text}` : ""));
  dispatchEvent(new Event("gp-changed"));
}

export const path = (...words) => `/${words.map(encodeURIComponent).join("/")}`;
export const serverLink = (name) => html`<a class="name" href=${path("servers", name)}>${name}</a>`;
export const gpuLink = (server, index) => html`<a href=${path("gpus", server, index)}>${server} / GPU ${index}</a>`;
export const leaseLink = (id) => html`<a class="mono" href=${path("leases", id)}>${id}</a>`;
export const clientLink = (name) => (name ? html`<a href=${path("clients", name)}>${name}</a>` : NONE);
export const userLink = (name) => html`<a href=${path("users", name)}>${name}</a>`;

/** A moment as a link to the charts around it, of a server, SERVER/NUMBER of a GPU, or the pool. */
export const momentLink = (at, of) => html`<a class="nowrap" href=${`/history?${new URLSearchParams({ of: of || "pool", span: "6h", at: String(at) })}`}><time>${full(at)}</time></a>`;

// --- tables ----------------------------------------------------------------------------------------

const PAGE_ROWS = 60;
const order = new Intl.Collator("en", { numeric: true }).compare;

function compare(a, b) {
  if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0; // what is not known goes last
  return typeof a === "number" && typeof b === "number" ? a - b : order(String(a), String(b));
}

/** Return the rows that the address asks for, sorted as it says, and the wanted piece of them. */
export function arrange(list, columns, { text = null, sort = "", size = PAGE_ROWS, prefix = "" } = {}) {
  const asked = params();
  const words = (asked.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
  let found = words.length && text ? list.filter((row) => {
    const all = text(row).toLowerCase();
    return words.every((word) => all.includes(word));
  }) : list.slice();
  const by = asked.get(`${prefix}sort`) || sort;
  const column = columns.find((each) => each.key === by.replace(/^-/, ""));
  if (column && column.sort) {
    const sign = by.startsWith("-") ? -1 : 1;
    const keyed = found.map((row) => [column.sort(row), row]);
    keyed.sort(([a], [b]) => (known(a) && known(b) ? sign : 1) * compare(a, b));
    found = keyed.map(([, row]) => row);
  }
  const pages = Math.max(1, Math.ceil(found.length / size));
  const page = Math.min(pages, Math.max(1, Number(asked.get(`${prefix}page`)) || 1));
  return { found, by, page, pages, shown: found.slice((page - 1) * size, page * size) };
}

const hidden = (column) => (column.wide ? "hide-medium hide-narrow" : column.narrow ? "hide-narrow" : "");

/**
 * A real table. Columns: key, title, cell(row), sort(row), num, narrow and wide (hidden without room).
 * @param {string} caption
 * @param {any[]} list
 * @param {any[]} columns
 * @param {{text?: (row: any) => string, sort?: string, size?: number, prefix?: string, empty?: unknown, total?: unknown, dead?: (row: any) => boolean}} [options]
 */
export function dataTable(caption, list, columns, options = {}) {
  const shownColumns = columns.filter(Boolean);
  const prefix = options.prefix || "";
  const { found, by, page, pages, shown } = arrange(list, shownColumns, options);
  const pick = (column) => {
    const first = column.num ? `-${column.key}` : column.key;
    const other = column.num ? column.key : `-${column.key}`;
    setParams({ [`${prefix}sort`]: by === first ? other : first, [`${prefix}page`]: "" });
  };
  const head = (column) => {
    const down = by === `-${column.key}`;
    const sorted = down || by === column.key;
    return html`<th scope="col" class="${column.num ? "num" : ""} ${hidden(column)}"
      aria-sort=${sorted ? (down ? "descending" : "ascending") : nothing}>
      ${column.sort
        ? html`<button type="button" @click=${() => pick(column)}>${column.title}<span aria-hidden="true">${sorted ? (down ? "↓" : "↑") : ""}</span></button>`
        : column.title || html`<span class="away">Actions</span>`}
    </th>`;
  };
  if (!found.length) {
    const filtered = list.length && params().get("q");
    return filtered ? none("Nothing matches the filter.", "Take a word away.") : options.empty || none("Nothing here.");
  }
  return html`<table>
      <caption class="away">${caption}</caption>
      <thead><tr>${shownColumns.map(head)}</tr></thead>
      <tbody>
        ${shown.map(
          (row) => html`<tr class=${options.dead && options.dead(row) ? "dead" : ""}>
            ${shownColumns.map(
              (column) => html`<td class="${column.num ? "num" : ""} ${hidden(column)} ${column.cut ? "cut" : ""}">${column.cell(row)}</td>`,
            )}
          </tr>`,
        )}
        ${options.total && page === pages ? html`<tr class="total">${shownColumns.map((column) => html`<td class="${column.num ? "num" : ""} ${hidden(column)}">${column.total ? column.total(options.total) : ""}</td>`)}</tr>` : nothing}
      </tbody>
    </table>
    ${pages > 1
      ? html`<div class="pager">
          <button type="button" ?disabled=${page === 1} @click=${() => setParams({ [`${prefix}page`]: page - 1 })}>Back</button>
          <button type="button" ?disabled=${page === pages} @click=${() => setParams({ [`${prefix}page`]: page + 1 })}>Next</button>
          <span>Page ${page} of ${pages}, ${number(found.length)} rows</span>
        </div>`
      : nothing}`;
}

export function filterField(label) {
  return html`<input type="search" data-filter placeholder=${label} aria-label=${label} .value=${params().get("q") || ""}
    @input=${(event) => setParams({ q: event.target.value, page: "" })}>`;
}

/** Words for people who hear the page, said when they change. */
export function announce(text) {
  const place = document.getElementById("said");
  if (place && place.textContent !== text) place.textContent = text;
}

let toasted = 0;

export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  clearTimeout(toasted);
  toasted = setTimeout(() => (place.textContent = ""), 6000);
}
