// The user's saved prompts: asked for their {{variables}}, and kept in order in a dialog.
import * as api from "./api.js";
import { ask, sure } from "./dialogs.js";
import { h, icon, iconButton, announce } from "./dom.js";
import { t } from "./i18n.js";

const VARIABLE = /\{\{\s*([^{}]+?)\s*\}\}/g;
const NAME = /^[\p{L}\p{N}_-]{1,60}$/u;

/** The prompt with the values that the user gives for its variables; null when they think better of it. */
export async function withValues(title, text) {
  const names = [...new Set([...text.matchAll(VARIABLE)].map(([, variable]) => variable))];
  const values = await valuesOf(title, names.map((name) => [name, name]));
  return values && text.replace(VARIABLE, (_, name) => values[name]);
}

/** What the user gives for each `[name, label]`, by name; null when they think better of it. */
export async function valuesOf(title, wanted) {
  if (wanted.length === 0) return {};
  return ask(title, (finish) => {
    const fields = wanted.map((_, place) => h("input", { type: "text", id: `prompt-value-${place}`, autofocus: place === 0, autocomplete: "off" }));
    const give = () => finish(Object.fromEntries(wanted.map(([name], place) => [name, fields[place].value])));
    fields.forEach((field) => field.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); give(); } }));
    return [
      ...wanted.flatMap(([, label], place) => [h("label", { for: `prompt-value-${place}` }, label), fields[place]]),
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
