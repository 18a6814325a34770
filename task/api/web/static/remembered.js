// What the agent remembers of the user: the consent and the facts, in a dialog in which the user changes all of it.
import * as api from "./api.js";
import { ask, line, sure } from "./dialogs.js";
import { h, icon, iconButton, save } from "./dom.js";
import { t } from "./i18n.js";

/** A dialog that is shown again after each change, until the user closes it. */
export async function manageMemory() {
  let trouble = "";
  while (trouble !== null) trouble = await shown(await api.memory(), trouble);
}

function shown(memory, trouble) {
  const { consented, facts } = memory;
  return ask(t("Memory"), (finish) => {
    const change = async (made) => finish(await made.then(() => "", (error) => error.message));
    const edit = async ({ id, text }) => {
      const changed = await line(t("Edit this fact"), t("Fact"), text);
      if (changed) await change(api.changeMemory({ facts: { [id]: changed } }));
    };
    const remove = async () => {
      if (await sure(t("Delete the memory?"), t("All facts and your consent are deleted."), t("Delete"))) await change(api.deleteMemory());
    };
    const row = (fact) => h("li", {},
      h("button", { type: "button", class: "quiet", title: fact.source, onclick: () => edit(fact) }, icon("edit"), fact.text, " ", h("small", {}, fact.date.slice(0, 10))),
      iconButton("trash", t("Delete {name}", { name: fact.text }), () => change(api.changeMemory({ facts: { [fact.id]: null } }))));
    const file = new Blob([JSON.stringify(memory, null, 2)], { type: "application/json" });
    return [
      h("p", {}, consented ? t("The memory is on, with your consent of {date}.", { date: consented.slice(0, 10) })
        : t("The memory is off. If you consent, the agent may propose to keep facts about you, asks you about each one, and gives those that fit to the model in later conversations.")),
      trouble ? h("p", { class: "trouble", role: "alert" }, icon("warn"), trouble) : "",
      h("ul", { class: "prompts" }, [...facts].reverse().map(row)),
      h("footer", {},
        facts.length ? h("button", { type: "button", class: "quiet", onclick: () => save(file, "memory.json") }, t("Export")) : "",
        consented || facts.length ? h("button", { type: "button", class: "danger", onclick: remove }, t("Delete all")) : "",
        h("button", { type: "button", class: consented ? "quiet" : "primary", onclick: () => change(api.changeMemory({ consent: !consented })) }, consented ? t("Switch off") : t("I consent")),
        h("button", { type: "button", class: "quiet", autofocus: true, onclick: () => finish(null) }, t("Close"))),
    ];
  });
}
