// What other tabs and front doors change: looked for when another tab reports a change, the tab is shown again, and every few seconds.
import { onWrite } from "./api.js";

const EVERY = 5000; // milliseconds, while the tab is visible
const GATHERED = 200;

/** `look(changed)` makes one small request; `changed`: another tab has changed something, or this one was away. */
export function followOthers(look) {
  const channel = new BroadcastChannel("agent.changes");
  let waiting = null;
  const soon = () => {
    if (waiting || document.hidden) return;
    waiting = setTimeout(() => { waiting = null; look(true); }, GATHERED);
  };
  onWrite(() => channel.postMessage("changed"));
  channel.addEventListener("message", soon);
  document.addEventListener("visibilitychange", soon);
  addEventListener("focus", soon);
  setInterval(() => { if (!document.hidden) look(false); }, EVERY);
}
