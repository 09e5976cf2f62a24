// Every check with its subject, since when, and what helps; and what checks found before.

import { duration, full, number, since, when } from "../format.js";
import { maySilence, silence, unsilence } from "../orders.js";
import { choice, dataTable, facts, filterField, html, mark, momentLink, none, nothing, panel, params, serverLink, setParams, state } from "../parts.js";
import { pool, poolNow, question, rows } from "../store.js";

const ORDER = { fail: 0, warn: 1, ok: 2 };
const SPANS = [["1", "A day"], ["7", "A week"], ["30", "A month"], ["365", "A year"]];
const DAY_MS = 86400000;
const past = question(60000);

const days = () => (SPANS.some(([value]) => value === params().get("past")) ? params().get("past") : "7");

export const enter = () => () => {
  const until = Math.floor(poolNow() / 1000) * 1000;
  const span = { since: String(until - Number(days()) * DAY_MS), until: String(until) };
  void past.load(`checks?${new URLSearchParams(span)}`, days());
};

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

/** What is not known of this time, one line each. */
function lacks(data) {
  const lines = [
    ...Object.entries(data.silent).map(([name, why]) => `${name} did not answer (${why}).`),
    ...data.problems.map((text) => `${text}.`),
    ...Object.entries(data.unknown).map(([name, at]) => (at ? `${name} has no records before ${full(at)}.` : `${name} has no records yet.`)),
    data.more ? "There are more; the newest are shown." : "",
  ].filter(Boolean);
  return lines.length ? html`<p class="notice quiet">${lines.map((text) => html`<span>${text} </span>`)}</p>` : nothing;
}

/** Whose charts tell more of an episode. */
const place = (e) => (e.server && /^GPU \d+$/.test(e.subject) ? e.subject.replace("GPU ", `${e.server}/`) : e.server);

function history() {
  const data = past.data;
  const right = choice("How far back", SPANS, days(), (value) => setParams({ past: value === "7" ? "" : value, ppage: "" }));
  const empty = past.error ? none(past.error) : none(data ? "No check has found anything in this time." : "Asking the servers…");
  const columns = [
    { key: "began", title: "Began", cell: (e) => momentLink(e.began, place(e)), sort: (e) => e.began },
    { key: "ended", title: "Ended", cell: (e) => (e.ended ? html`<time class="nowrap">${full(e.ended)}</time>` : html`<b>goes on</b>`), sort: (e) => e.ended || Infinity, narrow: true },
    { key: "for", title: "For", num: true, cell: (e) => duration((e.ended || poolNow()) - e.began), sort: (e) => (e.ended || poolNow()) - e.began },
    { key: "level", title: "Result", cell: (e) => state(e.level), sort: (e) => ORDER[e.level] },
    { key: "check", title: "Check", cell: (e) => html`<b>${e.check}</b>`, sort: (e) => e.check },
    { key: "server", title: "Server", cell: (e) => (e.server ? serverLink(e.server) : html`<span class="muted">the pool</span>`), sort: (e) => e.server },
    { key: "subject", title: "Of what", cell: (e) => e.subject || "–", sort: (e) => e.subject, narrow: true },
    { key: "text", title: "Finding", cell: (e) => e.text, narrow: true },
  ];
  const words = (e) => `${e.check} ${e.server} ${e.subject} ${e.text}`;
  return html`${data ? lacks(data) : nothing}
    ${panel("Earlier findings", dataTable("Earlier findings", data ? data.rows : [], columns, { sort: "-began", prefix: "p", text: words, empty }), { flush: true, right })}`;
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
      ["Servers that answer", number(pool().answer), `of ${servers.length}`],
      ["Majority", pool().quorum ? "yes" : "no", "", pool().leader ? `${pool().leader} leads, term ${pool().term}` : "no leader"],
      ["Voters", number(pool().voters), "", `${Math.floor((pool().voters - 1) / 2)} may fail`],
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
    ].filter(Boolean), { sort: "level", text: (f) => `${f.check} ${f.server} ${f.subject} ${f.text}`, empty: none("Nothing is wrong.", "All checks that servers report pass.") }), { flush: true })}
    ${history()}`;
}
