// What DIAL Chat makes of an answer: the packages that it renders Markdown with, raw HTML included, as one script.
// Put together by `renderer` in tests/e2e/test_answers_in_dial_chat.py.
import { toDom } from "hast-util-to-dom";
import rehypeRaw from "rehype-raw";
import remarkGfm from "remark-gfm";
import remarkMath from "remark-math";
import remarkParse from "remark-parse";
import remarkRehype from "remark-rehype";
import { unified } from "unified";

const reader = (...plugins) => {
  const made = unified().use(remarkParse).use(plugins).use(remarkRehype, { allowDangerousHtml: true }).use(rehypeRaw).freeze();
  return (text) => toDom(made.runSync(made.parse(text)), { fragment: true });
};
const withFormulas = reader(remarkGfm, remarkMath), plain = reader(remarkGfm);

globalThis.renderings = (text) => [text, `${text}\`▍\``].flatMap((shown) => [withFormulas(dollars(shown)), withFormulas(shown), plain(shown)]);

/** Formulas in brackets as formulas in dollars, except in code as a simple search finds it; `<<CODE_BLOCK_0>>` becomes the first. */
function dollars(text) {
  const code = [], keep = (found) => `<<CODE_BLOCK_${code.push(found) - 1}>>`;
  const kept = text.replace(/```[^]*?```|`[^`\n]+`/g, keep).replace(/\$(?=\d)/g, "\\$");
  return kept.replace(/<<CODE_BLOCK_(\d+)>>/g, (_, place) => code[place])
    .replace(/(```[^]*?```|`.*?`)|\\\[([^]*?[^\\])\\\]|\\\((.*?)\\\)/g, (whole, found, block, inline) => (
      found ?? (block === undefined ? `$${inline}$` : `$$${block}$$`)));
}
