// What happened, and who administered what.

import { plural } from "../format.js";
import { choice, dataTable, filterField, html, leaseLink, momentLink, none, nothing, panel, params, serverLink, setParams, userLink } from "../parts.js";
import { question, rows } from "../store.js";

const audit = question(10000);

const load = () => void (params().get("show") === "audit" && audit.load("audit"));
export const enter = () => load;

const OF_LEASES = new Set(["granted", "ended", "notice", "moving", "suspending", "suspended", "resuming", "resumed"]);

/** What an event is of, as a link where the pool has a page of it. */
function subject(event, servers) {
  if (OF_LEASES.has(event.kind) && /^[0-9a-f]+$/.test(event.subject)) return leaseLink(event.subject);
  return servers.has(event.subject) ? serverLink(event.subject) : html`<b>${event.subject || "–"}</b>`;
}

export function view() {
  const servers = new Set(rows("servers").map((each) => each.name));
  const acts = params().get("show") === "audit";
  const list = acts ? (audit.data ? audit.data.acts : []) : rows("events");
  const columns = [
    { key: "at", title: "When", cell: (e) => momentLink(e.at, servers.has(e.subject) ? e.subject : ""), sort: (e) => e.at },
    acts && { key: "by", title: "Who", cell: (e) => userLink(e.by), sort: (e) => e.by },
    { key: "kind", title: "What", cell: (e) => html`<span class="tag">${e.kind}</span>`, sort: (e) => e.kind },
    { key: "subject", title: "Of what", cell: (e) => subject(e, servers), sort: (e) => e.subject },
    { key: "text", title: "Details", cell: (e) => e.text },
  ];
  const empty = acts && !audit.data && !audit.error ? none("Asking the servers…") : none(audit.error || "Nothing has happened yet.");
  return html`<div class="filters">
      ${choice("Which list", [["events", "Events"], ["audit", "Audit"]], acts ? "audit" : "events", (value) => { setParams({ show: value === "audit" ? "audit" : "", sort: "", page: "" }, { push: true }); audit.next = 0; load(); })}
      ${filterField("Filter by kind, subject, text")}<span class="faint">${plural(list.length, "line", "lines")}</span></div>
    ${acts && audit.data && audit.data.dropped ? html`<p class="notice quiet">The pool has dropped ${plural(audit.data.dropped, "older act", "older acts")}; each server has them: gpupool audit --state-dir DIR</p>` : nothing}
    ${panel(acts ? "Audit" : "Events", dataTable(acts ? "Administrative acts" : "Events", list, columns, { sort: "-at", text: (e) => `${e.by || ""} ${e.kind} ${e.subject} ${e.text}`, empty }), { flush: true, aside: acts ? "every administrative act: who did what, and when" : "the latest that the pool's table has" })}`;
}
