// Mermaid diagrams. Each is drawn in a frame that can be ended, and shown as a picture, in which no script, link or foreign
// address can act.
import { h } from "./dom.js";
import { t } from "./i18n.js";

const drawn = new Map(); // pictures by theme and text
const MOST_KEPT = 40;
const SERIES = ["#2f8f78", "#b8742a", "#5b7fc7", "#b85c78", "#8a7cc2", "#6f8136"];
const LOADING = 10000; // milliseconds until the library must have read a diagram,
const DRAWING = 2000; // and then drawn it
const LARGEST = 4e6; // characters of a picture
let frame = null;
let last = Promise.resolve();

/** Show the diagram above its source, which stays one click away; source that is no diagram stays as it is. */
export async function showDiagram(source, head) {
  const text = source.textContent;
  const place = h("div", { class: "diagram", tabindex: "0", role: "region", "aria-label": t("Diagram") });
  const toggle = h("button", { type: "button", class: "quiet small", "aria-pressed": "false" }, t("Source"));
  toggle.addEventListener("click", () => {
    source.hidden = !source.hidden;
    place.hidden = !source.hidden;
    toggle.setAttribute("aria-pressed", String(!source.hidden));
  });
  const draw = async () => place.replaceChildren(await picture(text));
  try {
    await draw();
  } catch (error) {
    head.firstElementChild.append(h("span", { class: "not-drawn", title: error.message }, t("This diagram cannot be drawn.")));
    return;
  }
  source.before(place);
  source.hidden = true;
  head.lastElementChild.before(toggle);
  const watch = new MutationObserver(() => { if (place.isConnected) draw().catch(() => {}); else watch.disconnect(); });
  watch.observe(document.documentElement, { attributeFilter: ["data-theme"] });
}

const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark";

async function picture(text) {
  const key = `${isDark()} ${text}`;
  if (!drawn.has(key)) {
    if (drawn.size >= MOST_KEPT) drawn.clear();
    drawn.set(key, await (last = last.catch(() => {}).then(() => svgOf(text)))); // the library draws one at a time
  }
  const { svg, name, width } = drawn.get(key);
  const address = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  const image = h("img", { src: address, alt: name, width });
  image.addEventListener("load", () => URL.revokeObjectURL(address));
  return image;
}

async function svgOf(text) {
  frame ??= h("iframe", { class: "drawing", sandbox: "allow-scripts", "aria-hidden": "true", tabindex: "-1", srcdoc: "<script type=module src=static/diagram-frame.js></script>" });
  if (!frame.isConnected) {
    document.body.append(frame);
    await answer(LOADING);
  }
  frame.contentWindow.postMessage({ text, options: options() }, "*");
  const read = await answer(LOADING);
  const { error, svg } = read.error === undefined ? await answer(DRAWING) : read;
  if (error !== undefined || svg.length > LARGEST) throw new Error(error ?? "It is too large.");
  return asPicture(svg);
}

/** What the frame sends next; if it is late, the frame ends with its work. Its origin is its own, and so is its process. */
async function answer(milliseconds) {
  const { promise, resolve, reject } = Promise.withResolvers();
  const waiting = new AbortController();
  const timer = setTimeout(() => reject(new Error("It takes too long.")), milliseconds);
  addEventListener("message", ({ data, source }) => { if (source === frame.contentWindow) resolve(data); }, { signal: waiting.signal });
  try {
    return await promise;
  } catch (error) {
    frame.remove();
    frame = null;
    throw error;
  } finally {
    clearTimeout(timer);
    waiting.abort();
  }
}

function options() {
  return {
    startOnLoad: false, securityLevel: "strict", htmlLabels: false, flowchart: { htmlLabels: false }, layout: "dagre",
    ...colours(), suppressErrorRendering: true, maxTextSize: 20000, maxEdges: 300,
    secure: ["secure", "securityLevel", "startOnLoad", "maxTextSize", "maxEdges", "suppressErrorRendering", "htmlLabels", "fontFamily", "themeCSS", "layout"],
  };
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const [ink, paper, raised, wash, line, soft] = ["--ink", "--paper", "--raised", "--accent-wash", "--accent", "--soft"].map((name) => style.getPropertyValue(name).trim());
  const parts = Object.fromEntries(SERIES.flatMap((colour, place) => [[`pie${place + 1}`, colour], [`cScale${place}`, colour], [`cScaleLabel${place}`, "#ffffff"]]));
  return {
    theme: "base", fontFamily: style.fontFamily,
    themeVariables: {
      darkMode: isDark(), background: paper, primaryColor: wash, primaryTextColor: ink, primaryBorderColor: line, lineColor: soft, textColor: ink,
      secondaryColor: raised, tertiaryColor: raised, noteBkgColor: raised, noteTextColor: ink, pieOpacity: 1, pieStrokeColor: paper, pieSectionTextColor: "#ffffff",
      ...parts, xyChart: { backgroundColor: "transparent", plotColorPalette: SERIES.join(",") },
    },
  };
}

/** As XML with a size of its own, which a picture needs. */
function asPicture(html) {
  const svg = new DOMParser().parseFromString(html, "text/html").querySelector("svg");
  const [, , width, height] = (svg.getAttribute("viewBox") ?? "0 0 600 400").split(/[\s,]+/).map(Number);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.style.maxWidth = "";
  const title = svg.querySelector("title")?.textContent ?? "";
  const kind = svg.getAttribute("aria-roledescription") ?? "";
  return { svg: new XMLSerializer().serializeToString(svg), name: title || t("Diagram: {kind}", { kind }), width: Math.ceil(width) };
}
