// Draws diagrams in a frame with an origin of its own: the page sends their texts, and ends the frame when it is late.
import mermaid from "./vendor/mermaid/mermaid.esm.min.mjs";

let number = 0;

addEventListener("message", async ({ data: { text, options } }) => {
  let error = undefined;
  mermaid.initialize(options);
  await mermaid.parse(text).catch((reason) => { error = reason.message; }); // loads what this kind of diagram needs
  parent.postMessage({ error }, "*");
  if (error !== undefined) return;
  const drawn = mermaid.render(`diagram-${number += 1}`, text).catch((reason) => ({ error: reason.message }));
  parent.postMessage(await drawn.then(({ svg, error: reason }) => ({ svg, error: reason })), "*");
});
parent.postMessage({}, "*");
