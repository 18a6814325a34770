// The menu of the message field: after a slash saved prompts, skills and prompts of MCP servers, after an @ their resources.
import * as api from "./api.js";
import { announce, h, plain } from "./dom.js";
import { t } from "./i18n.js";
import { managePrompts, valuesOf, withValues } from "./prompts.js";

const ID = "picks";
const MOST = 100; // entries shown at once
const VARIABLE = /\{([+#./;?&]?)([\w.-]+)[^{}]*\}/g; // of a template's address
const MENUS = {
  "/": [savedPrompts, skills, () => ofServers("/")],
  "@": [() => ofServers("@")],
};

async function savedPrompts() {
  const { prompts } = await api.prompts();
  return prompts.map(({ name, text }) => ({
    label: `/${name}`, about: text, kind: t("prompt"),
    choose: async (picker) => picker.write((await withValues(`/${name}`, text)) ?? picker.typed.word),
  }));
}

async function skills() {
  const found = (await api.skills()).skills;
  return found.map(({ name, description }) => ({
    label: `/${name}`, about: description, kind: t("skill"),
    choose: (picker) => picker.add(`/${name}`, async () => ({ title: `/${name}`, skill: name })),
  }));
}

async function ofServers(sign) {
  const { picks } = await api.picks();
  return picks.filter(({ pick }) => pick.startsWith(sign)).map(({ pick, title, description, arguments: wanted }) => ({
    label: pick, about: [sign === "@" && title, description].filter(Boolean).join(" – "), kind: pick.slice(1, pick.indexOf(":")),
    choose: async (picker) => {
      const variables = sign === "@" ? [...pick.matchAll(VARIABLE)].map(([, , name]) => [name, name])
        : Object.entries(wanted).map(([name, about]) => [name, plain(about ? `${name}: ${about}` : name)]);
      const values = await valuesOf(plain(sign === "@" ? title : pick), variables);
      if (!values) return;
      const filled = sign === "/" ? pick
        : pick.replace(VARIABLE, (_, mark, name) => (mark === "+" ? encodeURI : encodeURIComponent)(values[name]));
      picker.add(filled, (signal) => api.picked(filled, sign === "/" ? values : {}, signal));
    },
  }));
}

/** `read()` gives what stands before the caret and asks for a menu: its `sign`, the `word` and its place; else null. */
export class Picker {
  constructor(composer, read) {
    this.composer = composer;
    this.field = composer.field;
    this.read = read;
    this.sign = null; // of the open menu
    this.options = [];
    this.list = h("ul", { class: "picks", id: ID, role: "listbox", "aria-label": t("Prompts, skills and resources"), hidden: true });
    this.list.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus
    composer.element.append(this.list);
    this.field.setAttribute("aria-controls", ID);
    this.field.setAttribute("aria-autocomplete", "list");
  }

  /** Open the menu that was asked for, or narrow it to what was typed; a slow server's entries come later. */
  show() {
    const { sign } = this.read();
    this.moved = false; // an entry that was moved to stays marked when others come
    if (this.sign === sign) return this.draw();
    this.sign = sign;
    const found = MENUS[sign].map(() => []);
    this.found = found;
    MENUS[sign].forEach((load, place) => load().then((entries) => {
      found[place] = entries;
      if (this.found === found && this.read()?.sign === sign) this.draw();
    }, () => {})); // the message can be sent without
  }

  draw() {
    const typed = this.read().word.slice(1).toLowerCase();
    const place = ({ label, about }) => (this.sign === "@" ? `${label} ${about}` : label).toLowerCase().indexOf(typed, 1);
    const fitting = this.found.flat().filter((entry) => place(entry) > 0).sort((a, b) => (place(b) === 1) - (place(a) === 1));
    const marked = this.moved && this.options[this.place]?.textContent;
    const shown = fitting.slice(0, MOST);
    if (this.sign === "/" && (fitting.length > 0 || typed === "")) shown.push({ label: t("Manage prompts…"), choose: (picker) => picker.manage() });
    this.options = shown.map(({ label, about, kind, choose }, number) => h("li", { role: "option", id: `${ID}-${number}`, onclick: () => this.use(choose) },
      h("strong", { dir: "auto" }, plain(label)), h("span", { dir: "auto" }, plain(about)), h("small", { dir: "auto" }, plain(kind))));
    this.list.replaceChildren(...this.options);
    this.list.hidden = shown.length === 0;
    if (this.list.hidden) return;
    this.mark(Math.max(0, this.options.findIndex(({ textContent }) => textContent === marked)));
    announce(t("{count} entry | {count} entries", { count: fitting.length }));
  }

  close() {
    this.sign = null;
    this.found = null;
    this.options = [];
    this.list.hidden = true;
    this.field.removeAttribute("aria-activedescendant");
  }

  mark(place) {
    this.place = (place + this.options.length) % this.options.length;
    this.options.forEach((option, number) => option.setAttribute("aria-selected", String(number === this.place)));
    this.field.setAttribute("aria-activedescendant", this.options[this.place].id);
    this.options[this.place].scrollIntoView({ block: "nearest" });
  }

  /** Whether the key was meant for the menu. */
  takes(event) {
    if (this.list.hidden || event.isComposing) return false;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      this.moved = true;
      this.mark(this.place + step);
    }
    else if (event.key === "Escape") this.close();
    else if (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey)) this.options[this.place].click();
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  }

  async use(choose) {
    this.typed = this.read();
    this.close();
    if (this.typed) await choose(this);
    this.field.focus();
  }

  /** Put a text in place of the typed word. */
  write(text) {
    const { word, end } = this.typed;
    this.field.setRangeText(text, end - word.length, end, "end");
    this.composer.update();
  }

  /** Put what `work` gives beside the files of the message. */
  add(name, work) {
    this.write("");
    this.composer.pick(name, work);
  }

  async manage() {
    this.write("");
    await managePrompts().catch((error) => this.composer.fail(error.message));
  }
}
