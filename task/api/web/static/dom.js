// Build elements and write numbers as users read them.
import { date, number, t } from "./i18n.js";

const PATHS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  clip: "M20 11.5l-8.2 8.2a5 5 0 0 1-7.1-7.1l8.6-8.6a3.4 3.4 0 0 1 4.8 4.8l-8.6 8.6a1.7 1.7 0 0 1-2.4-2.4l7.6-7.6",
  menu: "M4 7h16M4 12h16M4 17h16",
  copy: "M9 9h10v10H9zM5 15V5h10",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  retry: "M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  check: "M5 12.5l4.5 4.5L19 7.5",
  cross: "M6 6l12 12M18 6L6 18",
  chevron: "M9 6l6 6-6 6",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z",
  trace: "M4 6h7M8 12h9M13 18h7",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  shield: "M12 3l7 3v5c0 4.5-3 8-7 10-4-2-7-5.500-7-10V6z",
  quote: "M9 7H5v6h4v-1a4 4 0 0 1-3 4M19 7h-4v6h4v-1a4 4 0 0 1-3 4",
  warn: "M12 4l9 16H3zM12 10v4M12 17h.01",
  help: "M9.4 9.2a2.600 2.600 0 1 1 3.800 2.300c-.8.5-1.200 1-1.200 1.900M12 17h.01M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z",
  skill: "M12 3l2.300 6.700L21 12l-6.700 2.300L12 21l-2.300-6.700L3 12l6.700-2.300z",
  memory: "M7 3h10v18l-5-4-5 4z",
  mic: "M12 3a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0V6a3 3 0 0 1 3-3zM6 11a6 6 0 0 0 12 0M12 17v4",
  archive: "M4 5h16v4H4zM6 9v10h12V9M10 13h4",
  back: "M15 6l-6 6 6 6",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM15.3 15.3L20 20",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  pin: "M9 4h6M10 4v6l-3 4h10l-3-4V4M12 14v6",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  fork: "M7 5v14M7 13a5 5 0 0 0 5-5h2M14 5l3 3-3 3",
  up: "M4 11h4v9H4zM8 11l4-8a2.500 2.500 0 0 1 2.500 2.500V9h4.700a1.800 1.800 0 0 1 1.760 2.160l-1.300 7.400A1.800 1.800 0 0 1 17.900 20H8",
  down: "M4 13h4V4H4zM8 13l4 8a2.500 2.500 0 0 0 2.500-2.500V15h4.700a1.800 1.800 0 0 0 1.760-2.160l-1.300-7.400A1.800 1.800 0 0 0 17.900 4H8",
};

/** An element. `on…` properties become listeners, `class`, `aria-…` and the rest attributes; null ones are left out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** What others have named something, in which nothing is hidden and no text reordered. */
export const plain = (text) => (text ?? "").replace(UNSEEN, "\ufffd");

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", `icon icon-${name}`);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows an icon; `label` is what it is called. */
export function iconButton(name, label, onclick, more = {}) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...more }, icon(name));
}

/** Load a style sheet of this folder; resolves when it applies. */
export function stylesheet(name) {
  return new Promise((done, failed) => {
    const link = h("link", { rel: "stylesheet", href: new URL(name, import.meta.url) });
    link.addEventListener("load", done);
    link.addEventListener("error", () => failed(new Error(name)));
    document.head.append(link);
  });
}

/** Announce something to screen readers that is otherwise only visible. */
export function announce(text) {
  const place = document.getElementById("said");
  place.textContent = "";
  requestAnimationFrame(() => { place.textContent = text; });
}

export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "";
  if (milliseconds < 1) return t("<1 ms");
  if (milliseconds < 1000) return t("{number} ms", { number: Math.round(milliseconds) });
  if (milliseconds < 60000) return t("{number} s", { number: rounded(milliseconds / 1000, milliseconds < 10000 ? 2 : 1) });
  return t("{minutes} min {seconds} s", { minutes: Math.floor(milliseconds / 60000), seconds: Math.round((milliseconds % 60000) / 1000) });
}

const rounded = (value, digits) => number(value, { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const count = (value) => number(value ?? 0);

export function cost(amount) {
  if (amount === null || amount === undefined) return "";
  const digits = amount === 0 ? 0 : amount < 0.01 ? 5 : 3;
  return number(amount, { style: "currency", currency: "USD", currencyDisplay: "narrowSymbol", minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function bytes(size) {
  if (size < 1000) return t("{number} B", { number: size });
  if (size < 1e6) return t("{number} kB", { number: rounded(size / 1e3, 0) });
  return t("{number} MB", { number: rounded(size / 1e6, 1) });
}

/** "Today", "Yesterday", "Earlier": where a conversation stands in the list. */
export function day(iso) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const time = new Date(iso).getTime();
  if (time >= midnight) return t("Today");
  return time >= midnight - 86400000 ? t("Yesterday") : t("Earlier");
}

export const when = (iso) => date(iso, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Give the user a file. */
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** Copy text, and say so on the button. */
/** A value as a cell of CSV; what a spreadsheet would compute becomes text. */
export function csvCell(value) {
  const text = String(value ?? "");
  const safe = typeof value === "string" && /^[=+@\t\r]|^-[^\d.]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** A part of an address; one that is not encoded correctly stays as it is. */
export function decodedPart(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "unseen", value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  announce(t("Copied"));
  const before = [...button.childNodes];
  button.replaceChildren(icon("check"));
  setTimeout(() => button.replaceChildren(...before), 1200);
}

/** Whether the user is writing in a field of the element. */
export const isWrittenIn = (element) => element.contains(document.activeElement?.closest("textarea, input") ?? null);
