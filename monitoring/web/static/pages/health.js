// Every check with its subject, since when, and what helps.

import { number, plural, since, when } from "../format.js";
import { maySilence, silence, unsilence } from "../orders.js";
import { choice, dataTable, facts, filterField, html, mark, none, nothing, panel, params, serverLink, setParams, state } from "../parts.js";
import { pool, rows } from "../store.js";

const ORDER = { fail: 0, warn: 1, ok: 2 };

/** What helps; a hint that is a command looks like one. */
function hint(text) {
  if (!text) return nothing;
  return html`<span class="hint">${/^gpupool [^;,]+$/.test(text) ? html`<code>${text}</code>` : text}</span>`;
}

function order(finding) {
  if (!finding.key) return nothing;
  return finding.silence
    ? html`<button class="plain" type="button" @click=${() => unsilence(finding)}>End the silence</button>`
    : html`<button class="plain" type="button" aria-label="Silence ${finding.key.join(" ").trim()}" @click=${() => silence(finding)}>Silence…</button>`;
}

export function view() {
  const all = rows("findings");
  const show = params().get("show") || (all.some((each) => each.level !== "ok") ? "bad" : "all");
  const list = all.filter((each) => show === "all" || each.level !== "ok");
  const count = (level) => all.filter((each) => each.level === level && !each.silence).length;
  const servers = rows("servers");
  return html`
    <div class="health">${mark(pool().level)}<p>${pool().sentence}</p></div>
    ${facts([
      ["Failing", number(count("fail")), "", "needs somebody now"],
      ["Warning", number(count("warn")), "", "needs somebody soon"],
      ["Silenced", number(all.filter((each) => each.silence).length), "", "known to an operator"],
      ["Servers that answer", number(servers.filter((each) => !each.stale).length), `of ${servers.length}`],
      ["Majority", pool().quorum ? "yes" : "no", "", pool().leader ? `${pool().leader} leads, term ${pool().term}` : "no leader"],
      ["Voters", number(pool().voters), "", `${plural(Math.floor((pool().voters - 1) / 2), "one may fail", "may fail")} and grants go on`],
    ])}
    <div class="filters">${choice("Which checks", [["bad", "Only what is wrong"], ["all", "All"]], show, (value) => setParams({ show: value }))} ${filterField("Filter by check, server, text")}</div>
    ${panel("Checks", dataTable("Checks", list, [
      { key: "level", title: "Result", cell: (f) => state(f.level), sort: (f) => ORDER[f.level] },
      { key: "check", title: "Check", cell: (f) => html`<b>${f.check}</b>`, sort: (f) => f.check },
      { key: "server", title: "Server", cell: (f) => (f.server ? serverLink(f.server) : html`<span class="muted">the pool</span>`), sort: (f) => f.server },
      { key: "subject", title: "Of what", cell: (f) => f.subject || "–", sort: (f) => f.subject, narrow: true },
      { key: "text", title: "Finding", cell: (f) => html`<div>${f.text}</div>${f.silence ? html`<span class="hint">${f.silence}</span>` : hint(f.hint)}` },
      { key: "since", title: "Since", num: true, cell: (f) => (f.since > 1 ? html`<span title=${when(f.since)}>${since(f.since)}</span>` : "–"), sort: (f) => f.since || null },
      maySilence() ? { key: "act", title: "", cell: order } : null,
    ].filter(Boolean), { sort: "level", text: (f) => `${f.check} ${f.server} ${f.subject} ${f.text}`, empty: none("Nothing is wrong.", "All checks that servers report pass.") }), { flush: true })}`;
}
