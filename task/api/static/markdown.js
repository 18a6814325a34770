// Model text as Markdown that can do nothing: no HTML of its own, no scripts, no request to anywhere.
import { copy, h, icon } from "./dom.js";

const TAGS = [
  "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "s", "code", "pre", "blockquote", "ul", "ol",
  "li", "a", "img", "table", "thead", "tbody", "tr", "th", "td",
];
const ATTRIBUTES = ["href", "title", "src", "alt", "start", "class", "align"];
const SAFE_LINK = /^(https?:|mailto:)/i;
const SAFE_PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,/i;

const reader = window.markdownit({ html: false, linkify: true, breaks: false, typographer: false });
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
reader.validateLink = (url) => SAFE_LINK.test(url) || SAFE_PICTURE.test(url);

// Nothing is fetched while the tree is built: DOMPurify parses in a document without a browsing context, and remote
// pictures lose their address before they come near the page.
window.DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName === "IMG" && !SAFE_PICTURE.test(node.getAttribute("src") ?? "")) {
    node.setAttribute("title", node.getAttribute("src") ?? "");
    node.removeAttribute("src");
  }
});

/** A place that shows Markdown; `show(text)` again changes only the blocks that are different. */
export class Markdown {
  constructor() {
    this.element = h("div", { class: "prose" });
    this.sources = [];
  }

  show(text) {
    const environment = {};
    const blocks = grouped(reader.parse(text, environment));
    const lines = text.split("\n");
    blocks.forEach((tokens, number) => {
      const [from, to] = tokens[0].map ?? [0, 0];
      const source = `${tokens[0].type}:${tokens[0].map ? lines.slice(from, to).join("\n") : ""}`;
      if (this.sources[number] === source) return;
      const made = rendered(reader.renderer.render(tokens, reader.options, environment));
      const old = this.element.children[number];
      if (old) old.replaceWith(made);
      else this.element.append(made);
      this.sources[number] = source;
    });
    while (this.element.children.length > blocks.length) this.element.lastElementChild.remove();
    this.sources.length = blocks.length;
  }
}

/** Markdown that is complete. */
export function markdown(text) {
  const place = new Markdown();
  place.show(text);
  return place.element;
}

function grouped(tokens) {
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) blocks.push([]);
    blocks.at(-1).push(token);
    depth += token.nesting;
  }
  return blocks;
}

function rendered(html) {
  // The reader aligns table cells by style attributes, which are not let through.
  const aligned = html.replace(/ style="text-align:(left|right|center)"/g, ' align="$1"');
  const fragment = window.DOMPurify.sanitize(aligned, {
    ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
  fragment.querySelectorAll("a").forEach(safeLink);
  fragment.querySelectorAll("img:not([src])").forEach((picture) => picture.replaceWith(unloaded(picture)));
  fragment.querySelectorAll("table").forEach(scrollable);
  fragment.querySelectorAll("pre").forEach(copyable);
  const block = h("div", { class: "block" });
  block.append(fragment);
  return block;
}

function safeLink(link) {
  const address = link.getAttribute("href") ?? "";
  if (!SAFE_LINK.test(address)) {
    link.replaceWith(...link.childNodes);
    return;
  }
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
  link.title = address;
}

function unloaded(picture) {
  const address = picture.getAttribute("title") || "somewhere";
  let host = address;
  try { host = new URL(address).host; } catch { /* shown as it stands */ }
  const name = picture.getAttribute("alt") || "Picture";
  return h("span", { class: "unloaded", title: address }, icon("file"), `${name} (a picture at ${host}, not loaded)`);
}

function scrollable(table) {
  const frame = h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Table" });
  table.replaceWith(frame);
  frame.append(table);
}

function copyable(block) {
  const code = block.querySelector("code");
  const language = /language-([\w+#-]+)/.exec(code?.className ?? "")?.[1] ?? "";
  const button = h("button", { type: "button", class: "quiet small", "aria-label": "Copy the code" }, icon("copy"));
  button.addEventListener("click", () => copy(block.textContent, button));
  const frame = h("div", { class: "code-frame" }, h("div", { class: "code-head" }, h("span", {}, language), button));
  block.replaceWith(frame);
  block.tabIndex = 0;
  frame.append(block);
}
