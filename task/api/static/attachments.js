// What an answer carries besides text: pictures, charts, files, and the passages it cites.
import * as api from "./api.js";
import { h, icon } from "./dom.js";
import { drawChart } from "./chart.js";
import { passage } from "./dialogs.js";
import { markdown } from "./markdown.js";

const CHART = "application/vnd.plotly.v1+json";
const PICTURES = /^image\/(png|jpeg|gif|webp|svg\+xml)$/;

export const isCitation = (item) => Boolean(item.reference_url && item.data);

/** The element for an attachment that is no citation. */
export function shown(item) {
  if (item.type === CHART) return chart(item);
  if (PICTURES.test(item.type ?? "")) return picture(item);
  if (item.data && /^text\/(markdown|plain)/.test(item.type ?? "text/markdown")) return note(item);
  return file(item);
}

/** A citation: its number or title, which opens the passage. */
export function citation(item) {
  return h(
    "button", { type: "button", class: "chip", onclick: () => passage(item), title: "Show the passage" },
    icon("quote"), h("span", {}, item.title || "Source"),
  );
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
    const image = h("img", { src: address, alt: item.title ?? "Picture made by the agent" });
    await image.decode().catch(() => { throw new Error("This picture cannot be shown."); });
    body.replaceChildren(image);
  });
}

function chart(item) {
  return framed(item, "chart", async (body) => {
    const text = item.data ?? await (await blobOf(item)).text();
    await drawChart(body, JSON.parse(text), item.title);
  });
}

function note(item) {
  const head = item.title ? h("div", { class: "note-title" }, item.title) : null;
  return h("div", { class: "attachment note" }, head, markdown(item.data));
}

function file(item) {
  return h("div", { class: "attachment file" }, icon("file"), h("span", {}, item.title || "File"), download(item));
}

function download(item) {
  if (!item.url && !item.data) return null;
  const button = h("button", { type: "button", class: "quiet small" }, "Download");
  button.setAttribute("aria-label", `Download ${item.title || "the file"}`);
  button.addEventListener("click", async () => {
    try {
      const blob = item.url ? await blobOf(item) : new Blob([item.data], { type: item.type });
      const link = h("a", { href: URL.createObjectURL(blob), download: item.title || "file" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    } catch (error) {
      button.replaceWith(h("span", { class: "trouble" }, error.message));
    }
  });
  return button;
}
