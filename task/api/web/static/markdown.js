// Text as Markdown that can do nothing: the agent renders it, and what it sends has neither scripts nor remote pictures.
import { rendered } from "./api.js";
import { copy, h, icon } from "./dom.js";
import { t } from "./i18n.js";
import { typeset } from "./typeset.js";

const PAUSE = 60; // milliseconds between two requests while an answer is written
const AT_ONCE = 50;
const waiting = new Set();
let busy = false;

// Of a long conversation only what comes near the window is rendered; the rest stands there as plain text.
const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    ask(target.place);
  }
}, { rootMargin: "800px" });

/** A place that shows Markdown; `show(text)` again changes only the blocks that are different, and `drawn` gets each. */
export class Markdown {
  constructor(drawn = () => {}) {
    this.drawn = drawn;
    this.element = h("div", { class: "prose" });
    this.element.place = this;
    this.text = "";
    this.begin();
  }

  begin() {
    this.blocks = [];
    this.settled = 0; // how many blocks will not change any more,
    this.from = 0; // and where in the text the others begin
  }

  show(text) {
    if (!text.startsWith(this.text.slice(0, this.from))) this.begin();
    this.text = text;
    if (this.blocks.length > 0) {
      ask(this);
      return;
    }
    this.element.replaceChildren(h("div", { class: "block plain-text" }, text));
    near.observe(this.element);
  }

  put(asked, from, blocks) {
    if (from !== this.from || !this.text.startsWith(asked)) return;
    if (this.blocks.length === 0) this.element.replaceChildren();
    const lines = asked.slice(from).split("\n");
    blocks.forEach(({ html }, offset) => this.putBlock(this.settled + offset, html));
    this.blocks.length = this.settled + blocks.length;
    while (this.element.children.length > this.blocks.length) this.element.lastElementChild.remove();
    const last = blocks.at(-2); // what follows can still become a part of the last two
    if (last === undefined) return;
    this.from += lines.slice(0, last.line).reduce((sum, line) => sum + line.length + 1, 0);
    this.settled += blocks.length - 2;
  }

  putBlock(number, html) {
    if (this.blocks[number] === html) return;
    const made = finished(html);
    this.drawn(made);
    const old = this.element.children[number];
    if (old) old.replaceWith(made);
    else this.element.append(made);
    this.blocks[number] = html;
  }
}

/** Markdown that is complete. */
export function markdown(text) {
  const place = new Markdown();
  place.show(text);
  return place.element;
}

function ask(place) {
  waiting.add(place);
  if (busy) return;
  busy = true;
  queueMicrotask(work);
}

async function work() {
  while (waiting.size > 0) {
    const places = [...waiting].slice(0, AT_ONCE);
    const asked = places.map(({ text, from }) => ({ text, from }));
    places.forEach((place) => waiting.delete(place));
    try {
      const texts = await rendered(asked.map(({ text, from }) => text.slice(from)));
      places.forEach((place, number) => place.put(asked[number].text, asked[number].from, texts[number]));
    } catch {
      // The text stays as it is: plain, or as it was rendered before the connection was lost.
    }
    await new Promise((done) => { setTimeout(done, PAUSE); });
  }
  busy = false;
}

function finished(html) {
  const block = h("div", { class: "block" });
  const { body } = new DOMParser().parseFromString(html, "text/html"); // nothing in it runs or is loaded
  body.querySelectorAll("a").forEach(link);
  body.querySelectorAll(".unloaded").forEach((picture) => picture.prepend(icon("file")));
  body.querySelectorAll("input").forEach((box) => box.setAttribute("aria-label", box.checked ? t("Done") : t("To do")));
  body.querySelectorAll("table").forEach(scrollable);
  body.querySelectorAll("pre").forEach(framed);
  block.append(...body.childNodes);
  typeset(block);
  return block;
}

function link(element) {
  const address = element.getAttribute("href") ?? "";
  if (address.startsWith("files/")) {
    element.replaceWith(fileLink(address, element.textContent));
  } else {
    element.target = "_blank";
    element.title = address;
  }
}

/** A file of the agent's; the browser itself could not fetch it with the user's key. */
function fileLink(url, text) {
  const name = text.startsWith("files/") ? text.split("/").pop().replace(/^[0-9a-f]{16}_/, "") : text;
  const open = async ({ currentTarget }) => (await import("./viewer.js")).openFile({ url, title: name }, currentTarget);
  return h("button", { type: "button", class: "file-link", title: url, onclick: open }, icon("file"), name);
}

function scrollable(table) {
  const frame = h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": t("Table") });
  table.replaceWith(frame);
  frame.append(table);
}

/** Code with its language and a button that copies it; a diagram is drawn once its source is complete. */
function framed(block) {
  const code = block.querySelector("code");
  const language = /language-([\w+#-]+)/.exec(code?.className ?? "")?.[1] ?? "";
  const button = h("button", { type: "button", class: "quiet small", "aria-label": t("Copy the code") }, icon("copy"));
  button.addEventListener("click", () => copy(block.textContent, button));
  const head = h("div", { class: "code-head" }, h("span", {}, language), button);
  const frame = h("div", { class: "code-frame" }, head);
  block.replaceWith(frame);
  block.tabIndex = 0;
  frame.append(block);
  if (language === "mermaid" && !code.classList.contains("open")) {
    import("./diagram.js").then(({ showDiagram }) => showDiagram(block, head));
  }
}
