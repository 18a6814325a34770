// Tool cards: what was called, with what, what came back, how long it took.
import { duration, h, icon } from "./dom.js";
import { t } from "./i18n.js";
import { Markdown } from "./markdown.js";
import { StepProgress } from "./progress.js";

const SECONDS = /\s*\[(\d+(?:\.\d+)?)s\]\s*$/;
const SPINNER = () => h("span", { class: "spinner", "aria-hidden": "true" });

/** One call. It is built from the stage of a run, or from the messages of a stored conversation. */
export class ToolCard {
  constructor(name, callId = null) {
    this.callId = callId;
    this.text = "";
    this.mark = h("span", { class: "card-mark" }, SPINNER());
    this.title = h("span", { class: "card-title" });
    this.time = h("span", { class: "card-time" });
    this.progress = new StepProgress();
    this.body = h("div", { class: "card-body" });
    this.children = h("div", { class: "card-children" });
    const summary = h("summary", {}, this.mark, this.title, this.progress.element, this.time, icon("chevron"));
    this.element = h("details", { class: "card running" }, summary, this.body, this.children);
    this.waiting = [];
    this.element.addEventListener("toggle", () => this.draw());
    this.rename(name);
  }

  rename(name) {
    const seconds = SECONDS.exec(name)?.[1];
    this.title.textContent = name.replace(SECONDS, "") || t("Step");
    if (seconds !== undefined) this.took(Number(seconds) * 1000);
  }

  get running() {
    return this.element.classList.contains("running");
  }

  get failed() {
    return this.element.classList.contains("failed");
  }

  took(milliseconds) {
    this.milliseconds = milliseconds;
    this.changed?.();
    this.time.textContent = duration(milliseconds);
  }

  write(text) {
    this.text += text;
    this.progress.show(this.text);
    this.draw();
  }

  /** Arguments and result of a call that is over. */
  fill(callArguments, result, failed) {
    this.text = `## ${t("Request arguments:")}\n\n${fenced(pretty(callArguments), "json")}\n\n`;
    if (result !== null) this.text += `## ${t("Response:")}\n\n${result}`;
    this.close(failed ? "failed" : "completed");
    this.draw();
  }

  draw() {
    if (!this.element.open) return;
    for (const make of this.waiting.splice(0)) this.attach(make());
    this.markdown ??= new Markdown();
    if (!this.markdown.element.isConnected) this.body.append(this.markdown.element);
    this.markdown.show(this.text || `_${t("Nothing to show yet.")}_`);
  }

  attach(element) {
    this.children.append(element);
  }

  /** Something that is made when the card is opened. */
  attachLater(make) {
    this.waiting.push(make);
    this.draw();
  }

  close(status, name = null) {
    if (name) this.rename(name);
    const failed = status === "failed";
    this.element.classList.remove("running");
    this.element.classList.toggle("failed", failed);
    this.mark.replaceChildren(icon(failed ? "cross" : "check"));
    this.mark.setAttribute("role", "img");
    this.mark.setAttribute("aria-label", failed ? t("Failed") : t("Done"));
    this.progress.element.remove();
    this.changed?.();
  }

  /** A call that nobody finished; one that `waits` for a user is shown by its question. */
  abandon(waits) {
    if (!this.running) return;
    if (!waits) this.close("failed");
    else this.element.remove();
    this.changed?.();
  }
}

/** The card of a stored call, titled as its stage was. */
export function storedCard(call, result) {
  const { name, arguments: given } = call.function;
  const card = new ToolCard(name, call.id);
  card.give = (used) => {
    card.rename(titled(name, used));
    card.fill(used, result ? textOf(result.content) : null, result ? Boolean(result.failed) : true);
  };
  card.give(given);
  return card;
}

/** The text of a message's content, which is a string or a list of parts. */
export function textOf(content) {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  return content.filter((item) => item.type === "text").map((item) => item.text).join("\n");
}

export function pretty(text) {
  if (typeof text !== "string") return JSON.stringify(text, null, 2);
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

export function fenced(text, language = "") {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((run) => run[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

function titled(name, given) {
  let telling = "";
  try {
    const values = Object.values(JSON.parse(given)).filter((value) => typeof value === "string" || typeof value === "number");
    telling = String(values[0] ?? "").split("\n")[0];
    if (telling.startsWith("files/")) telling = telling.split("/").pop();
  } catch { /* the name is enough */ }
  return telling ? `${name}: ${telling.length > 60 ? `${telling.slice(0, 59)}…` : telling}` : name;
}
