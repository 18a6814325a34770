// The user's saved prompts: completed after a slash, asked for their {{variables}}, and kept in order in a dialog.
import * as api from "./api.js";
import { ask, sure } from "./dialogs.js";
import { h, icon, iconButton, announce } from "./dom.js";
import { t } from "./i18n.js";

const VARIABLE = /\{\{\s*([^{}]+?)\s*\}\}/g;
const NAME = /^[\p{L}\p{N}_-]{1,60}$/u;
const ID = "prompt-list";

/**
 * The list above the message field; `insert(text)` puts a prompt in place of what was typed,
 * `fail(message)` shows what went wrong.
 */
export class PromptCompletion {
  constructor(field, insert, fail) {
    this.field = field;
    this.insert = insert;
    this.fail = fail;
    this.place = 0;
    this.saved = null; // the prompts, for as long as the list is open
    this.list = h("ul", { class: "prompt-list", id: ID, role: "listbox", "aria-label": t("Your prompts"), hidden: true });
    this.list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
    field.closest("form").append(this.list);
    field.setAttribute("aria-controls", ID);
    field.setAttribute("aria-autocomplete", "list");
  }

  /** `asked()` is the name that has been typed so far, null when it is none any more. */
  async show(asked) {
    this.saved ??= api.prompts();
    const { saved } = this;
    const { prompts } = await saved;
    const typed = asked();
    if (typed === null || saved !== this.saved) return; // the list has been closed since
    const fitting = prompts.filter(({ name }) => name.toLowerCase().startsWith(typed.toLowerCase()));
    const offers = fitting.map((prompt) => [`/${prompt.name}`, prompt.text, () => this.use(prompt)]);
    if (fitting.length > 0 || typed === "") offers.push([t("Manage prompts…"), "", () => this.manage()]);
    this.options = offers.map(([name, text, choose], place) => h("li", { role: "option", id: `${ID}-${place}`, onclick: choose }, h("strong", {}, name), h("span", {}, text)));
    this.list.replaceChildren(...this.options);
    this.list.hidden = offers.length === 0;
    if (this.list.hidden) return;
    this.mark(0);
    announce(t("{count} prompt | {count} prompts", { count: fitting.length }));
  }

  close() {
    this.saved = null;
    this.list.hidden = true;
    this.field.removeAttribute("aria-activedescendant");
  }

  mark(place) {
    this.place = (place + this.options.length) % this.options.length;
    this.options.forEach((option, number) => option.setAttribute("aria-selected", String(number === this.place)));
    this.field.setAttribute("aria-activedescendant", this.options[this.place].id);
    this.options[this.place].scrollIntoView({ block: "nearest" });
  }

  /** Whether the key was meant for the list. */
  takes(event) {
    if (this.list.hidden || event.isComposing) return false;
    if (event.key === "ArrowDown") this.mark(this.place + 1);
    else if (event.key === "ArrowUp") this.mark(this.place - 1);
    else if (event.key === "Escape") this.close();
    else if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey)) this.options[this.place].click();
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  async use({ name, text }) {
    this.close();
    const filled = await withValues(name, text);
    if (filled !== null) this.insert(filled);
    this.field.focus();
  }

  async manage() {
    this.close();
    this.insert("");
    await managePrompts().catch((error) => this.fail(error.message));
    this.field.focus();
  }
}

/** The prompt with the values that the user gives for its variables; null when they think better of it. */
async function withValues(name, text) {
  const names = [...new Set([...text.matchAll(VARIABLE)].map(([, variable]) => variable))];
  if (names.length === 0) return text;
  return ask(`/${name}`, (finish) => {
    const fields = names.map((variable, place) => h("input", { type: "text", id: `prompt-value-${place}`, autofocus: place === 0, autocomplete: "off" }));
    const give = () => finish(text.replace(VARIABLE, (_, variable) => fields[names.indexOf(variable)].value));
    fields.forEach((field) => field.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); give(); } }));
    return [
      ...names.flatMap((variable, place) => [h("label", { for: `prompt-value-${place}` }, variable), fields[place]]),
      h("footer", {}, h("button", { type: "button", class: "quiet", onclick: () => finish(null) }, t("Cancel")),
        h("button", { type: "button", class: "primary", onclick: give }, t("Insert"))),
    ];
  });
}

/** A dialog in which prompts are written, changed and deleted. */
export async function managePrompts() {
  let chosen = { name: "", text: "" };
  while (chosen) chosen = await edited((await api.prompts()).prompts, chosen);
}

function edited(prompts, { name: before, text: content, trouble = "" }) {
  return ask(t("Your prompts"), (finish) => {
    const name = h("input", { type: "text", id: "prompt-name", value: before, autocomplete: "off", maxlength: 60, autofocus: true });
    const text = h("textarea", { id: "prompt-text", rows: 6, value: content, maxlength: 20000 });
    const save = async () => {
      const given = { name: name.value.trim().replace(/^\//, ""), text: text.value };
      if (!NAME.test(given.name)) finish({ ...given, trouble: t("A name has letters, digits, - and _ only, and no spaces.") });
      else if (!given.text.trim()) finish({ ...given, trouble: t("Write the text of the prompt.") });
      else finish(await kept(given));
    };
    const row = (prompt) => h("li", {}, h("button", { type: "button", class: "quiet", onclick: () => finish(prompt) }, icon("edit"), `/${prompt.name}`),
      iconButton("trash", t("Delete {name}", { name: prompt.name }), async () => finish(await dropped(prompt))));
    return [
      h("ul", { class: "prompts" }, prompts.map(row)),
      trouble ? h("p", { class: "trouble", role: "alert" }, icon("warn"), trouble) : "",
      h("label", { for: "prompt-name" }, t("Name, typed after a slash")), name,
      h("label", { for: "prompt-text" }, t("Text; {{variables}} are asked for before it is used")), text,
      h("footer", {}, h("button", { type: "button", class: "quiet", onclick: () => finish(null) }, t("Close")),
        h("button", { type: "button", class: "primary", onclick: save }, t("Save"))),
    ];
  });
}

async function kept({ name, text }) {
  try {
    await api.savePrompt(name, text);
    announce(t("Saved"));
    return { name: "", text: "" };
  } catch (error) {
    return { name, text, trouble: error.message };
  }
}

async function dropped({ name }) {
  try {
    if (await sure(t("Delete this prompt?"), `/${name}`, t("Delete"))) await api.deletePrompt(name);
    return { name: "", text: "" };
  } catch (error) {
    return { name: "", text: "", trouble: error.message };
  }
}
