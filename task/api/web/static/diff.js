// What the user changed in a call's arguments: the fields that differ, and of long texts the lines.
import { h } from "./dom.js";
import { t } from "./i18n.js";

const MOST_CELLS = 1_000_000; // of the table that compares the lines of two texts

/** The fields that differ, as `{path, before, after}`; undefined where a side has none. */
export function changes(before, after, path = "") {
  if (JSON.stringify(before) === JSON.stringify(after)) return [];
  if (!isObject(before) || !isObject(after)) return [{ path, before, after }];
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return names.flatMap((name) => changes(before[name], after[name], path ? `${path}.${name}` : name));
}

/** The element that shows them: a list of fields, each with what was there and what is there now. */
export function changeList(before, after) {
  const found = changes(before, after);
  if (found.length === 0) return h("p", { class: "changes-none" }, t("Nothing is changed."));
  return h("dl", { class: "changes" }, found.map((change) => [
    h("dt", {}, change.path || t("Arguments")), h("dd", {}, difference(written(change.before), written(change.after))),
  ]));
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const written = (value) => (value === undefined ? null : typeof value === "string" ? value : JSON.stringify(value, null, 2));

function difference(before, after) {
  if (before === null || after === null) return [line("-", before), line("+", after)];
  return lines(before.split("\n"), after.split("\n")).map(([sign, text]) => line(sign, text));
}

function line(sign, text) {
  if (text === null) return "";
  if (sign === " ") return h("span", {}, `${text}\n`);
  const label = sign === "-" ? t("before:") : t("now:");
  return h(sign === "-" ? "del" : "ins", {}, h("span", { class: "unseen" }, `${label} `), text || "⏎");
}

/** The lines of both texts as `[sign, line]`: "-" before, "+" now, " " in both (their longest common subsequence). */
export function lines(before, after) {
  let head = 0;
  while (head < Math.min(before.length, after.length) && before[head] === after[head]) head += 1;
  let tail = 0;
  while (tail < Math.min(before.length, after.length) - head && before.at(-1 - tail) === after.at(-1 - tail)) tail += 1;
  const kept = (part) => part.map((text) => [" ", text]);
  const [old, made] = [before.slice(head, before.length - tail), after.slice(head, after.length - tail)];
  return [...near(kept(before.slice(0, head)), -1), ...middle(old, made), ...near(kept(before.slice(before.length - tail)), 0)];
}

// Two unchanged lines on either side are enough to find the place.
const near = (kept, side) => (kept.length <= 3 ? kept : side === 0 ? [...kept.slice(0, 2), [" ", "…"]] : [[" ", "…"], ...kept.slice(-2)]);

function middle(old, made) {
  if (old.length * made.length > MOST_CELLS) return [...old.map((text) => ["-", text]), ...made.map((text) => ["+", text])];
  const common = Array.from({ length: old.length + 1 }, () => new Uint32Array(made.length + 1));
  for (let row = old.length - 1; row >= 0; row -= 1) {
    for (let column = made.length - 1; column >= 0; column -= 1) {
      common[row][column] = old[row] === made[column] ? common[row + 1][column + 1] + 1 : Math.max(common[row + 1][column], common[row][column + 1]);
    }
  }
  const found = [];
  let [row, column] = [0, 0];
  while (row < old.length && column < made.length) {
    if (old[row] === made[column]) { found.push([" ", old[row]]); row += 1; column += 1; }
    else if (common[row + 1][column] >= common[row][column + 1]) { found.push(["-", old[row]]); row += 1; }
    else { found.push(["+", made[column]]); column += 1; }
  }
  return [...found, ...old.slice(row).map((text) => ["-", text]), ...made.slice(column).map((text) => ["+", text])];
}
