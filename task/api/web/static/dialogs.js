// Small dialogs: a question, a name, a key. The browser's own <dialog> keeps focus and closes on Escape.
import { h, iconButton } from "./dom.js";
import { chooseLanguage, chosenLanguage, LANGUAGES, t } from "./i18n.js";

/** Show a dialog; resolves with what a button gave, null when it was closed otherwise. */
export function ask(title, build, className = null) {
  return new Promise((done) => {
    const heading = h("h2", { id: "dialog-title" }, title);
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", class: className });
    const finish = (value) => { dialog.close(); done(value); };
    const form = h("form", { method: "dialog" }, h("header", {}, heading, iconButton("cross", t("Close"), () => finish(null))));
    form.append(...build(finish));
    form.addEventListener("submit", (event) => event.preventDefault());
    dialog.append(form);
    dialog.addEventListener("close", () => { dialog.remove(); restoreCaret(); done(null); });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) finish(null); });
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("[autofocus]") ?? dialog.querySelector("footer button"))?.focus();
  });
}

/** Chromium sometimes leaves the caret at the removed dialog's place: the field has the focus, and typing does nothing. */
function restoreCaret() {
  const field = document.activeElement;
  if (Number.isInteger(field.selectionStart)) field.setSelectionRange(field.selectionStart, field.selectionEnd, field.selectionDirection);
}

/** Yes or no. */
export async function sure(title, text, yes) {
  return Boolean(await ask(title, (finish) => [
    h("p", {}, text),
    h("footer", {},
      h("button", { type: "button", class: "quiet", onclick: () => finish(null) }, t("Cancel")),
      h("button", { type: "button", class: "danger", onclick: () => finish(true) }, yes)),
  ]));
}

/** A line of text, null when the user thinks better of it. */
export function line(title, label, value, { yes = t("Save"), secret = false, text = null } = {}) {
  return ask(title, (finish) => {
    const field = h("input", { type: secret ? "password" : "text", value, id: "dialog-line", autofocus: true, autocomplete: "off", maxlength: 500 });
    const give = () => finish(field.value.trim() || null);
    field.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); give(); } });
    queueMicrotask(() => field.select());
    return [
      text ? h("p", {}, text) : "",
      h("label", { for: "dialog-line" }, label), field,
      h("footer", {},
        h("button", { type: "button", class: "quiet", onclick: () => finish(null) }, t("Cancel")),
        h("button", { type: "button", class: "primary", onclick: give }, yes)),
    ];
  });
}

let keyAsked = null;

/** The user's API key; asked once, however many requests wait for it. */
export function askKey() {
  keyAsked ??= line(t("Your key"), t("API key"), "", {
    yes: t("Use this key"), secret: true,
    text: t("This agent needs a key. The key stays in this tab until you close it, and is sent only to this agent."),
  }).finally(() => { keyAsked = null; });
  return keyAsked;
}

/** What the keyboard does, and the language of the page. */
export function shortcuts() {
  const keys = [
    ["Enter", t("send")], ["Shift Enter", t("new line")], ["Esc", t("stop the answer")], ["/", t("write a message")],
    ["Ctrl K", t("search conversations")], ["Alt N", t("new conversation")], ["Alt ↑ / Alt ↓", t("previous, next conversation")], ["?", t("this list")],
  ];
  const language = h("select", { id: "language", onchange: () => chooseLanguage(language.value || null) },
    h("option", { value: "" }, t("As in the browser")),
    Object.entries(LANGUAGES).map(([name, label]) => h("option", { value: name, lang: name }, label)));
  language.value = chosenLanguage() ?? "";
  return ask(t("Help and language"), (finish) => [
    h("h3", {}, t("Keyboard")),
    h("dl", { class: "keys" }, keys.map(([key, does]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, does)])),
    h("label", { for: "language" }, t("Language of this page")), language,
    h("footer", {}, h("button", { type: "button", class: "primary", onclick: () => finish(null) }, t("Close"))),
  ]);
}
