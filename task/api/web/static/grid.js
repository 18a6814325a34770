// A table of any number of rows: it scrolls, is sorted by its heads, filtered by words, and copied as CSV.
import { copy, csvCell, h, icon } from "./dom.js";
import { locale, t } from "./i18n.js";

const AT_ONCE = 100; // rows that are drawn before more are scrolled to
const NEAR_END = 300; // pixels
const FILTERED = 10; // rows from which on a filter is worth its place
const MOST_COLUMNS = 40;
const MOST_CHARACTERS = 200; // of a cell that is drawn
const NUMBER = /^\s*[-+−]?[$€£¥₴]?\s*\d[\d.,'’\s]*(e[-+]?\d+)?\s*[%$€£¥₴]?\s*$/i;

/** The elements of a table whose first row is its head. */
export class Grid {
  constructor([heads, ...rows], name) {
    const width = rows.reduce((most, row) => Math.max(most, row.length), heads.length);
    this.heads = Array.from({ length: width }, (_, column) => heads[column] ?? "");
    this.rows = this.found = rows;
    this.columns = Math.min(width, MOST_COLUMNS);
    this.numbers = Array.from({ length: this.columns }, (_, column) => numbersOf(rows, column));
    this.sorting = { column: null, down: false };
    this.head = h("tr", {}, this.heads.slice(0, this.columns).map((text, column) => this.columnHead(text, column)));
    this.body = h("tbody");
    this.table = h("table", { "aria-rowcount": rows.length + 1 }, h("thead", {}, this.head), this.body);
    this.frame = h("div", { class: "table-frame sheet-frame", tabindex: "0", role: "region", "aria-label": t("Table {name}", { name: name ?? "" }).trim() }, this.table);
    this.frame.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.count = h("span", { class: "sheet-count", role: "status" });
    this.bar = h("div", { class: "sheet-bar" }, rows.length > FILTERED ? this.filterField() : "", this.count, this.copyButton());
    this.draw();
  }

  get elements() {
    const more = this.heads.length - this.columns;
    const note = more > 0 ? h("p", { class: "sheet-note" }, t("{count} more column in the file | {count} more columns in the file", { count: more })) : "";
    return [this.bar, this.frame, note].filter(Boolean);
  }

  columnHead(text, column) {
    const button = h("button", { type: "button", onclick: () => this.sort(column) }, text, icon("chevron"));
    return h("th", { scope: "col", align: this.numbers[column] ? "right" : null }, button);
  }

  filterField() {
    const field = h("input", { type: "search", placeholder: t("Filter rows"), "aria-label": t("Filter rows"), autocomplete: "off" });
    field.addEventListener("input", () => this.filter(field.value));
    field.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); }); // submits no dialog
    return field;
  }

  copyButton() {
    const button = h("button", { type: "button", class: "quiet small", onclick: () => copy(this.csv(), button) }, t("Copy as CSV"));
    return button;
  }

  /** By this column upwards, then downwards, then as in the file. */
  sort(column) {
    const { column: before, down } = this.sorting;
    this.sorting = column !== before ? { column, down: false } : down ? { column: null, down: false } : { column, down: true };
    [...this.head.children].forEach((cell, place) => {
      if (place === this.sorting.column) cell.setAttribute("aria-sort", this.sorting.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    this.arrange();
  }

  /** The rows in which every word occurs. */
  filter(text) {
    this.words = text.toLocaleLowerCase(locale).split(/\s+/).filter(Boolean);
    this.arrange();
  }

  arrange() {
    const words = this.words ?? [];
    this.texts ??= words.length ? new Map(this.rows.map((row) => [row, row.join("\n").toLocaleLowerCase(locale)])) : null;
    const found = words.length ? this.rows.filter((row) => words.every((word) => this.texts.get(row).includes(word))) : this.rows;
    const { column, down } = this.sorting;
    this.found = column === null ? found : sorted(found, column, this.numbers[column], down);
    this.draw();
  }

  draw() {
    this.frame.scrollTop = 0;
    this.body.replaceChildren();
    this.more();
    const [shown, total] = [this.found.length, this.rows.length];
    this.count.textContent = shown === total ? t("{count} row | {count} rows", { count: total }) : t("{shown} of {count} row | {shown} of {count} rows", { shown, count: total });
  }

  more() {
    const from = this.body.childElementCount;
    this.body.append(...this.found.slice(from, from + AT_ONCE).map((row) => h("tr", {}, this.numbers.map((numbers, column) => (
      h("td", { align: numbers ? "right" : null }, short(row[column] ?? "")))))));
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.frame;
    if (scrollHeight - scrollTop - clientHeight < NEAR_END && this.body.childElementCount < this.found.length) this.more();
  }

  csv() {
    return [this.heads, ...this.found].map((row) => row.map(csvCell).join(",")).join("\r\n");
  }
}

const short = (value) => (value.length > MOST_CHARACTERS ? `${value.slice(0, MOST_CHARACTERS - 1)}…` : value);

/** Rows in the order of a column, empty cells last; `read` makes numbers of its cells, without it they are texts. */
function sorted(rows, column, read, down) {
  const collator = new Intl.Collator(locale, { numeric: true });
  const valued = rows.map((row) => ({ row, text: (row[column] ?? "").trim() }));
  const [full, empty] = [valued.filter((item) => item.text), valued.filter((item) => !item.text)];
  for (const item of full) item.value = read ? read(item.text) : item.text;
  const order = read ? (one, other) => one.value - other.value : (one, other) => collator.compare(one.value, other.value);
  full.sort(down ? (one, other) => order(other, one) : order);
  return [...full, ...empty].map((item) => item.row);
}

/** How the numbers of a column are read; null for a column of other things. */
export function numbersOf(rows, column) {
  const texts = rows.map((row) => (row[column] ?? "").trim()).filter(Boolean);
  if (texts.length === 0 || !texts.every((text) => NUMBER.test(text))) return null;
  const decimal = decimalOf(texts);
  const grouping = decimal === "," ? /[^\d,e+-]/gi : /[^\d.e+-]/gi;
  return (text) => Number(text.replace("−", "-").replace(grouping, "").replace(",", "."));
}

// A mark that occurs twice groups; one that stands last, or not before three digits, begins the decimals. Where no
// number of the column shows which it is, the user's language decides.
function decimalOf(texts) {
  for (const text of texts) {
    const marks = text.match(/[.,]/g) ?? [];
    if (new Set(marks).size === 2) return marks.at(-1);
    if (marks.length > 1) return marks[0] === "," ? "." : ",";
    if (marks.length === 1 && !/^\D*[1-9]\d{0,2}[.,]\d{3}\D*$/.test(text)) return marks[0];
  }
  return new Intl.NumberFormat(locale).formatToParts(1.5).find((part) => part.type === "decimal").value;
}
