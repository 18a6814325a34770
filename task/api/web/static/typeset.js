// Formulas and coloured code of a rendered block. A worker makes them; what it has made once is kept.
import { h, stylesheet } from "./dom.js";
import { t } from "./i18n.js";

const MOST_CODE = 40_000; // characters that are coloured
const MOST_KEPT = 600;
const made = new Map(); // by what was asked: the answer, or those who wait for it
let worker = null;
let styles = null;

/** Set the formulas and colour the code whose block has ended, at once where that was done before. */
export function typeset(block) {
  for (const place of block.querySelectorAll(".math")) setFormula(place);
  for (const code of block.querySelectorAll('pre > code[class*="language-"]:not(.open)')) colour(code);
}

function setFormula(place) {
  const tex = place.textContent;
  const display = place.classList.contains("display");
  make("math", tex, display, async ({ html, fault }) => {
    if (html === null) {
      place.replaceWith(h("code", { class: "not-set", title: t("This formula cannot be shown: {reason}", { reason: fault ?? "" }) }, tex));
      return;
    }
    if (styles !== true) await prepared();
    place.replaceChildren(...parsed(html));
    if (display && place.scrollWidth > place.clientWidth) place.tabIndex = 0;
  });
}

/** The fonts and the copying of TeX; afterwards formulas are set in the same step in which they arrive. */
function prepared() {
  styles ??= Promise.all([stylesheet("vendor/katex/katex.min.css"), import("./vendor/katex/contrib/copy-tex.mjs")])
    .then(() => { styles = true; });
  return styles;
}

function colour(code) {
  const text = code.textContent;
  const language = /language-([\w+#.-]+)/.exec(code.className)?.[1];
  if (!language || text.length > MOST_CODE) return;
  make("code", text, language.toLowerCase(), ({ html }) => {
    if (html) code.replaceChildren(...parsed(html));
  });
}

const parsed = (html) => new DOMParser().parseFromString(html, "text/html").body.childNodes;

function make(kind, text, option, use) {
  const id = JSON.stringify([kind, option, text]);
  const known = made.get(id);
  if (known instanceof Array) known.push(use);
  else if (known) use(known);
  else {
    made.set(id, [use]);
    working().postMessage({ id, kind, text, option });
  }
}

function working() {
  if (worker) return worker;
  worker = new Worker(new URL("typeset-worker.js", import.meta.url));
  worker.onmessage = ({ data: { id, ...answer } }) => {
    const waiting = made.get(id);
    made.set(id, answer);
    if (made.size > MOST_KEPT) forget();
    waiting.forEach((use) => use(answer));
  };
  worker.onerror = () => made.clear(); // formulas stay TeX, and code has no colours
  return worker;
}

function forget() {
  for (const [id, answer] of made) {
    if (made.size <= MOST_KEPT / 2) return;
    if (!(answer instanceof Array)) made.delete(id);
  }
}
