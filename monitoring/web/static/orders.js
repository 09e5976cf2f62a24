// Orders that change the pool: each is confirmed in a dialog, and most need a reason.

import { html, nothing, render, toast } from "./parts.js";
import { ask, mayOrder, viewer } from "./store.js";

function dialog(what) {
  const place = document.createElement("dialog");
  place.setAttribute("aria-labelledby", "dialog-title");
  document.body.append(place);
  place.addEventListener("close", () => place.remove());
  const draw = (wrong = "", busy = false) =>
    render(
      html`<form method="dialog" @submit=${send}>
        <h2 id="dialog-title">${what.title}</h2>
        <p>${what.text}</p>
        ${what.reason
          ? html`<label>Reason<input name="reason" required maxlength="140" autocomplete="off" placeholder=${what.reason}></label>`
          : nothing}
        ${what.hours
          ? html`<label>For<select name="hours">${what.hours.map(([hours, words]) => html`<option value=${hours}>${words}</option>`)}</select></label>`
          : nothing}
        ${wrong ? html`<p class="wrong" role="alert">${wrong}</p>` : nothing}
        <div class="row">
          <button type="button" @click=${() => place.close()}>Cancel</button>
          <button class=${what.danger ? "danger" : "main"} ?disabled=${busy}>${what.verb}</button>
        </div>
      </form>`,
      place,
    );
  async function send(event) {
    event.preventDefault();
    const said = Object.fromEntries(new FormData(event.target));
    draw("", true);
    try {
      const { data } = await ask(what.path, { reason: "", ...said, ...what.body });
      place.close();
      toast(data.done);
    } catch (error) {
      draw([error.what || "It did not work", error.why, error.hint].filter(Boolean).join("; "));
    }
  }
  draw();
  place.showModal();
}

export const mayEnd = (lease) => mayOrder() && (viewer().operator || lease.user === viewer().user);
export const mayDrain = () => mayOrder() && viewer().operator;
export const maySilence = mayDrain;

export function endLease(lease) {
  dialog({
    title: `End lease ${lease.id}?`,
    text: `The program "${lease.program}" of ${lease.user} is stopped now, and what it has in GPU memory is lost.`,
    reason: "Its owner sees this",
    verb: "End the lease",
    danger: true,
    path: "end-lease",
    body: { lease: lease.id },
  });
}

const whole = (name, gpu) => (gpu === undefined ? { what: "server", title: name, body: { server: name } } : { what: "GPU", title: `GPU ${gpu} of ${name}`, body: { server: name, gpu } });

/** Drain a server, or one GPU of it. */
export function drain(name, gpu) {
  const { what, title, body } = whole(name, gpu);
  dialog({
    title: `Drain ${title}?`,
    text: "Nothing new is granted there. What runs goes on.",
    reason: "Everybody who looks at the pool sees this",
    verb: `Drain the ${what}`,
    path: "drain",
    body,
  });
}

export function undrain(name, gpu) {
  const { what, title, body } = whole(name, gpu);
  dialog({
    title: `Undrain ${title}?`,
    text: what === "GPU" ? "It is granted again." : "GPUs are granted there again.",
    verb: `Undrain the ${what}`,
    path: "undrain",
    body,
  });
}

const named = ([check, server, subject]) => [check, server, subject === server ? "" : subject].filter(Boolean).join(" ");

export function silence(finding) {
  dialog({
    title: `Silence ${named(finding.key)}?`,
    text: "It is shown last, counts for nothing, and no alert is sent of it. The checks go on.",
    reason: "Everybody who looks at the pool sees this",
    hours: [[4, "4 hours"], [24, "1 day"], [72, "3 days"], [168, "1 week"], [720, "30 days"]],
    verb: "Silence it",
    path: "silence",
    body: { key: finding.key },
  });
}

export function unsilence(finding) {
  dialog({
    title: `End the silence of ${named(finding.key)}?`,
    text: `It is ${finding.silence}.`,
    verb: "End the silence",
    path: "unsilence",
    body: { key: finding.key },
  });
}
