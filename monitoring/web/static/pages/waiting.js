// Who waits for what, in the order in which they will be served.

import { plural, since, when, wish } from "../format.js";
import { dataTable, filterField, html, none, nothing, panel, userLink } from "../parts.js";
import { pool, rows } from "../store.js";

export const needs = ["work"];

export function view() {
  const list = rows("waiting", "work");
  const policy = Boolean(pool().policy);
  const columns = [
    { key: "place", title: "Place", num: true, cell: (w) => w.i + 1, sort: (w) => w.i },
    { key: "user", title: "User", cell: (w) => userLink(w.user), sort: (w) => w.user },
    { key: "wish", title: "Wants", cell: (w) => html`<span class="nowrap">${wish(w)}</span> ${w.across ? html`<span class="tag">on several servers</span>` : nothing}`, sort: (w) => w.count },
    { key: "only", title: "Only where", cell: (w) => html`<span class="muted">${[w.filters, w.on && `on ${w.on}`].filter(Boolean).join(", ") || "anywhere"}</span>`, narrow: true },
    { key: "since", title: "Waits for", num: true, cell: (w) => since(w.since), sort: (w) => -w.since },
    { key: "free", title: "GPUs free by", num: true, cell: (w) => when(w.free), sort: (w) => w.free },
    { key: "reason", title: "Why, and what would help", cell: (w) => w.reason },
    policy && { key: "class", title: "Class", cell: (w) => (w.class ? html`<span class="tag">${w.class}</span>` : "–"), sort: (w) => w.class, narrow: true },
    policy && { key: "priority", title: "Priority", num: true, cell: (w) => w.priority, sort: (w) => w.priority, narrow: true },
    { key: "program", title: "Program", cut: true, cell: (w) => w.program, sort: (w) => w.program },
    { key: "client", title: "Client", cell: (w) => html`<span class="muted">${w.client}</span>`, sort: (w) => w.client, narrow: true },
  ];
  return html`<div class="filters">${filterField("Filter by user, program, reason")}<span class="faint">${plural(list.length, "request waits", "requests wait")}</span></div>
    ${panel("Waiting", dataTable("Requests that wait", list, columns, { sort: "place", text: (w) => `${w.user} ${w.program} ${w.reason} ${w.class} ${w.client}`, empty: none("Nobody waits.", "Every request finds a free GPU at once.") }), { flush: true, aside: "in the order of service" })}`;
}
