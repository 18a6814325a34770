// Tables in files of separated values, read as they are written.
import { h } from "./dom.js";
import { Grid } from "./grid.js";
import { t } from "./i18n.js";

export const MOST_BYTES = 5_000_000;
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

/** The rows, each a list of cells (RFC 4180, any usual separator). */
export function rowsOf(text, separator = separatorOf(text)) {
  const rows = [];
  let [row, cell, quoted] = [[], "", false];
  const endRow = () => {
    row.push(cell);
    if (row.length > 1 || row[0] !== "") rows.push(row);
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
  return rows;
}

function separatorOf(text) {
  const first = text.slice(0, 10000).split("\n", 1)[0].replace(/"[^"]*"/g, "");
  const counts = [",", ";", "\t", "|"].map((character) => [first.split(character).length, character]);
  return counts.sort(([one], [other]) => other - one)[0][1];
}

/** The elements of the table; `whole`: the text is complete. */
export function sheet(text, whole, name) {
  const rows = rowsOf(whole ? text : text.slice(0, text.lastIndexOf("\n") + 1 || undefined));
  if (rows.length === 0) return [h("p", { class: "sheet-note" }, t("This table is empty."))];
  const cut = h("p", { class: "sheet-note" }, t("These are the rows at the beginning of a longer file."));
  return [...new Grid(rows, name).elements, ...(whole ? [] : [cut])];
}
