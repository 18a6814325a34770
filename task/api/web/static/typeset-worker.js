// Makes HTML of formulas and of code, away from the page's own thread. Each library is loaded with the first of its kind.

const MOST_EMS = 500; // of a height or distance: a matrix of a hundred lines needs a third

const MAKERS = {
  math(tex, display) {
    if (!self.katex) importScripts("vendor/katex/katex.min.js");
    const html = katex.renderToString(tex, {
      displayMode: display, trust: false, throwOnError: true, strict: "ignore", maxExpand: 500, maxSize: 20,
    });
    // maxSize does not bound what is raised or moved.
    if ([...html.matchAll(/:-?([\d.]+)em/g)].some(([, length]) => length > MOST_EMS)) throw new Error("it is too large");
    return html;
  },
  code(text, language) {
    if (!self.hljs) importScripts("vendor/highlightjs/highlight.min.js");
    return hljs.getLanguage(language) ? hljs.highlight(text, { language, ignoreIllegals: true }).value : null;
  },
};

self.onmessage = ({ data: { id, kind, text, option } }) => {
  try {
    self.postMessage({ id, html: MAKERS[kind](text, option) });
  } catch (error) {
    self.postMessage({ id, html: null, fault: error.message });
  }
};
