// The list of conversations: find, rename, delete, begin another.
import * as api from "./api.js";
import { line, sure } from "./dialogs.js";
import { day, h, icon, iconButton, announce } from "./dom.js";

/** `chosen()` is called when a conversation was followed, `removed(sessionId)` when one was deleted. */
export class Sidebar {
  constructor({ chosen, removed, tools }) {
    this.listeners = { chosen, removed };
    this.rows = [];
    this.cursor = null;
    this.current = null;
    this.list = h("div", { class: "conversations" });
    this.element = h("aside", { class: "sidebar", id: "sidebar", "aria-label": "Conversations" },
      h("header", {}, h("a", { class: "brand", href: "#/" }, h("img", { src: "static/icon.svg", alt: "", width: 24, height: 24 }), "Agent"),
        iconButton("cross", "Close the list", () => this.toggle(false), { class: "icon-button only-narrow" })),
      h("a", { class: "new", href: "#/", onclick: () => this.toggle(false) }, icon("plus"), "New conversation"),
      h("nav", { "aria-label": "Conversations" }, this.list),
      h("footer", {}, h("a", { class: "quiet", href: "#/traces", onclick: () => this.toggle(false) }, icon("trace"), "Traces"), ...tools));
    this.veil = h("div", { class: "veil", onclick: () => this.toggle(false) });
    this.element.addEventListener("keydown", (event) => { if (event.key === "Escape") this.toggle(false); });
  }

  toggle(open) {
    document.body.classList.toggle("with-sidebar", open);
    document.querySelector("[aria-controls=sidebar]")?.setAttribute("aria-expanded", String(open));
    if (open) this.element.querySelector(".new").focus();
  }

  async load() {
    try {
      const page = await api.sessions(null);
      this.rows = page.sessions;
      this.cursor = page.cursor;
      this.draw();
    } catch (error) {
      this.list.replaceChildren(h("p", { class: "trouble" }, icon("warn"), error.message),
        h("button", { type: "button", class: "quiet", onclick: () => this.load() }, "Try again"));
    }
  }

  async more() {
    const page = await api.sessions(this.cursor);
    this.rows.push(...page.sessions);
    this.cursor = page.cursor;
    this.draw();
  }

  mark(sessionId) {
    this.current = sessionId;
    for (const link of this.list.querySelectorAll("a")) {
      if (link.dataset.session === sessionId) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  /** The conversation that stands `steps` below the current one. */
  neighbour(steps) {
    const place = this.rows.findIndex((row) => row.session_id === this.current);
    return this.rows[Math.max(0, place + steps)]?.session_id ?? null;
  }

  titleOf(sessionId) {
    return this.rows.find((row) => row.session_id === sessionId)?.title ?? "";
  }

  draw() {
    if (this.rows.length === 0) {
      this.list.replaceChildren(h("p", { class: "empty" }, "Your conversations will be listed here."));
      return;
    }
    const children = [];
    let group = null;
    for (const row of this.rows) {
      const name = day(row.updated_at);
      if (name !== group) children.push(h("h2", {}, name));
      group = name;
      children.push(this.row(row));
    }
    if (this.cursor) children.push(h("button", { type: "button", class: "quiet", onclick: () => this.more() }, "Show more"));
    this.list.replaceChildren(...children);
    this.mark(this.current);
  }

  row(row) {
    const title = row.title || "Untitled";
    const link = h("a", { href: `#/c/${row.session_id}`, onclick: () => { this.toggle(false); this.listeners.chosen(); }, title }, title);
    link.dataset.session = row.session_id;
    const branch = row.parent ? h("span", { class: "branch", role: "img", title: "A branch of another conversation", "aria-label": "branch" }, "⑂") : "";
    return h("div", { class: "conversation" }, link, branch,
      iconButton("edit", `Rename ${title}`, () => this.rename(row)), iconButton("trash", `Delete ${title}`, () => this.remove(row)));
  }

  async rename(row) {
    const title = await line("Rename", "Title", row.title);
    if (title === null) return;
    await this.tried(() => api.rename(row.session_id, title));
    await this.load();
    this.listeners.chosen();
    this.list.querySelector(`[data-session="${CSS.escape(row.session_id)}"]`)?.focus();
  }

  async remove(row) {
    const text = `“${row.title || "Untitled"}” is deleted with its messages and traces. This cannot be undone.`;
    if (!await sure("Delete this conversation?", text, "Delete")) return;
    if (!await this.tried(() => api.remove(row.session_id))) return;
    announce("Deleted");
    this.listeners.removed(row.session_id);
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
