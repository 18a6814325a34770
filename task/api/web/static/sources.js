// The sources of an answer: a list below it, and the numbers in its text, such as [1] or [2, 3], that open a passage.
import { h, icon } from "./dom.js";
import { t } from "./i18n.js";

const CITED = /\[\d{1,3}(?:\s*[,;]\s*\d{1,3})*\]/g;
const NUMBERED = /^\s*\[(\d{1,3})\]\s*/;
/** Show passages with their documents beside the conversation. */
const passages = async (items, opener) => (await import("./viewer.js")).openPassages(items, opener);
const KEPT = "a, button, code, pre, .math";

export const isCitation = (item) => Boolean(item.reference_url && item.data);

export class Sources {
  constructor() {
    this.items = [];
    this.element = h("div", { class: "sources", hidden: true, "aria-label": t("Sources"), role: "group" });
  }

  /** Whether it is one that was not there before. */
  add(item) {
    if (this.items.some((other) => other.title === item.title && other.data === item.data)) return false;
    this.items.push(item);
    this.element.hidden = false;
    this.element.append(h(
      "button", { type: "button", class: "chip", onclick: (event) => passages([item], event.currentTarget), title: shortened(item.data), "aria-haspopup": "dialog" },
      icon("quote"), h("span", {}, item.title || t("Source")),
    ));
    return true;
  }

  /** The passages of that number. */
  numbered(number) {
    return this.items.filter((item) => NUMBERED.exec(item.title ?? "")?.[1] === number);
  }

  /** Make buttons of the numbers in the text below the element; a number without a source stays text. */
  link(element) {
    if (this.items.length === 0) return;
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (node.data.includes("[") && !node.parentElement.closest(KEPT)) found.push(node);
    }
    found.forEach((node) => this.replace(node));
  }

  replace(node) {
    const parts = [];
    let done = 0;
    for (const match of node.data.matchAll(CITED)) {
      const numbers = match[0].match(/\d+/g).map((text) => String(Number(text)));
      if (!numbers.some((number) => this.numbered(number).length)) continue;
      parts.push(node.data.slice(done, match.index), ...numbers.map((number) => this.mark(number)));
      done = match.index + match[0].length;
    }
    if (parts.length) node.replaceWith(...parts, node.data.slice(done));
  }

  mark(number) {
    const items = this.numbered(number);
    if (items.length === 0) return `[${number}]`;
    const names = items.map((item) => item.title.replace(NUMBERED, "")).join(", ");
    return h("button", {
      type: "button", class: "cite", onclick: (event) => passages(this.numbered(number), event.currentTarget), "aria-haspopup": "dialog",
      "aria-label": t("Source {number}: {names}", { number, names }), title: `${names}\n${shortened(items[0].data)}`,
    }, number);
  }
}

const shortened = (text) => (text.length > 240 ? `${text.slice(0, 239)}…` : text);
