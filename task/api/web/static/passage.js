// Finding a quotation in the text of an element and marking it. Only letters and digits count, so that line breaks,
// hyphens and the spacing of a PDF do not matter.
import { h } from "./dom.js";

const TELLING = 12; // letters that a part of a quotation needs to be looked for by itself

/** The letters and digits of a text in their simplest form. */
export const letters = (text) => text.normalize("NFKC").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "");

/** The quotation, or where it was put together or broken over pages the parts of it, that stand in the text. */
export function found(text, quote) {
  const whole = letters(quote);
  if (whole && text.includes(whole)) return [whole];
  return quote.split(/…|\.{3}|\n/).map(letters).filter((part) => part.length >= TELLING && text.includes(part));
}

/** Mark the quotation below the element; the first mark, or null where it does not stand there. */
export function markPassage(root, quote) {
  const { text, places } = mapped(root);
  const ranges = found(text, quote).flatMap((part) => {
    const start = text.indexOf(part);
    return pieces(places.slice(start, start + part.length));
  });
  ranges.sort((one, other) => other.order - one.order || other.from - one.from); // a mark moves what follows in its node
  ranges.forEach(({ node, from, to }) => wrap(node, from, to));
  return root.querySelector("mark");
}

/** The letters of the text, and for each the node and the offset at which it stands. */
function mapped(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const places = [];
  let text = "";
  for (let order = 0; walker.nextNode(); order += 1) {
    const node = walker.currentNode;
    let from = 0;
    for (const character of node.data) {
      const plain = letters(character);
      for (const _ of plain.split("")) places.push({ node, order, from, to: from + character.length });
      text += plain;
      from += character.length;
    }
  }
  return { text, places };
}

/** One range for each node that the places lie in. */
function pieces(places) {
  const ranges = new Map();
  for (const { node, order, from, to } of places) {
    const range = ranges.get(node);
    if (range) range.to = to;
    else ranges.set(node, { node, order, from, to });
  }
  return [...ranges.values()];
}

function wrap(node, from, to) {
  const range = document.createRange();
  range.setStart(node, from);
  range.setEnd(node, to);
  range.surroundContents(h("mark"));
}
