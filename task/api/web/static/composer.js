// Where a message is written: text, files by button, drop and paste, model, persona and permission mode.
import * as api from "./api.js";
import { iconOf } from "./attachments.js";
import { bytes, h, icon, iconButton, announce, plain } from "./dom.js";
import { t } from "./i18n.js";
import { keep, recall } from "./memory.js";

const ASKS = /(?:^\/[^\s/]*|(?:^|(?<=\s))@\S*)$/u; // for a menu, before the caret
const MODES = { default: t("Ask when risky"), ask: t("Ask always"), read_only: t("Read only") };

/** `send({text, files})` is called with the message, `stop()` when the answer is to end. */
export class Composer {
  constructor({ send, stop }) {
    this.actions = { send, stop };
    this.files = [];
    this.answering = false;
    this.uploadBytes = Infinity;
    this.field = h("textarea", { id: "message", rows: 1, placeholder: t("Ask anything, or type / or @"), "aria-label": t("Message"), enterkeyhint: "send" });
    this.chips = h("ul", { class: "chips", "aria-label": t("Attached files"), hidden: true });
    this.picker = h("input", { type: "file", multiple: true, hidden: true, tabindex: "-1", "aria-label": t("Files") });
    this.go = iconButton("send", t("Send"), () => this.pressed(), { class: "icon-button go" });
    this.model = h("select", { "aria-label": t("Model"), title: t("Model") }, h("option", { value: "" }, t("Model")));
    this.mode = h("select", { class: "mode", "aria-label": t("Permissions"), title: t("What tools may do") },
      Object.entries(MODES).map(([value, label]) => h("option", { value }, label)));
    this.mode.value = recall("mode", "default");
    this.persona = h("select", { "aria-label": t("Persona"), title: t("Who answers"), hidden: true });
    this.conversation = null;
    this.trouble = h("p", { class: "trouble", role: "alert", hidden: true });
    this.element = h("form", { class: "composer", "aria-label": t("New message") }, this.trouble, this.chips, this.field,
      h("div", { class: "composer-row" },
        iconButton("clip", t("Attach files"), () => this.picker.click()), this.picker, this.model, this.persona, this.mode,
        h("span", { class: "grow" }), this.go));
    this.listen();
    this.update();
  }

  listen() {
    this.element.addEventListener("submit", (event) => event.preventDefault());
    this.field.addEventListener("input", () => { this.update(); this.complete(); });
    this.field.addEventListener("blur", () => this.menu?.close());
    this.field.addEventListener("keydown", (event) => {
      if (this.menu?.takes(event)) return;
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.answering) this.pressed();
    });
    this.field.addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      if (files.length === 0) return;
      event.preventDefault();
      this.add(files);
    });
    this.picker.addEventListener("change", () => {
      this.add([...this.picker.files]);
      this.picker.value = "";
    });
    this.model.addEventListener("change", () => keep("model", this.model.value));
    this.mode.addEventListener("change", () => keep("mode", this.mode.value));
    this.persona.addEventListener("change", () => this.keepPersona());
  }

  /** The size of the largest file that this agent takes. */
  limit(uploadBytes) {
    this.uploadBytes = uploadBytes;
  }

  /** A slash at the beginning of a message offers prompts and skills, an @ resources of MCP servers. */
  async complete() {
    const read = () => {
      const end = this.field.selectionStart;
      const word = ASKS.exec(this.field.value.slice(0, end))?.[0];
      return word ? { sign: word[0], word, end } : null;
    };
    if (!read()) return this.menu?.close();
    if (!this.menu) { // once: while it waits, a key may close the menu
      const { Picker } = await import("./picks.js");
      this.menu ??= new Picker(this, read);
    }
    if (read()) this.menu.show();
  }

  /** The models there are; the one chosen last stays chosen. */
  offer(names) {
    this.model.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    const last = recall("model");
    if (names.includes(last)) this.model.value = last;
  }

  /** The personas there are, if any; `usual` answers where none is chosen. */
  offerPersonas(names, usual, descriptions = {}) {
    this.usual = usual ?? "";
    const ids = usual ? names : ["", ...names];
    this.persona.replaceChildren(...ids.map((value) => h("option", { value, title: descriptions[value] },
      value ? [value, short(descriptions[value])].filter(Boolean).join(" – ") : t("No persona"))));
    this.persona.hidden = names.length === 0;
    this.showPersona();
  }

  /** Each conversation has a persona of its own; `id` is null until a new one has started. */
  enter(id) {
    this.conversation = id;
    this.showPersona();
  }

  /** The conversation has started, with the persona that was chosen for it. */
  started(id) {
    this.conversation = id;
    this.keepPersona();
  }

  forget(id) {
    keep(`persona.${id}`, null);
  }

  showPersona() {
    const chosen = this.conversation ? recall(`persona.${this.conversation}`) : null;
    this.persona.value = chosen ?? this.usual ?? "";
    if (this.persona.selectedIndex < 0) this.persona.value = this.usual ?? "";
  }

  keepPersona() {
    const chosen = this.persona.value;
    if (this.conversation) keep(`persona.${this.conversation}`, chosen === this.usual ? null : chosen);
  }

  get manner() {
    const chosen = { model: this.model.value, persona: this.persona.value, permission_mode: this.mode.value };
    return Object.fromEntries(Object.entries(chosen).filter(([, value]) => value));
  }

  pressed() {
    if (this.answering) {
      this.actions.stop();
      return;
    }
    const ready = this.kept();
    const text = this.field.value.trim() || ready.filter(({ skill }) => skill).map(({ title }) => title).join(" ");
    if (this.files.some((item) => !item.stored) || (!text && ready.length === 0)) return;
    this.fill("");
    this.actions.send({ text, files: ready });
  }

  /** Put a message into the field. */
  fill(text, files = []) {
    this.field.value = text;
    this.files = files.map((stored) => ({ name: stored.filename ?? stored.title, stored }));
    this.showFiles();
    this.fail("");
    this.update();
  }

  /** A button that writes down what is said; only where the agent has a deployment for it. */
  offerVoice() {
    const button = iconButton("mic", t("Speak a message"), async () => {
      const { Voice } = await import("./voice.js");
      this.voice ??= new Voice(button, (text) => this.write(text), (message) => this.fail(message));
      await this.voice.toggle();
    }, { "aria-pressed": "false", class: "icon-button mic" });
    const ends = h("span", { class: "ends" });
    this.go.replaceWith(ends);
    ends.append(button, this.go);
  }

  /** Add words to what stands in the field; the user reads and sends them. */
  write(text) {
    this.field.value = [this.field.value.trimEnd(), text].filter(Boolean).join(" ");
    this.update();
    this.field.focus();
  }

  kept() {
    return this.files.filter((item) => item.stored).map((item) => item.stored);
  }

  add(files) {
    const fitting = files.filter((file) => file.size <= this.uploadBytes);
    const tooLarge = files.find((file) => file.size > this.uploadBytes);
    if (tooLarge) {
      this.fail(t("{name} is {size}. The largest file that can be attached is {limit}: attach a smaller one, or a part of it.",
        { name: tooLarge.name, size: bytes(tooLarge.size), limit: bytes(this.uploadBytes) }));
    }
    for (const file of fitting) this.pick(file.name || t("pasted picture.png"), (signal) => api.upload(file, signal), file.size);
    this.field.focus();
  }

  /** Put beside the message what `work(signal)` gives: a stored file, a quotation, or a skill. */
  async pick(name, work, size = 0) {
    const item = { name, size, leaving: new AbortController() };
    this.files.push(item);
    this.showFiles();
    try {
      item.stored = await work(item.leaving.signal);
      announce(t("{name} is attached", { name: item.name }));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.files = this.files.filter((other) => other !== item);
      this.fail(`${item.name}: ${error.message}`);
    }
    this.showFiles();
  }

  showFiles() {
    this.chips.replaceChildren(...this.files.map((item) => h("li", { class: item.stored ? "chip" : "chip loading" }, icon(iconOf(item.stored ?? {})),
      h("span", {}, plain(item.name)), item.size ? h("small", {}, bytes(item.size)) : "",
      iconButton("cross", t("Remove {name}", { name: item.name }), () => this.drop(item)))));
    this.chips.hidden = this.files.length === 0;
    this.chips.scrollTop = this.chips.scrollHeight;
    this.update();
  }

  drop(item) {
    item.leaving?.abort();
    this.files = this.files.filter((other) => other !== item);
    this.showFiles();
    this.field.focus();
  }

  busy(answering) {
    this.answering = answering;
    const label = answering ? t("Stop") : t("Send");
    this.go.replaceChildren(icon(answering ? "stop" : "send"));
    this.go.setAttribute("aria-label", label);
    this.go.title = label;
    this.go.classList.toggle("stopping", answering);
    this.update();
  }

  update() {
    const loading = this.files.some((item) => !item.stored);
    const empty = !this.field.value.trim() && this.files.length === 0;
    this.go.disabled = !this.answering && (loading || empty);
    this.field.style.height = "auto";
    this.field.style.height = `${Math.min(this.field.scrollHeight, 220)}px`;
  }

  fail(message) {
    this.trouble.replaceChildren(icon("warn"), h("span", {}, message));
    this.trouble.hidden = !message;
  }
}

const short = (text = "") => (text.length > 60 ? `${text.slice(0, 59)}…` : text);
