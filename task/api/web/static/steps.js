// A trace as steps on a time axis, in milliseconds since it began.
import { textOf } from "./cards.js";
import { cost } from "./dom.js";
import { t } from "./i18n.js";

/** The steps: what was asked, the model's turns, the tools' calls. `key` is equal where two runs did the same. */
export function steps(trace) {
  const began = Date.parse(trace.started_at);
  const since = (iso) => Date.parse(iso) - began;
  const turns = trace.turns.filter((turn) => turn.role !== "tool").map((turn, number) => turnStep(turn, number, since));
  const calls = trace.tool_calls.map((call) => callStep(call, since));
  return [...turns, ...calls].sort((one, other) => one.start - other.start || one.order - other.order);
}

function turnStep(turn, number, since) {
  const end = Math.max(0, since(turn.timestamp));
  const model = turn.role === "assistant";
  const wanted = (turn.tool_calls ?? []).map((call) => call.name);
  const names = { assistant: wanted.length ? t("Model → {tools}", { tools: wanted.join(", ") }) : t("Model answers"), user: t("Question"), system: t("System prompt") };
  return {
    kind: model ? "model" : "ask", name: names[turn.role] ?? turn.role, order: model ? 1 : 0, number,
    start: Math.max(0, end - (turn.duration_ms ?? 0)), end, timed: turn.duration_ms !== undefined,
    key: model ? `model ${textOf(turn.content)} ${JSON.stringify((turn.tool_calls ?? []).map((call) => [call.name, call.arguments]))}` : `${turn.role} ${textOf(turn.content)}`,
    payloads: [[t("Text"), textOf(turn.content), model], [t("Calls"), turn.tool_calls], [t("Tokens"), turn.usage]],
  };
}

function callStep(call, since) {
  const start = Math.max(0, since(call.timestamp));
  const isCut = call.full_result_length > call.result.length - 3 && call.result.endsWith("...");
  return {
    kind: "call", name: call.name, order: 2, start, end: start + call.duration_ms, timed: true, failed: call.failed,
    key: `call ${call.name} ${JSON.stringify(call.arguments)} ${call.result}`,
    payloads: [[t("Arguments"), call.arguments], [t("Result"), call.result]],
    full: isCut ? call.full_result : null, length: call.full_result_length,
  };
}

/** Tokens and cost in words. */
export function totals(trace) {
  const read = Object.values(trace.usage ?? {}).reduce((sum, usage) => sum + usage.prompt_tokens, 0);
  const written = Object.values(trace.usage ?? {}).reduce((sum, usage) => sum + usage.completion_tokens, 0);
  return [t("{read} in · {written} out tokens", { read, written }), cost(trace.cost)];
}
