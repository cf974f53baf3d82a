// The one dialog of the page: it says what will happen, asks for the token if this page has no permit, and acts once it is
// confirmed. The browser keeps the focus within it, and Escape closes it. What came of it is told in a live region.

import { byId, setText } from "./dom.js";
import { hasPermit, logIn } from "./session.js";

const dialog = byId("dialog");
let shown = null; // the question that the dialog shows

/** Say what happened, on the screen and to screen readers; it stays until something else is said. */
export function tell(words, isBad = false) {
  setText(byId("told"), words);
  byId("told").className = isBad ? "told bad" : "told";
}

/** The folder of the node, whose token is asked for. */
export function setHome(folder) {
  setText(byId("token-command"), `cat ${/^[\w./~-]+$/.test(folder) ? folder : `'${folder}'`}/token`);
}

/**
 * Ask a question: {title, body (elements), confirm (the button's label; without it there is only "Close"), isDangerous,
 * act(question), onClose()}. `act` does it and returns what to tell; then the dialog closes, unless `act` asked the next
 * question, or returns nothing.
 */
export function ask(question) {
  leave();
  shown = question;
  setText(byId("dialog-title"), question.title);
  byId("dialog-body").replaceChildren(...question.body);
  byId("dialog-confirm").hidden = !question.confirm;
  setText(byId("dialog-confirm"), question.confirm ?? "");
  byId("dialog-confirm").className = question.isDangerous ? "danger" : "";
  setText(byId("dialog-cancel"), question.confirm ? "Cancel" : "Close");
  setText(byId("dialog-error"), "");
  showToken(Boolean(question.confirm) && !hasPermit());
  setBusy(false);
  if (!dialog.open) dialog.showModal();
  dialog.querySelector("#dialog-body input, #dialog-body textarea, #dialog-body select, #dialog-cancel")?.focus();
}

/** The dialog's buttons are called so from now on. */
export function rename(confirm, cancel) {
  setText(byId("dialog-confirm"), confirm);
  setText(byId("dialog-cancel"), cancel);
}

function showToken(isAsked) {
  byId("dialog-token").hidden = !isAsked;
  byId("dialog-token-field").required = isAsked;
  byId("dialog-token-field").value = "";
}

function setBusy(isBusy) {
  byId("dialog-confirm").disabled = isBusy;
  dialog.setAttribute("aria-busy", String(isBusy));
}

function leave() {
  const left = shown;
  shown = null;
  left?.onClose?.();
}

async function submit(question) {
  setText(byId("dialog-error"), "");
  setBusy(true);
  try {
    if (!byId("dialog-token").hidden) await logIn({ token: byId("dialog-token-field").value });
    if (shown === question) showToken(false);
    const words = await question.act(question);
    if (!words) return;
    if (shown === question) dialog.close();
    tell(words);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (shown !== question) return tell(error.message, true);
    if (error.isRefused) showToken(true);
    setText(byId("dialog-error"), error.message);
    if (error.isRefused) byId("dialog-token-field").focus();
  } finally {
    if (shown === question) setBusy(false);
  }
}

byId("dialog-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (shown) submit(shown);
});
byId("dialog-cancel").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", leave);
