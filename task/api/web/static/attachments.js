// What a message carries besides text: pictures, charts, tables and files.
import * as api from "./api.js";
import { h, icon, plain, save } from "./dom.js";
import { drawChart } from "./chart.js";
import { ask } from "./dialogs.js";
import { t } from "./i18n.js";
import { markdown } from "./markdown.js";
import { decoded, isSheet, MOST_BYTES, sheet } from "./sheet.js";

const CHART = "application/vnd.plotly.v1+json";
const PICTURES = /^image\/(png|jpeg|gif|webp|svg\+xml)$/;
const TEXTS = /^(text\/|application\/(json|xml|yaml|x-yaml|toml|x-sh|javascript|x-python))/;
const TEXT_NAMES = /\.(txt|md|json|jsonl|xml|ya?ml|toml|ini|log|py|js|ts|sh|sql|html?|css)$/i;
const MOST_TEXT = 100_000; // bytes of a text that are shown

/** The element for an attachment that is no citation. */
export function shown(item) {
  if (item.type === CHART) return chart(item);
  if (PICTURES.test(item.type ?? "")) return picture(item);
  if (isSheet(item) && (item.data || item.url)) return table(item);
  if (item.data && /^text\/(markdown|plain)/.test(item.type ?? "text/markdown")) return note(item);
  return file(item);
}

export const iconOf = ({ skill, data }) => (skill ? "skill" : data ? "quote" : "file");

/** What a user attached: a small picture, or a chip that opens what is in it. */
export function attached(item) {
  const name = plain(item.title) || t("File");
  const inside = [icon(iconOf(item)), h("span", { dir: "auto" }, name)];
  if (!item.url && !item.data) return h("li", { class: "chip" }, inside);
  const open = h("button", { type: "button", class: "chip", "aria-haspopup": "dialog", title: name, onclick: () => preview(item) }, inside);
  if (PICTURES.test(item.type ?? "")) thumbnail(item, open);
  return h("li", {}, open);
}

function thumbnail(item, button) {
  const near = new IntersectionObserver(async ([entry]) => {
    if (!entry.isIntersecting) return;
    near.disconnect();
    try {
      const image = h("img", { src: URL.createObjectURL(await blobOf(item)), alt: item.title || t("Attached picture") });
      await image.decode();
      button.className = "thumbnail";
      button.replaceChildren(image);
    } catch { /* it stays a chip */ }
  });
  near.observe(button);
}

/** Show what is in a file. */
export function preview(item) {
  const name = item.title || t("File");
  return ask(name, (finish) => [
    PICTURES.test(item.type ?? "") || isSheet(item) ? shown(item) : isText(item) ? text(item) : file(item),
    h("footer", {}, h("button", { type: "button", class: "primary", onclick: () => finish(null) }, t("Close"))),
  ], "wide");
}

const isText = (item) => TEXTS.test(item.type ?? "") || TEXT_NAMES.test(item.title ?? "");

/** The first bytes of an attachment as text, and whether that is all of it. */
async function beginning(item, most) {
  if (!item.url) return { text: item.data, whole: true };
  const { bytes, whole } = await api.beginning(item.url, most);
  return { text: decoded(bytes), whole };
}

function table(item) {
  return framed(item, "sheet", async (body) => {
    const { text: given, whole } = await beginning(item, MOST_BYTES);
    body.replaceChildren(...sheet(given, whole, item.title));
  });
}

function text(item) {
  return framed(item, "text", async (body) => {
    const { text: given, whole } = await beginning(item, MOST_TEXT);
    const isMarkdown = /markdown/.test(item.type ?? "") || /\.md$/i.test(item.title ?? "");
    const more = whole ? "" : h("p", { class: "sheet-note" }, t("This is the beginning of a longer file."));
    body.replaceChildren(isMarkdown ? markdown(given) : h("pre", { tabindex: "0" }, given), more);
  });
}

async function blobOf(item) {
  if (item.url) return api.content(item.url, item.type);
  const bytes = Uint8Array.from(atob(item.data), (character) => character.charCodeAt(0));
  return new Blob([bytes], { type: item.type });
}

function framed(item, className, fill) {
  const body = h("div", { class: `${className} loading` });
  const head = h("figcaption", {}, h("span", {}, item.title ?? ""), download(item));
  const figure = h("figure", { class: "attachment" }, body, head);
  fill(body).then(
    () => body.classList.remove("loading"),
    (error) => body.replaceChildren(h("p", { class: "trouble" }, icon("warn"), error.message)),
  ).finally(() => body.classList.remove("loading"));
  return figure;
}

function picture(item) {
  return framed(item, "picture", async (body) => {
    const address = URL.createObjectURL(await blobOf(item));
    const image = h("img", { src: address, alt: item.title ?? t("Picture made by the agent") });
    await image.decode().catch(() => { throw new Error(t("This picture cannot be shown.")); });
    body.replaceChildren(image);
  });
}

function chart(item) {
  return framed(item, "chart", async (body) => {
    const text = item.data ?? await (await blobOf(item)).text();
    const saving = await drawChart(body, JSON.parse(text), item.title);
    body.nextElementSibling.lastElementChild.before(saving);
  });
}

function note(item) {
  const head = item.title ? h("div", { class: "note-title" }, item.title) : null;
  return h("div", { class: "attachment note" }, head, markdown(item.data));
}

function file(item) {
  const look = item.url && isText(item) ? h("button", { type: "button", class: "quiet small", "aria-haspopup": "dialog", "aria-label": t("Show {name}", { name: item.title || t("the file") }), onclick: () => preview(item) }, t("Show")) : null;
  return h("div", { class: "attachment file" }, icon("file"), h("span", {}, item.title || t("File")), look, download(item));
}

function download(item) {
  if (!item.url && !item.data) return null;
  const button = h("button", { type: "button", class: "quiet small" }, t("Download"));
  button.setAttribute("aria-label", t("Download {name}", { name: item.title || t("the file") }));
  button.addEventListener("click", async () => {
    try {
      const blob = item.url ? await blobOf(item) : new Blob([item.data], { type: item.type });
      save(blob, item.title || "file");
    } catch (error) {
      button.replaceWith(h("span", { class: "trouble" }, error.message));
    }
  });
  return button;
}
