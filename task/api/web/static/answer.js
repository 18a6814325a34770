// One answer: its text, tool cards, attachments, questions and figures, in the order in which they came.
import { outcomeOf } from "./approval.js";
import { ApprovalList } from "./approvals.js";
import { shown } from "./attachments.js";
import { storedCard, textOf, ToolCard } from "./cards.js";
import { copy, cost, count, duration, h, icon, iconButton } from "./dom.js";
import { StepRun } from "./folding.js";
import { t } from "./i18n.js";
import { Markdown } from "./markdown.js";
import { Rating } from "./ratings.js";
import { isCitation, Sources } from "./sources.js";

const ENDINGS = {
  cancelled: t("Stopped."), interrupted: t("The agent stopped before it finished this answer."),
  cut: t("The answer was cut off at the model's token limit."), limited: t("A limit of this run was reached."),
  failed: t("This answer could not be finished."),
  unanswered: t("There is no answer."),
};

/** `actions`: `retry(answer)` and `decided(answer, approvalAnswer)`. */
export class Answer {
  constructor(actions) {
    this.actions = actions;
    this.cards = new Map();
    this.traces = new Set(); // a question that waited makes two runs of one answer
    this.text = "";
    this.writing = null;
    this.steps = null; // the run of steps with which the answer ends so far
    this.parts = h("div", { class: "parts" });
    this.sources = new Sources();
    this.foot = h("footer", { class: "answer-foot" });
    this.element = h("article", { class: "answer", "aria-label": t("Answer") }, this.parts, this.sources.element, this.foot);
  }

  /** Show that something is on its way. */
  begin() {
    this.waiting = h("p", { class: "thinking", role: "img", "aria-label": t("Working") }, h("i"), h("i"), h("i"));
    this.element.setAttribute("aria-busy", "true");
    this.parts.append(this.waiting);
    this.foot.replaceChildren();
  }

  handle(event) {
    const handler = this[`on_${event.type}`];
    if (handler) handler.call(this, event);
    if (this.waiting) this.parts.append(this.waiting);
  }

  on_text({ text }) {
    this.text += text;
    if (!this.writing && !text.trim()) return;
    if (!this.writing) {
      this.steps = null;
      this.writing = { text: "", view: new Markdown((block) => this.sources.link(block)) };
      this.parts.append(this.writing.view.element);
    }
    this.writing.text += text;
    this.schedule();
  }

  on_reasoning({ text }) {
    if (!this.reasoning) {
      this.reasoning = h("div", { class: "reasoning-text" });
      this.parts.append(h("details", { class: "reasoning" }, h("summary", {}, icon("chevron"), t("Thoughts")), this.reasoning));
    }
    this.reasoning.append(text);
  }

  on_stage_opened({ stage, parent, name }) {
    const card = new ToolCard(name);
    this.cards.set(stage, card);
    this.busyWith(name);
    const above = this.cards.get(parent);
    if (above) above.attach(card.element);
    else this.step(card);
  }

  on_stage_text({ stage, text }) {
    this.cards.get(stage)?.write(text);
  }

  on_stage_closed({ stage, name, status }) {
    this.cards.get(stage)?.close(status, name);
    this.busyWith(t("Working"));
  }

  /** Name what is going on in the line below the answer so far: a call, or a model that is being loaded. */
  busyWith(name) {
    if (!this.waiting) return;
    this.waiting.title = name;
    this.waiting.setAttribute("aria-label", name);
  }

  on_attachment({ stage, attachment }) {
    const card = stage === null || stage === undefined ? null : this.cards.get(stage);
    if (!card) this.attach(attachment);
    else if (!isCitation(attachment)) card.attachLater(() => shown(attachment)); // the answer carries those it cites
  }

  on_approval({ approvals }) {
    this.ask(approvals);
  }

  on_usage(event) {
    this.spent(event, event.duration_ms);
  }

  /** `cost` is null where no price is known. */
  spent({ prompt_tokens: read = 0, completion_tokens: written = 0, cost: price = null }, milliseconds) {
    const before = this.usage ?? { read: 0, written: 0, price: null, isPartial: false, milliseconds: 0 };
    this.usage = {
      read: before.read + read, written: before.written + written, milliseconds: before.milliseconds + (milliseconds ?? 0),
      price: price === null ? before.price : (before.price ?? 0) + price,
      isPartial: before.isPartial || (price === null && read + written > 0),
    };
  }

  on_error({ error }) {
    this.trouble(error.display_message ?? error.message, error.reference);
  }

  on_finished({ status, trace_id: traceId, limit, finish_reason: reason }) {
    this.end(status === "finished" && reason === "length" ? "cut" : status, { traceId, limit });
  }

  /** Questions that wait at once stand in one list. */
  ask(approvals) {
    for (const approval of approvals) this.cards.get(approval.call_id)?.element.remove();
    if (!this.questions?.waiting.length) {
      this.questions = new ApprovalList((reply) => this.actions.decided(this, reply));
      this.place(this.questions.element);
    }
    this.questions.add(approvals);
  }

  /** Show above its card how a call was decided, unless it was simply approved; `decisions` by the calls' ids. */
  decide(decisions) {
    for (const [callId, card] of this.cards) {
      const approval = decisions.get(callId);
      if (!approval || approval.status === "waiting" || (approval.status === "allowed" && !approval.answer?.arguments)) continue;
      card.decision ??= h("div", { class: "approval done" }, outcomeOf(approval));
      card.element.before(card.decision);
      if (approval.answer?.arguments) card.give?.(JSON.stringify(approval.answer.arguments)); // those it ran with
    }
  }

  attach(item) {
    if (!isCitation(item)) {
      this.place(shown(item));
    } else if (this.sources.add(item)) {
      for (const prose of this.parts.querySelectorAll(":scope > .prose")) this.sources.link(prose);
    }
  }

  /** Put an element after all there is; text that follows starts a new part. */
  place(element) {
    this.flush();
    this.writing = this.steps = null;
    this.parts.append(element);
  }

  /** Put a step after all there is; many in a row are folded. */
  step(card) {
    this.flush();
    this.writing = null;
    this.steps ??= new StepRun(this.parts);
    this.steps.add(card);
  }

  trouble(message, reference = null) {
    const note = reference && !message.includes(reference) ? ` (reference ${reference})` : "";
    this.place(h("p", { class: "trouble", role: "alert" }, icon("warn"), h("span", {}, message + note)));
    this.failed = true;
  }

  end(status, { traceId = null, limit = null } = {}) {
    this.flush();
    this.waiting?.remove();
    this.waiting = null;
    this.element.removeAttribute("aria-busy");
    for (const card of this.cards.values()) card.abandon(status === "suspended");
    if (ENDINGS[status] && !this.failed) {
      const text = status === "limited" && limit ? `${ENDINGS.limited} (${limit})` : ENDINGS[status];
      this.ending = h("p", { class: "ending" }, text);
      this.parts.append(this.ending);
    }
    this.failed = false;
    if (traceId) this.traces.add(traceId);
    if (traceId && status !== "suspended") this.rating = new Rating({ trace_id: traceId });
    this.figures(traceId);
  }

  /** The line below: what can be done with the answer, and what it took. */
  figures(traceId = null) {
    const { read = 0, written = 0, price = null, isPartial = false, milliseconds = 0 } = this.usage ?? {};
    const tokens = read + written > 0 ? t("{read} in · {written} out tokens", { read, written }) : "";
    const figures = [tokens, isPartial && price ? t("at least {cost}", { cost: cost(price) }) : isPartial ? "" : cost(price), milliseconds > 0 ? duration(milliseconds) : ""].filter(Boolean);
    const copying = iconButton("copy", t("Copy the answer"), () => copy(this.text, copying));
    this.foot.replaceChildren(
      h("span", { class: "answer-actions" }, copying, iconButton("retry", t("Answer again"), () => this.actions.retry(this)),
        this.switch ?? "",
        traceId ? h("a", { class: "icon-button", href: `#/traces/${traceId}`, "aria-label": t("Show the trace"), title: t("Show the trace") }, icon("trace")) : "", this.rating?.element),
      h("span", { class: "figures" }, figures.join(" · ")), this.rating?.note ?? "",
    );
  }

  /** The switch between this answer's versions, null where it is the only one. */
  showSwitch(element) {
    this.switch?.remove();
    this.switch = element;
    if (element) this.foot.append(element);
  }

  /** The part of a stored conversation between two messages of the user. */
  restore(messages) {
    const results = new Map(messages.filter((item) => item.role === "tool").map((item) => [item.tool_call_id, item]));
    for (const message of messages) {
      if (message.role === "assistant") this.restoreTurn(message, results);
    }
    this.end(messages.length > 0 ? "finished" : "unanswered");
  }

  restoreTurn(message, results) {
    const text = textOf(message.content);
    if (text) this.on_text({ text: this.text ? `\n\n${text}` : text });
    for (const call of message.tool_calls ?? []) {
      const result = results.get(call.id);
      const card = storedCard(call, result);
      this.cards.set(call.id, card);
      this.step(card);
      for (const item of (result?.attachments ?? []).filter((item) => !isCitation(item))) this.attach(item);
    }
    for (const item of message.attachments ?? []) this.attach(item);
  }

  /** What the run's trace knows and the messages do not. */
  annotate(trace) {
    for (const call of trace.tool_calls) {
      const card = this.cards.get(call.id);
      if (card) card.took(call.duration_ms);
    }
    if (this.ending && ENDINGS[trace.status]) this.ending.textContent = ENDINGS[trace.status];
    const used = Object.values(trace.usage ?? {});
    const sum = (name) => used.reduce((all, usage) => all + usage[name], 0);
    this.spent({ prompt_tokens: sum("prompt_tokens"), completion_tokens: sum("completion_tokens"), cost: trace.cost }, trace.duration_ms);
    this.traces.add(trace.trace_id);
    if (trace.status !== "suspended") this.rating ??= new Rating(trace); // the newest one comes first
    this.figures([...this.traces][0]);
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => this.flush());
    setTimeout(() => this.flush(), 250); // frames stop in a tab that is not seen
  }

  flush() {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = null;
    if (this.writing && this.writing.drawn !== this.writing.text) {
      this.writing.view.show(this.writing.text);
      this.writing.drawn = this.writing.text;
    }
  }
}
