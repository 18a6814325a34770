// A PDF, page by page as it is scrolled to; the library is loaded with the first one.
import { h } from "./dom.js";
import { t } from "./i18n.js";
import { found, letters, markPassage } from "./passage.js";

const MOST_PAGES = 1000;
const SHARPNESS = 2; // pixels of the picture for one of the page, at most
let library = null;

async function loaded() {
  library ??= import("./vendor/pdfjs-dist/pdf.min.mjs");
  const pdfjs = await library.catch((error) => { library = null; throw error; });
  pdfjs.GlobalWorkerOptions.workerSrc = new URL("vendor/pdfjs-dist/pdf.worker.min.mjs", import.meta.url).href;
  return pdfjs;
}

/**
 * Show the PDF at the passage: on the page `page`, or wherever the quotation stands. Resolves with whether it was found;
 * null when it is no longer wanted, because another document was opened since.
 */
export async function showPdf(place, bytes, { page = 1, quote = "", isWanted = () => true } = {}) {
  const pdfjs = await loaded();
  const wasmUrl = new URL("vendor/pdfjs-dist/wasm/", import.meta.url).href; // the page's policy allows its scripts only
  const task = pdfjs.getDocument({ data: bytes, wasmUrl, useWasm: false, enableXfa: false, maxImageSize: 40_000_000 });
  const file = await task.promise.catch((error) => { throw new Error(trouble(error)); });
  const cited = quote ? await pageWith(file, quote, page, isWanted) : null;
  if (!isWanted()) {
    task.destroy();
    return null;
  }
  const view = new Pages(pdfjs, file, place, cited ?? page, quote);
  await view.open();
  return { found: cited !== null, close: () => { view.close(); task.destroy(); } };
}

const trouble = (error) => (error.name === "PasswordException" ? t("This PDF asks for a password.") : t("This PDF cannot be shown."));

/** The number of the page that has most of the quotation, the one named first. */
async function pageWith(file, quote, named, isWanted) {
  const numbers = Array.from({ length: Math.min(file.numPages, MOST_PAGES) }, (_, place) => place + 1);
  numbers.sort((one, other) => Math.abs(one - named) - Math.abs(other - named));
  for (const number of numbers) {
    if (!isWanted()) return null;
    const { items } = await (await file.getPage(number)).getTextContent();
    if (found(letters(items.map((item) => item.str ?? "").join(" ")), quote).length) return number;
  }
  return null;
}

class Pages {
  constructor(pdfjs, file, place, number, quote) {
    [this.pdfjs, this.file, this.place, this.quote] = [pdfjs, file, place, quote];
    this.number = Math.min(Math.max(1, number), file.numPages);
    this.watch = new IntersectionObserver((entries) => entries.forEach((entry) => this.seen(entry)), { root: place, rootMargin: "600px" });
  }

  async open() {
    const first = await this.file.getPage(this.number);
    const natural = first.getViewport({ scale: 1 });
    const width = Math.max(200, this.place.clientWidth - 24);
    this.scale = width / natural.width;
    const count = Math.min(this.file.numPages, MOST_PAGES);
    this.pages = Array.from({ length: count }, (_, index) => {
      const element = h("div", { class: "pdf-page", role: "group", "aria-label": t("Page {page} of {pages}", { page: index + 1, pages: this.file.numPages }) });
      element.number = index + 1;
      element.style.width = `${width}px`;
      element.style.height = `${natural.height * this.scale}px`;
      return element;
    });
    this.place.replaceChildren(...this.pages);
    const target = this.pages[this.number - 1] ?? this.pages[0];
    await this.draw(target);
    const mark = target.querySelector("mark");
    this.place.scrollTop += (mark ?? target).getBoundingClientRect().top - this.place.getBoundingClientRect().top - (mark ? this.place.clientHeight / 3 : 8);
    this.pages.forEach((element) => this.watch.observe(element));
  }

  seen({ target, isIntersecting }) {
    if (isIntersecting) this.draw(target).catch(() => {});
    else if (target.drawn) {
      target.drawn = false; // a long document would fill the memory with pictures
      target.replaceChildren();
    }
  }

  async draw(element) {
    if (element.drawn) return;
    element.drawn = true;
    const page = await this.file.getPage(element.number);
    const viewport = page.getViewport({ scale: this.scale });
    element.style.height = `${viewport.height}px`;
    element.style.width = `${viewport.width}px`;
    element.style.setProperty("--total-scale-factor", viewport.scale);
    const sharpness = Math.min(SHARPNESS, window.devicePixelRatio || 1);
    const canvas = h("canvas", { width: Math.floor(viewport.width * sharpness), height: Math.floor(viewport.height * sharpness), "aria-hidden": "true" });
    const text = h("div", { class: "pdf-text" });
    const layer = new this.pdfjs.TextLayer({ textContentSource: await page.getTextContent(), container: text, viewport });
    await Promise.all([
      page.render({ canvas, viewport, transform: sharpness === 1 ? null : [sharpness, 0, 0, sharpness, 0, 0] }).promise,
      layer.render(),
    ]);
    if (!element.drawn) return;
    element.replaceChildren(canvas, text);
    if (this.quote && element.number === this.number) markPassage(text, this.quote);
  }

  close() {
    this.watch.disconnect();
  }
}
