// Tables in files of separated values: the beginning of one as rows that can be scrolled.
import { count, h } from "./dom.js";

export const MOST_BYTES = 1_000_000;
const MOST_ROWS = 100;
const MOST_COLUMNS = 40;
const MOST_CHARACTERS = 200; // of a cell
const NUMBER = /^\s*[-+]?[\d.,\u00a0 ]*\d\s*%?\s*$/;
const TYPES = /^(text|application)\/(csv|tab-separated-values|x-csv)/;

export const isSheet = (item) => TYPES.test(item.type ?? "") || /\.(csv|tsv)$/i.test(item.title ?? "");

/** The text of a file, whose first bytes show its encoding. */
export function decoded(bytes) {
  if (bytes[0] === 0xff && bytes[1] === 0xfe) return new TextDecoder("utf-16le").decode(bytes);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: true }); // its end may be cut
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

/** `{rows, total}`: the first rows, each a list of cells, and how many there are (RFC 4180, any usual separator). */
export function rowsOf(text, separator = separatorOf(text)) {
  const rows = [];
  let [row, cell, quoted, total] = [[], "", false, 0];
  const endRow = () => {
    row.push(cell);
    if (row.length > 1 || row[0] !== "") {
      total += 1;
      if (rows.length <= MOST_ROWS) rows.push(row);
    }
    [row, cell] = [[], ""];
  };
  for (let place = 0; place < text.length; place += 1) {
    const character = text[place];
    if (quoted) {
      if (character !== '"') cell += character;
      else if (text[place + 1] === '"') { cell += '"'; place += 1; } else quoted = false;
    } else if (character === '"' && cell === "") quoted = true;
    else if (character === separator) { row.push(cell); cell = ""; }
    else if (character === "\n") endRow();
    else if (character !== "\r") cell += character;
  }
  endRow();
  return { rows, total };
}

function separatorOf(text) {
  const first = text.slice(0, 10000).split("\n", 1)[0].replace(/"[^"]*"/g, "");
  const counts = [",", ";", "\t", "|"].map((character) => [first.split(character).length, character]);
  return counts.sort(([one], [other]) => other - one)[0][1];
}

/** The table in a frame, and a line below with what is not shown; `whole`: the text is complete. */
export function sheet(text, whole, name) {
  const { rows, total } = rowsOf(whole ? text : text.slice(0, text.lastIndexOf("\n") + 1 || undefined));
  if (rows.length === 0) return [h("p", { class: "sheet-note" }, "This table is empty.")];
  const width = Math.max(...rows.map((row) => row.length));
  const shown = Math.min(width, MOST_COLUMNS);
  const [heads, ...body] = rows.map((row) => Array.from({ length: shown }, (_, column) => row[column] ?? ""));
  const right = heads.map((_, column) => body.length > 0 && body.every((row) => row[column] === "" || NUMBER.test(row[column])));
  const cells = (row, tag, more = {}) => row.map((value, column) => h(tag, { ...more, align: right[column] ? "right" : null }, short(value)));
  const frame = h("div", { class: "table-frame sheet-frame", tabindex: "0", role: "region", "aria-label": `Table ${name ?? ""}`.trim() },
    h("table", {}, h("thead", {}, h("tr", {}, cells(heads, "th", { scope: "col" }))), h("tbody", {}, body.map((row) => h("tr", {}, cells(row, "td"))))));
  const note = left(total - 1 - body.length, width - shown, whole);
  return note ? [frame, h("p", { class: "sheet-note" }, note)] : [frame];
}

function left(rows, columns, whole) {
  const more = (number, word) => (number > 0 ? `${count(number)} more ${word}${number === 1 ? "" : "s"}` : "");
  const hidden = [whole ? more(rows, "row") : "more rows", more(columns, "column")].filter(Boolean);
  return hidden.length ? `${hidden.join(", ")} in the file` : "";
}

const short = (value) => (value.length > MOST_CHARACTERS ? `${value.slice(0, MOST_CHARACTERS - 1)}…` : value);
