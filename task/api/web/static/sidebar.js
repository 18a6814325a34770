// The list of conversations: found, pinned, selected, marked, and where another begins.
import * as api from "./api.js";
import { day, h, icon, iconButton, announce } from "./dom.js";
import { t } from "./i18n.js";
import { actions, forAll, removeMany } from "./managing.js";
import { menuButton } from "./menu.js";

const TYPING = 180; // milliseconds after the last key
const TITLE_WAITS = [1500, 3500, 8000]; // when a generated title may have come

/** `chosen()` is called when a conversation was followed, `removed(sessionId, family)` when one was deleted. */
export class Sidebar {
  constructor({ chosen, removed, tools }) {
    this.listeners = { chosen, removed };
    this.rows = [];
    this.cursor = null;
    this.current = null;
    this.family = null;
    this.startedBy = "own";
    this.selected = null; // the ids that are ticked, null while none can be
    this.loads = 0;
    this.titles = new Map();
    this.list = h("div", { class: "conversations" });
    this.field = h("input", { type: "search", class: "search", placeholder: t("Search"), "aria-label": t("Search conversations"), autocomplete: "off", maxlength: 200 });
    this.field.addEventListener("input", () => { clearTimeout(this.typing); this.typing = setTimeout(() => this.load(), TYPING); });
    this.bar = h("div", { class: "selection", hidden: true });
    this.element = h("aside", { class: "sidebar", id: "sidebar", "aria-label": t("Conversations") },
      h("header", {}, h("a", { class: "brand", href: "#/" }, h("img", { src: new URL("icon.svg", import.meta.url), alt: "", width: 24, height: 24 }), "Agent"),
        iconButton("cross", t("Close the list"), () => this.toggle(false), { class: "icon-button only-narrow" })),
      h("a", { class: "new", href: "#/", onclick: () => this.toggle(false) }, icon("plus"), t("New conversation")),
      h("div", { class: "finding", role: "search" }, icon("search"), this.field, menuButton(t("All conversations"), () => forAll(this))),
      h("nav", { "aria-label": t("Conversations") }, this.list), this.bar,
      h("footer", {}, h("a", { class: "quiet", href: "#/traces", onclick: () => this.toggle(false) }, icon("trace"), t("Traces")), ...tools));
    this.veil = h("div", { class: "veil", onclick: () => this.toggle(false) });
    this.element.addEventListener("keydown", (event) => this.pressed(event));
  }

  get words() {
    return this.field.value.trim();
  }

  toggle(open) {
    document.body.classList.toggle("with-sidebar", open);
    document.querySelector("[aria-controls=sidebar]")?.setAttribute("aria-expanded", String(open));
    if (open) this.element.querySelector(".new").focus();
  }

  search() {
    if (matchMedia("(max-width: 800px)").matches) this.toggle(true);
    this.field.focus();
    this.field.select();
  }

  pressed(event) {
    const isSearching = event.target === this.field;
    if (event.key === "Escape") this.leave(event);
    else if (event.key === "Enter" && isSearching) this.open(this.list.querySelector("a"));
    else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !event.altKey) {
      const links = [this.field, ...this.list.querySelectorAll("a, input")];
      const place = links.indexOf(document.activeElement);
      if (place < 0) return;
      links[Math.min(Math.max(place + (event.key === "ArrowDown" ? 1 : -1), 0), links.length - 1)].focus();
      event.preventDefault();
    }
  }

  open(link) {
    link?.focus();
    link?.click();
  }

  /** Escape takes back one thing: the words of a search, the ticks, the drawer. */
  leave(event) {
    if (this.field.value) {
      this.field.value = "";
      this.load();
    } else if (this.selected) this.select(false);
    else if (document.body.classList.contains("with-sidebar")) this.toggle(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  async load() {
    this.loads += 1;
    const { words, startedBy, loads } = this;
    const which = { started_by: startedBy, families: true };
    try {
      const [pinned, page] = await Promise.all(words
        ? [{ sessions: [] }, api.sessions({ ...which, q: words })]
        : [api.sessions({ ...which, pinned: true, limit: 100 }), api.sessions({ ...which, pinned: false })]);
      if (loads !== this.loads) return;
      this.rows = [...pinned.sessions, ...page.sessions];
      this.cursor = page.cursor;
      this.draw();
      if (words) announce(t("{count} conversation found | {count} conversations found", { count: this.rows.length }));
    } catch (error) {
      if (loads !== this.loads) return;
      this.list.replaceChildren(h("p", { class: "trouble" }, icon("warn"), error.message),
        h("button", { type: "button", class: "quiet", onclick: () => this.load() }, t("Try again")));
    }
  }

  async more() {
    const which = { started_by: this.startedBy, families: true, ...(this.words ? { q: this.words } : { pinned: false }) };
    await this.tried(async () => {
      const page = await api.sessions(which, this.cursor);
      this.rows.push(...page.sessions);
      this.cursor = page.cursor;
      this.draw();
    });
  }

  /** Look for another title of this conversation a few times. */
  async awaitTitle(sessionId) {
    const before = this.titleOf(sessionId);
    for (const wait of TITLE_WAITS) {
      await new Promise((done) => { setTimeout(done, wait); });
      await this.load();
      if (this.titleOf(sessionId) !== before) break;
    }
  }

  /** Mark the conversation that is shown; the list has its family by the session that was used last. */
  mark(sessionId, family = null) {
    this.current = sessionId;
    this.family = family;
    for (const link of this.list.querySelectorAll("a")) {
      if (this.isCurrent(link.dataset.session, link.dataset.family)) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  isCurrent(sessionId, family) {
    return sessionId === this.current || (family !== null && family === this.family);
  }

  /** The conversation that stands `steps` below the current one. */
  neighbour(steps) {
    const place = this.rows.findIndex((row) => this.isCurrent(row.session_id, row.family));
    return this.rows[Math.max(0, place + steps)]?.session_id ?? null;
  }

  titleOf(sessionId) {
    return this.titles.get(sessionId) ?? this.titles.get(this.family) ?? "";
  }

  draw() {
    const families = new Set();
    this.rows = this.rows.filter(({ family }) => !families.has(family) && families.add(family)); // a search finds each version
    for (const row of this.rows) this.titles.set(row.session_id, row.title).set(row.family, row.title);
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const place = focused?.closest(".conversation")?.querySelector("a")?.dataset.session;
    const children = this.startedBy === "own" ? [] : [h("p", { class: "origin" }, t("From programs"),
      h("button", { type: "button", class: "quiet small", onclick: () => this.show("own") }, t("Back to yours")))];
    let group = null;
    for (const row of this.rows) {
      const name = this.words ? t("Found") : row.pinned ? t("Pinned") : day(row.updated_at);
      if (name !== group) children.push(h("h2", {}, name));
      group = name;
      children.push(this.selected ? this.choice(row) : this.row(row));
    }
    if (this.rows.length === 0) children.push(h("p", { class: "empty" }, this.nothing()));
    if (this.cursor) children.push(h("button", { type: "button", class: "quiet", onclick: () => this.more() }, t("Show more")));
    this.list.replaceChildren(...children);
    this.mark(this.current, this.family);
    const link = place ? this.linkTo(place) : null;
    (focused?.tagName === "BUTTON" ? link?.parentElement.querySelector("button") : link)?.focus();
  }

  linkTo(sessionId) {
    return this.list.querySelector(`[data-session="${CSS.escape(sessionId)}"]`);
  }

  nothing() {
    if (this.words) return t("No conversation has these words.");
    return this.startedBy === "own" ? t("Your conversations will be listed here.") : t("No program has used this agent in your name.");
  }

  row(row) {
    const title = row.title || t("Untitled");
    const link = h("a", { href: `#/c/${row.session_id}`, onclick: () => { this.toggle(false); this.listeners.chosen(); }, title },
      h("span", {}, title), row.snippet && this.words ? h("small", {}, marked(row.snippet, this.words)) : "");
    Object.assign(link.dataset, { session: row.session_id, family: row.family });
    return h("div", { class: "conversation" }, link, menuButton(t("Actions for {title}", { title }), () => actions(this, row)));
  }

  choice(row) {
    const box = h("input", { type: "checkbox", checked: this.selected.has(row.session_id) });
    box.addEventListener("change", () => {
      if (box.checked) this.selected.add(row.session_id);
      else this.selected.delete(row.session_id);
      this.drawBar();
    });
    return h("label", { class: "conversation" }, box, h("span", {}, row.title || t("Untitled")));
  }

  /** The row of the conversation that is shown, as the version that is shown. */
  currentRow() {
    const row = this.rows.find((each) => this.isCurrent(each.session_id, each.family));
    return { pinned: false, title: this.titleOf(this.current), family: this.family, ...row, session_id: this.current };
  }

  show(startedBy) {
    this.startedBy = startedBy;
    this.select(false);
    this.load();
  }

  select(on) {
    this.selected = on ? new Set() : null;
    this.draw();
    this.drawBar();
    (on ? this.list.querySelector("input") : this.field)?.focus();
  }

  drawBar() {
    this.bar.hidden = !this.selected;
    if (!this.selected) return;
    const count = this.selected.size;
    this.bar.replaceChildren(h("span", { role: "status" }, t("{count} selected", { count })),
      h("button", { type: "button", class: "quiet small", onclick: () => this.select(false) }, t("Cancel")),
      h("button", { type: "button", class: "danger small", disabled: count === 0, onclick: () => removeMany(this, [...this.selected]) }, t("Delete")));
  }

  async loadAt(row) {
    await this.load();
    this.listeners.chosen();
    this.linkTo(row.session_id)?.focus();
  }

  /** These conversations are deleted. */
  async forget(ids) {
    for (const id of ids) this.listeners.removed(id, this.rows.find((row) => row.session_id === id)?.family);
    this.selected = null;
    this.drawBar();
    await this.load();
    this.element.querySelector(".new").focus();
  }

  async tried(work) {
    try {
      await work();
      return true;
    } catch (error) {
      this.list.prepend(h("p", { class: "trouble", role: "alert" }, icon("warn"), error.message));
      return false;
    }
  }
}

/** The text with the words of a search marked. */
function marked(text, words) {
  const parts = words.split(/\s+/).filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (parts.length === 0) return text;
  const pieces = text.split(new RegExp(`(${parts.join("|")})`, "giu"));
  return pieces.map((piece, place) => (place % 2 ? h("mark", {}, piece) : piece));
}
