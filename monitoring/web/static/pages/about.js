// What the pool is made of, what its servers keep, until when certificates hold, who looks, and keys.

import { bytes, duration, known, when } from "../format.js";
import { dataTable, html, none, pairs, panel, serverLink, withBar } from "../parts.js";
import { logout, pool, poolNow, question, rows, viewer } from "../store.js";
import { missing } from "./leases.js";

const DAY_MS = 86400000;
const SOON = { ca: 180, server: 30, web: 30 }; // days, as the check "certificate" has them
const NAMES = { ca: "The pool's CA", server: "Server", web: "Web page" };
const kept = question(60000);

export const enter = () => () => void kept.load("storage");

function ends(at, name) {
  if (!known(at)) return "–";
  const days = Math.floor((at - poolNow()) / DAY_MS);
  const words = `${new Date(at).toISOString().slice(0, 10)}, ${days < 0 ? "it has ended" : `in ${days} days`}`;
  return days < (SOON[name] || 30) ? html`<span class="tag warn">${words}</span>` : words;
}

function certificates() {
  const names = [...new Set(kept.data.servers.flatMap((each) => Object.keys(each.ends)))].sort();
  return dataTable("When certificates end", kept.data.servers, [
    { key: "name", title: "Server", cell: (s) => serverLink(s.name), sort: (s) => s.name },
    ...names.map((name) => ({ key: name, title: NAMES[name] || name, cell: (s) => ends(s.ends[name], name), sort: (s) => s.ends[name] })),
  ], { sort: "name", prefix: "c", empty: none("No server tells.") });
}

const databases = (s) => ["history.db", "usage.db"].reduce((all, name) => all + (s.files[name] || 0), 0);

function storage() {
  const share = (s) => (s.max ? (100 * databases(s)) / s.max : 0);
  return dataTable("What servers keep of what was", kept.data.servers, [
    { key: "name", title: "Server", cell: (s) => serverLink(s.name), sort: (s) => s.name },
    { key: "history", title: "History", num: true, cell: (s) => bytes(s.files["history.db"]), sort: (s) => s.files["history.db"] },
    { key: "accounts", title: "Accounts", num: true, cell: (s) => bytes(s.files["usage.db"]), sort: (s) => s.files["usage.db"] },
    { key: "records", title: "Records", num: true, cell: (s) => bytes(s.files["leases.jsonl"]), sort: (s) => s.files["leases.jsonl"], narrow: true },
    { key: "max", title: "Of the most", num: true, cell: (s) => (s.max ? withBar(`${bytes(databases(s))} of ${bytes(s.max)}`, [[share(s), share(s) > 90 ? "c" : "a"]]) : "–"), sort: share },
    ...[0, 1, 2].map((at) => ({ key: `tier${at}`, title: `Rows of ${["10 s", "1 min", "1 h"][at]}`, cell: (s) => tier(s.tiers[at]), narrow: true })),
  ], { sort: "name", prefix: "k", empty: none("No server tells.") });
}

function tier(found) {
  if (!found) return "–";
  const [, kept_s, oldest] = found;
  return html`${kept_s % 86400 ? duration(kept_s * 1000) : `${kept_s / 86400} d`}<span class="faint">${oldest ? `, since ${when(oldest)}` : ", none yet"}</span>`;
}

function keeping() {
  if (!kept.data) return panel("Storage", none(kept.error || "Asking the servers…"), { width: "w12" });
  return html`${missing(kept.data)}
    ${panel("Certificates", certificates(), { width: "w12", flush: true, aside: "when each ends; servers renew their own" })}
    ${panel("Storage", storage(), { width: "w12", flush: true, aside: "of each server's exporter, and for how long rows are kept" })}`;
}

export const view = () => {
  const servers = rows("servers");
  const count = (name) => Object.entries(servers.reduce((all, each) => ({ ...all, [each[name] || "–"]: (all[each[name] || "–"] || 0) + 1 }), {})).map(([word, n]) => `${word} (${n})`).join(", ");
  return html`<div class="grid">
    ${panel("Pool", pairs([["Name", pool().name], ["Cluster", html`<span class="mono">${pool().cluster}</span>`], ["Leader", pool().leader], ["Voters", pool().voters], ["Term", pool().term], ["Elections seen", pool().elections], ["Policy", pool().policy ? `version ${pool().policy}` : "none"], ["Encryption of data", pool().encryption], ["Lease records", pool().records]]), { width: "w6" })}
    ${panel("Versions", pairs([["gpupool", count("version")], ["Driver", count("driver")], ["CUDA", count("cuda")]]), { width: "w6" })}
    ${panel("You", pairs([["User", viewer().user], ["Rights", viewer().operator ? "operator: may end any lease and drain servers" : "user: may end own leases"], ["This page", viewer().readonly ? "changes nothing" : "may give these orders"], ...(viewer().entry === "token" ? [["Session", html`<button type="button" @click=${logout}>Log out</button>`]] : [])]), { width: "w6" })}
    ${panel("Keys", html`<dl class="pairs">
      <dt><kbd>1</kbd> … <kbd>9</kbd> <kbd>0</kbd></dt><dd>the pages, in the order of the navigation</dd>
      <dt><kbd>/</kbd></dt><dd>to the filter of a table</dd>
      <dt><kbd>t</kbd></dt><dd>light or dark</dd>
      <dt><kbd>z</kbd></dt><dd>your time zone, or UTC</dd>
      <dt><kbd>?</kbd></dt><dd>this page</dd>
      <dt>Single keys</dt><dd><label><input type="checkbox" .checked=${keysOn()} @change=${setKeys}> on</label></dd>
    </dl>`, { width: "w6" })}
    ${keeping()}
  </div>`;
};

function keysOn() {
  try {
    return localStorage.getItem("gpupool-keys") !== "off";
  } catch {
    return true;
  }
}

function setKeys(event) {
  try {
    localStorage.setItem("gpupool-keys", event.target.checked ? "on" : "off");
  } catch {
    // Then they stay on.
  }
}
