// What traces know of answers that messages do not: durations, tokens, cost. Loaded as far back as answers are shown.
import * as api from "./api.js";
import { textOf } from "./cards.js";

const AT_ONCE = 20;

export class Annotations {
  constructor(sessionId, signal) {
    this.signal = signal;
    this.session = sessionId; // whose traces come next: this conversation's, then those of what it branched off
    this.cursor = null;
    this.older = []; // read, but of answers that are not shown yet
    this.working = Promise.resolve();
  }

  /** Add what is known of the shown answers, in their order; one call at a time. */
  add(answers) {
    this.working = this.working.then(() => this.work(answers)).catch(() => {}); // the answers stand without it
    return this.working;
  }

  async work(answers) {
    const waiting = answers.filter((answer) => answer.traces.size === 0);
    this.older = this.placed(this.older, waiting);
    while (this.session && waiting.some((answer) => answer.traces.size === 0) && !this.signal.aborted) {
      const page = await api.traces({ session_id: this.session, limit: AT_ONCE, cursor: this.cursor });
      if (this.signal.aborted) return;
      this.cursor = page.cursor;
      if (!page.cursor) this.session = (await api.session(this.session)).parent;
      const left = this.placed(page.traces.filter((trace) => trace.status !== "running"), waiting);
      this.older.push(...left);
      if (page.traces.length > 0 && left.length === page.traces.length) return; // these belong to what is not shown
    }
  }

  /** The traces, newest first, that fit none of the answers. */
  placed(traces, answers) {
    return traces.filter((trace) => {
      const place = answers.findLastIndex((answer) => fits(answer, trace));
      if (place >= 0) answers[place].annotate(trace);
      return place < 0;
    });
  }
}

/**
 * A trace with calls fits the answer that shows one of them, any other one the answer that ends with its text or
 * to its question (it holds addresses as they were), and that of a run that failed the question nobody answered.
 */
function fits(answer, trace) {
  if (answer.traces.has(trace.trace_id)) return false;
  if (answer.text === "" && answer.cards.size === 0) return answer.traces.size === 0 && trace.status !== "finished" && isAskedBy(answer, trace);
  const calls = [...trace.tool_calls, ...trace.turns.flatMap((turn) => turn.tool_calls ?? [])];
  if (calls.length > 0) return calls.some((call) => answer.cards.has(call.id));
  const text = textOf(trace.turns.findLast((turn) => turn.role === "assistant")?.content).trim();
  if (text === "" || answer.traces.size > 0) return false;
  return answer.text.trimEnd().endsWith(text) || (trace.status === "finished" && isAskedBy(answer, trace));
}

function isAskedBy(answer, trace) {
  const asked = answer.element.previousElementSibling?.message?.text;
  return asked !== undefined && textOf(trace.turns.findLast((turn) => turn.role === "user")?.content).startsWith(asked);
}
