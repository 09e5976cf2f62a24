// What the pool is made of, who looks, and the keys of this page.

import { html, pairs, panel } from "../parts.js";
import { logout, pool, rows, viewer } from "../store.js";


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
