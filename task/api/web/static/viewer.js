// A document beside the conversation, at the passage that an answer cites and with it marked; on a phone it covers the screen.
import * as api from "./api.js";
import { announce, decodedPart, h, icon, iconButton, save, stylesheet } from "./dom.js";
import { t } from "./i18n.js";
import { markPassage } from "./passage.js";
import { decoded } from "./sheet.js";

const BESIDE = matchMedia("(min-width: 1000px)");
const MOST_TEXT = 1_000_000; // bytes
const NAMES = {
  pdf: /\.pdf$/i,
  html: /\.x?html?$/i,
  text: /\.(txt|md|markdown|json|jsonl|xml|ya?ml|toml|ini|log|csv|tsv|py|js|ts|sh|sql|css|rst|tex)$/i,
};
const TYPES = { pdf: /^application\/pdf/, html: /^(text\/html|application\/xhtml)/, text: /^(text\/|application\/(json|xml|yaml|x-yaml|toml))/ };
const PICTURES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", svg: "image/svg+xml" };
const PAGE = /(?:\bp(?:p|ages?)?\.?\s*|#page=)(\d+)/i;
const styles = stylesheet("viewer.css");
let viewer = null;

/** A file that an answer links to: a document beside it, and what is none as attachments are shown. */
export async function openFile({ url, title }, opener) {
  const name = nameOf(url);
  if (kindOf({ name })) {
    await open(name, [{ reference_url: url, title: name }], opener);
    return;
  }
  const { preview } = await import("./attachments.js");
  preview({ url, title: name || title, type: PICTURES[name.split(".").pop().toLowerCase()] });
}

/** The passages that a number in the text, or a source below it, stands for; the first one's document is opened. */
export async function openPassages(items, opener) {
  await open(items.length === 1 ? items[0].title || t("Source") : t("Sources"), items, opener);
}

async function open(title, items, opener) {
  viewer?.close(false);
  await styles.catch(() => {});
  viewer = new Viewer(title, items, opener);
}

addEventListener("hashchange", () => viewer?.close(false));

class Viewer {
  constructor(title, items, opener) {
    this.opener = opener;
    this.body = h("div", { class: "viewer-body", tabindex: "0", role: "region", "aria-label": t("Document") });
    const heading = h("h2", { id: "viewer-title" }, title);
    this.element = h("dialog", { class: "viewer", "aria-labelledby": "viewer-title" },
      h("header", {}, heading, iconButton("cross", t("Close"), () => this.close())),
      h("div", { class: "viewer-quotes" }, items.map((item) => this.quotation(item, items.length > 1))), this.body);
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.preventDefault(); event.stopPropagation(); this.close(); }
    });
    this.element.addEventListener("cancel", (event) => { event.preventDefault(); this.close(); });
    document.getElementById("app").append(this.element);
    if (BESIDE.matches) this.element.show();
    else this.element.showModal();
    this.element.querySelector("header button").focus();
    this.show(items.find((item) => !isAddress(item.reference_url)));
  }

  quotation(item, isOneOfSeveral) {
    const address = item.reference_url ?? "";
    const way = isAddress(address)
      ? h("a", { class: "quiet", href: address, target: "_blank", rel: "noopener noreferrer" }, t("Open the source"))
      : isOneOfSeveral ? h("button", { type: "button", class: "quiet", onclick: () => this.show(item) }, t("Show in the document")) : null;
    if (!item.data && !way) return null;
    return h("figure", {}, isOneOfSeveral ? h("figcaption", {}, item.title) : null,
      item.data ? h("blockquote", { class: "passage", tabindex: "0" }, item.data) : null, way);
  }

  async show(item) {
    this.body.hidden = !item;
    if (!item) return;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.pages?.close();
    this.pages = null;
    this.body.replaceChildren(h("div", { class: "skeleton", role: "status", "aria-label": t("Loading") }, h("i"), h("i"), h("i")));
    try {
      const isFound = await this.draw(item, () => turn === this.turn);
      if (isFound === false && turn === this.turn) announce(t("The passage was not found word for word."));
    } catch (error) {
      if (turn === this.turn) this.body.replaceChildren(h("p", { class: "trouble", role: "alert" }, icon("warn"), error.message));
    }
  }

  /** Whether the passage was found; undefined where none is looked for. */
  async draw(item, isWanted) {
    const url = item.reference_url.replace(/#.*$/, "");
    const name = nameOf(url);
    const quote = item.data ?? "";
    const kind = kindOf({ name, type: item.reference_type });
    if (kind === "pdf") {
      const bytes = new Uint8Array(await (await api.content(url)).arrayBuffer());
      const { showPdf } = await import("./pdf.js");
      if (!isWanted()) return undefined;
      const page = Number(PAGE.exec(`${item.reference_url} ${item.title}`)?.[1] ?? 1);
      this.pages = await showPdf(this.body, bytes, { page, quote, isWanted });
      return quote ? this.pages?.found : undefined;
    }
    if (!kind) {
      this.body.replaceChildren(h("p", {}, t("This kind of file cannot be shown here.")), saving(url, name));
      return undefined;
    }
    const { bytes, whole } = await api.beginning(url, MOST_TEXT);
    if (!isWanted()) return undefined;
    const text = h("pre", {}, kind === "html" ? textOfHtml(decoded(bytes)) : decoded(bytes));
    this.body.replaceChildren(text, whole ? "" : h("p", { class: "sheet-note" }, t("This is the beginning of a longer file.")));
    const mark = quote ? markPassage(text, quote) : null;
    mark?.scrollIntoView({ block: "center" });
    return quote ? mark !== null : undefined;
  }

  close(returns = true) {
    this.turn = null;
    this.pages?.close();
    this.element.close();
    this.element.remove();
    viewer = null;
    if (returns && this.opener) drawn(this.opener)?.focus();
  }
}

/** What the user opened the document from; an answer that has gone on since has drawn it again, as an equal element. */
function drawn(opener) {
  if (opener.isConnected) return opener;
  return [...document.querySelectorAll(opener.localName)].findLast((element) => element.isEqualNode(opener));
}

const isAddress = (url) => /^https?:/i.test(url ?? "");

function kindOf({ name, type = "" }) {
  return Object.keys(NAMES).find((kind) => NAMES[kind].test(name)) ?? Object.keys(TYPES).find((kind) => TYPES[kind].test(type ?? ""));
}

/** The name of a file; what the agent stores begins with part of its hash. */
function nameOf(url) {
  const last = url.replace(/#.*$/, "").split("/").pop();
  return decodedPart(last).replace(/^[0-9a-f]{16}_/, "");
}

/** The text of a page, with a line for each of its paragraphs. */
function textOfHtml(html) {
  const { body } = new DOMParser().parseFromString(html, "text/html");
  body.querySelectorAll("script, style, template, noscript").forEach((element) => element.remove());
  body.querySelectorAll("p, div, li, tr, br, h1, h2, h3, h4, h5, h6, section, pre, blockquote").forEach((element) => element.after("\n"));
  return body.textContent.replace(/[ \t]*\n\s*/g, "\n").trim();
}

function saving(url, name) {
  const button = h("button", { type: "button", class: "primary" }, t("Download"));
  button.addEventListener("click", async () => {
    try {
      save(await api.content(url, "application/octet-stream"), name);
    } catch (error) {
      button.replaceWith(h("span", { class: "trouble" }, error.message));
    }
  });
  return button;
}
