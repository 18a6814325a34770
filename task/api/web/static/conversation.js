// A conversation: its messages, the answer in the making, and what can be done with them.
import * as api from "./api.js";
import { Annotations } from "./annotations.js";
import { Answer } from "./answer.js";
import { announce, h, isWrittenIn } from "./dom.js";
import { Following } from "./following.js";
import { t } from "./i18n.js";
import { asWritten, grouped, questionElement, requestOf } from "./questions.js";
import { focusSwitch, versionSwitch } from "./versions.js";

const AT_ONCE = 24; // messages shown first; earlier ones come when they are scrolled to
const ENDED_BADLY = new Set(["failed", "interrupted", "cancelled"]);

/**
 * `listeners`: `opened(sessionId)`, `switched(sessionId)` to another version, `changed()`, `busy(answering)`,
 * `ended(isOver, sessionId)`, `gone(sessionId, error)`, `refused(message, trouble)`, `manner()`.
 */
export class Conversation extends Following {
  constructor(listeners) {
    super();
    this.listeners = listeners;
    this.actions = { retry: (answer) => this.again(answer), decided: (answer, run) => this.resume(answer, run) };
    this.askInstead = (element, message) => this.askAgain(element, message);
    this.reset();
  }

  reset({ keep = false } = {}) {
    this.leaving?.abort();
    this.leaving = new AbortController();
    this.sessionId = null;
    this.family = null;
    this.runId = null;
    this.starting = false; // a message is being sent
    this.known = null; // the newest run and its state, as shown here
    this.versions = [];
    this.hidden = [];
    this.annotations = null;
    this.decisions = new Map(); // how questions were decided, by the calls' ids
    if (!keep) {
      this.follows = true;
      this.top = 0;
      this.list.replaceChildren();
    }
    this.listeners.busy(false);
    this.listeners.ended(false, null);
  }

  /** Open a conversation; `again`: what is shown is another version or state of it and stays until that has come. */
  open(sessionId, options = {}) {
    this.opening = this.load(sessionId, options);
    return this.opening;
  }

  async load(sessionId, { again = false, position = Infinity }) {
    this.reset({ keep: again });
    this.sessionId = sessionId;
    const { signal } = this.leaving;
    if (!again) this.list.replaceChildren(h("div", { class: "skeleton", role: "status", "aria-label": t("Loading") }, h("i"), h("i"), h("i")));
    const [{ messages, status }, { versions, family }] = await Promise.all([api.messages(sessionId), api.versions(sessionId)]);
    if (signal.aborted) return;
    this.versions = versions;
    this.family = family;
    this.annotations = new Annotations(sessionId, signal);
    const top = this.element.scrollTop;
    this.show(messages, position);
    if (this.follows) this.toEnd();
    else this.element.scrollTop = top;
    this.listeners.ended(status === "completed", sessionId);
    await this.pickUp(signal);
    this.annotate();
  }

  /** Show another version of a message; the switch stays where it is. */
  async choose(sessionId, position) {
    const step = document.activeElement?.dataset.step;
    this.follows = false;
    try {
      const opening = this.open(sessionId, { again: true, position });
      this.listeners.switched(sessionId);
      await opening;
      if (this.sessionId !== sessionId) return;
      this.listeners.switched(sessionId);
      focusSwitch(this.list, position, step);
    } catch (error) {
      this.newest()?.trouble(error.message);
    }
  }

  /** Whether another tab or front door has changed this conversation since it was shown; then it is shown again. */
  async refresh() {
    const id = this.sessionId;
    if (!id || this.runId || this.starting || this.looking || this.known === null || isWrittenIn(this.list)) return false;
    this.looking = true;
    try {
      const { runs: [run] } = await api.runs(id);
      if (stateOf(run) === this.known && run?.status === "suspended") await this.newest()?.questions?.check();
      if (stateOf(run) === this.known || this.runId || this.starting || this.sessionId !== id || isWrittenIn(this.list)) return false;
      await this.open(id, { again: true });
      return true;
    } catch (error) {
      if (this.sessionId === id && error.status === 404) this.listeners.gone(id, error);
      else if (this.sessionId === id) this.known ??= "unknown"; // the next look may succeed
      return false;
    } finally {
      this.looking = false;
    }
  }

  annotate() {
    const answers = [...this.list.querySelectorAll(".answer")].map((element) => element.answer);
    this.annotations?.add(answers);
    for (const answer of answers) answer.decide(this.decisions);
  }

  /** Show the newest messages, and as many before as lead to the one at `position`. */
  show(messages, position) {
    const placed = messages.map((item, place) => ({ ...item, place }));
    const groups = grouped(placed.filter((item) => item.role !== "system" && item.role !== "developer"));
    const wanted = groups.findLastIndex(({ from }) => from <= position);
    const first = Math.max(0, Math.min(groups.length - AT_ONCE, wanted < 0 ? Infinity : wanted - 2));
    this.hidden = groups.slice(0, first);
    this.list.replaceChildren(...groups.slice(first).map((group) => this.restored(group)));
    if (this.hidden.length) this.list.prepend(this.sentinel());
  }

  sentinel() {
    const more = h("button", { type: "button", class: "quiet earlier", onclick: () => this.earlier(more) }, t("Earlier messages"));
    const watch = new IntersectionObserver(([entry]) => {
      if (entry.isIntersecting && !this.follows) this.earlier(more);
    }, { root: this.element, rootMargin: "400px" });
    watch.observe(more);
    return more;
  }

  earlier(more) {
    const before = this.element.scrollHeight - this.element.scrollTop;
    const groups = this.hidden.splice(-AT_ONCE);
    more.replaceWith(...(this.hidden.length ? [this.sentinel()] : []), ...groups.map((group) => this.restored(group)));
    this.element.scrollTop = this.element.scrollHeight - before;
    this.annotate();
  }

  restored({ messages, skills, from, to }) {
    if (messages[0]?.role === "user") {
      const question = questionElement(asWritten(messages[0]), [...(messages[0].attachments ?? []), ...skills], this.askInstead);
      question.place = from;
      this.markQuestion(question);
      return question;
    }
    const answer = this.made();
    answer.switch = this.switchBetween(from, to);
    answer.restore(messages);
    return answer.element;
  }

  /** The switch of the version that begins with one of these messages. */
  switchBetween(from, to) {
    const found = this.versions.find(({ position }) => position >= from && position < to);
    return found ? versionSwitch(found, (sessionId) => this.choose(sessionId, found.position)) : null;
  }

  markQuestion(question) {
    question.querySelector(".versions")?.remove();
    const found = this.switchBetween(question.place, question.place + 1);
    if (found) question.querySelector(".question-actions").append(found);
  }

  /** The versions that a branch adds are known once its run has started. */
  async findVersions(question, answer, signal) {
    const { versions, family } = await api.versions(this.sessionId);
    if (signal.aborted) return;
    this.versions = versions;
    this.family = family;
    this.markQuestion(question);
    answer.showSwitch(this.switchBetween(question.place + 1, Infinity));
  }

  made() {
    const answer = new Answer(this.actions);
    answer.element.answer = answer;
    return answer;
  }

  /** Ask: a new run in this conversation, or in a new one. */
  async send({ text, files }, place = null) {
    const { signal } = this.leaving;
    this.starting = true;
    this.listeners.busy(true);
    await this.opening?.catch(() => {}); // it would put what was loaded before in place of this message
    if (signal.aborted) return this.listeners.refused({ text, files }, "");
    const question = questionElement(text, files.map((item) => ({ ...item, title: item.filename ?? item.title, type: item.content_type ?? item.type })), this.askInstead);
    const answer = this.made();
    this.list.append(question, answer.element);
    answer.begin();
    this.follows = true;
    this.toEnd();
    const body = { ...requestOf({ text, files }), origin: "page", ...this.listeners.manner() };
    if (this.sessionId) body.session_id = this.sessionId;
    let run = null;
    try {
      run = await api.startRun(body);
      if (signal.aborted) return;
      if (!this.sessionId || run.session_id !== this.sessionId) {
        this.sessionId = run.session_id;
        this.listeners.opened(run.session_id);
      }
      if (place !== null) {
        question.place = place;
        this.findVersions(question, answer, signal).catch(() => {}); // they are found when it is opened again
      }
      await this.listen(run.run_id, answer, signal);
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      this.starting = false;
      this.listeners.busy(false);
      if (run === null) { // nothing of it has been kept
        question.remove();
        answer.element.remove();
        this.listeners.refused({ text, files }, error.message);
        return;
      }
      answer.trouble(error.message);
      answer.end("failed");
    }
  }

  async listen(runId, answer, signal) {
    this.runId = runId;
    this.starting = false;
    this.listeners.busy(true);
    let status = "finished";
    await api.follow(runId, (event) => {
      if (signal.aborted) return;
      answer.handle(event);
      if (event.type === "finished") status = event.status;
    }, signal);
    if (signal.aborted) return;
    this.runId = null;
    this.known = stateOf({ run_id: runId, status });
    this.listeners.busy(false);
    this.listeners.changed();
    if (status !== "suspended") announce(t("The answer is complete")); // a question has announced itself
    if (this.follows) this.toEnd();
  }

  /** After a reload: an answer that is still being made, or a question that waits. */
  async pickUp(signal) {
    const { runs } = await api.runs(this.sessionId);
    const [run] = runs;
    if (signal.aborted) return;
    this.known = stateOf(run);
    if (run?.status === "running") {
      const answer = this.newest() ?? this.fresh();
      answer.begin();
      this.listen(run.run_id, answer, signal).catch((error) => {
        if (error.name !== "AbortError") answer.trouble(error.message);
      });
      return;
    }
    if (run && ENDED_BADLY.has(run.status) && this.newest() === null) this.fresh().end(run.status, { traceId: run.trace_id });
    const { approvals } = await api.decisions(this.sessionId);
    if (signal.aborted) return;
    this.decisions = new Map(approvals.map((approval) => [approval.call_id, approval]));
    const waiting = approvals.filter((approval) => approval.status === "waiting");
    if (waiting.length === 0) return;
    const answer = this.newest() ?? this.fresh();
    answer.ask(waiting);
    if (this.follows) this.toEnd();
  }

  /** The last decision was taken: the run continues; without one here it was taken elsewhere. */
  async resume(answer, run) {
    if (!answer.element.isConnected) return; // it has been drawn again, and is followed there
    if (!run) {
      await this.open(this.sessionId, { again: true });
      return;
    }
    answer.begin();
    try {
      await this.listen(run.run_id, answer, this.leaving.signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      answer.trouble(error.message);
      this.listeners.busy(false);
    }
  }

  async stop() {
    if (!this.runId) return;
    announce(t("Stopping"));
    await api.cancelRun(this.runId).catch((error) => this.newest()?.trouble(error.message));
  }

  again(answer) {
    let before = answer.element.previousElementSibling;
    while (before && !before.message) before = before.previousElementSibling;
    if (before) this.askAgain(before, before.message);
  }

  /** Continue from there in a branch, so that the version before stays. */
  async askAgain(element, { text, files }) {
    if (this.runId || !this.sessionId) return;
    const later = [...this.list.querySelectorAll(".question")].reverse().indexOf(element) + 1;
    try {
      const { messages } = await api.messages(this.sessionId);
      const places = messages.flatMap((item, place) => (item.role === "user" ? [place] : []));
      const kept = places.at(-later) ?? 0;
      const made = await api.branch(this.sessionId, kept);
      await this.open(made.session_id, { again: true });
      this.listeners.opened(made.session_id);
      await this.send({ text, files }, kept);
    } catch (error) {
      this.newest()?.trouble(error.message);
    }
  }

  /** End the conversation: nothing can be added; what was asked is withdrawn. */
  async end() {
    await api.end(this.sessionId);
    await this.open(this.sessionId, { again: true });
  }

  /** Continue a conversation that has ended in a branch with all its messages. */
  async continue() {
    const made = await api.branch(this.sessionId, Number.MAX_SAFE_INTEGER);
    await this.open(made.session_id, { again: true });
    this.listeners.opened(made.session_id);
  }

  newest() {
    const last = this.list.lastElementChild;
    return last?.answer ?? null;
  }

  isEmpty() {
    return this.list.childElementCount === 0;
  }

  fresh() {
    const answer = this.made();
    this.list.append(answer.element);
    return answer;
  }
}

const stateOf = (run) => (run ? `${run.run_id} ${run.status}` : "");
