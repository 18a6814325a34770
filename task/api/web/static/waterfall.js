// One run as a waterfall on a time axis, and two of them side by side with their figures.
import * as api from "./api.js";
import { pretty, textOf } from "./cards.js";
import { cost, count, duration, h, icon, when } from "./dom.js";
import { t } from "./i18n.js";
import { Markdown } from "./markdown.js";
import { Rating } from "./ratings.js";
import { replayForm } from "./replay.js";
import { steps, totals } from "./steps.js";
import { badge, questionOf } from "./tracewords.js";

const AT_ONCE = 60; // steps that are drawn before the user asks for the others

/** Show the traces of these ids, one or two, in their place. */
export async function showWaterfalls(place, ids) {
  const found = await Promise.all(ids.map(api.trace));
  const read = found.map((trace) => ({ trace, steps: steps(trace) }));
  const span = Math.max(1, ...read.flatMap((item) => item.steps.map((step) => step.end)));
  const tools = h("div", { class: "trace-tools" }, h("a", { class: "quiet", href: "#/traces" }, icon("back"), t("All traces")));
  const isPair = found.length > 1;
  if (isPair) tools.append(h("p", {}, parting(read)));
  else tools.append(await comparison(found[0]), replayForm(found[0]));
  place.replaceChildren(tools, isPair ? figures(found) : "",
    h("div", { class: `side-by-side ${isPair ? "two" : ""}` }, read.map((item) => waterfall(item, span, isPair))));
}

/** A field to put another trace beside this one. */
async function comparison(trace) {
  const { traces } = await api.traces({ limit: 30 });
  const others = traces.filter((other) => other.trace_id !== trace.trace_id);
  if (others.length === 0) return "";
  const field = h("select", { "aria-label": t("Compare with"), class: "quiet" }, h("option", { value: "" }, t("Compare with…")),
    others.map((other) => h("option", { value: other.trace_id }, `${questionOf(other).slice(0, 50)} – ${other.model} – ${duration(other.duration_ms)}`)));
  field.addEventListener("change", () => { if (field.value) location.hash = `#/traces/${trace.trace_id}/${field.value}`; });
  return field;
}

function parting([one, other]) {
  const place = one.steps.findIndex((step, number) => step.key !== other.steps[number]?.key);
  if (place < 0 && one.steps.length === other.steps.length) return t("Both runs took the same steps.");
  const step = place < 0 ? one.steps.length : place;
  for (const item of [one.steps[step], other.steps[step]]) if (item) item.parts = true;
  return t("The runs differ from step {step} on.", { step: step + 1 });
}

/** What can be counted of both, and how much more or less the other one took. */
function figures(pair) {
  const spent = (trace, name) => Object.values(trace.usage).reduce((sum, usage) => sum + usage[name], 0);
  const rows = [
    [t("Model"), (trace) => trace.model],
    [t("Status"), (trace) => badge(trace.status)],
    [t("Time"), (trace) => trace.duration_ms, duration],
    [t("Calls"), (trace) => trace.tool_calls.length, count],
    [t("Tokens in"), (trace) => spent(trace, "prompt_tokens"), count],
    [t("Tokens out"), (trace) => spent(trace, "completion_tokens"), count],
    [t("Cost"), (trace) => trace.cost, (value) => cost(value) || t("unknown")],
  ].map(([name, read, write]) => {
    const [one, other] = pair.map(read);
    return h("tr", {}, h("th", { scope: "row" }, name), [one, other].map((value) => h("td", {}, write ? write(value) : value)),
      h("td", {}, write ? change(one, other) : ""));
  });
  const heads = [h("td", {}), h("th", { scope: "col" }, t("First")), h("th", { scope: "col" }, t("Second")), h("th", { scope: "col" }, t("Difference"))];
  return h("div", { class: "scrolls" }, h("table", { class: "figures-table", "aria-label": t("Figures of both runs") },
    h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
}

function change(one, other) {
  if (typeof one !== "number" || typeof other !== "number" || one === 0) return "";
  const percent = Math.round((other / one - 1) * 100);
  return `${percent > 0 ? "+" : percent < 0 ? "−" : "±"}${Math.abs(percent)} %`;
}

function waterfall({ trace, steps: all }, span, isPair) {
  const facts = [badge(trace.status), trace.model, duration(trace.duration_ms), ...totals(trace), when(trace.started_at), trace.experiment, trace.facts?.length > 0 && t("Remembered facts: {ids}", { ids: trace.facts.join(", ") })].filter(Boolean);
  const session = trace.session_id ? h("a", { href: `#/c/${trace.session_id}` }, t("Conversation")) : "";
  const rating = new Rating(trace);
  const comment = trace.comment ? h("p", { class: "rating-said" }, icon(trace.rating), `“${trace.comment}”`) : "";
  const error = trace.error ? h("p", { class: "trouble" }, icon("warn"), trace.error) : "";
  return h("section", { "aria-label": t("Trace {id}", { id: trace.trace_id }) },
    h("header", { class: "trace-head" }, h("h2", {}, questionOf(trace)), facts.map((item) => h("span", {}, item)), session, rating.element),
    rating.note, comment, error, isPair ? answerOf(trace) : "", chart(trace, all, span),
    h("details", { class: "card" }, h("summary", {}, h("span", { class: "card-title" }, t("Settings, decisions and limits")), icon("chevron")),
      h("div", { class: "payload" }, block(t("Settings"), trace.config), block(t("Decisions"), trace.decisions), block(t("Limits"), trace.limits), block(t("Warnings"), trace.warnings), block("X-DIAL-TRACE-ID", trace.core_traces))));
}

function answerOf(trace) {
  const last = trace.turns.filter((turn) => turn.role === "assistant" && textOf(turn.content)).at(-1);
  return last ? h("div", { class: "trace-answer", tabindex: "0", role: "region", "aria-label": t("Answer") }, prose(textOf(last.content))) : "";
}

function chart(trace, all, span) {
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => {
    const tick = h("span", {}, part === 0 ? "0" : duration(span * part));
    tick.style.left = `${part * 100}%`;
    return tick;
  });
  const rows = h("div", {}, all.slice(0, AT_ONCE).flatMap((step) => stepRow(trace, step, span)));
  const others = all.slice(AT_ONCE);
  const more = others.length ? h("button", { type: "button", class: "quiet more-steps" }, t("Show {count} more step | Show {count} more steps", { count: others.length })) : "";
  if (more) more.addEventListener("click", () => {
    const added = others.flatMap((step) => stepRow(trace, step, span));
    rows.append(...added);
    more.remove();
    added[0].focus();
  });
  return h("div", { class: "waterfall" }, h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, t("Step")), h("span", { class: "ticks" }, ticks), h("span", {})), rows, more);
}

function stepRow(trace, step, span) {
  const bar = h("i");
  bar.style.left = `${(step.start / span) * 100}%`;
  bar.style.width = `${((step.end - step.start) / span) * 100}%`;
  const payload = h("div", { class: "payload", hidden: true });
  const took = step.timed ? duration(step.end - step.start) : "";
  const name = h("span", { class: "step-name", title: step.name }, step.name, step.parts ? h("span", { class: "differs" }, " ≠") : "");
  const button = h("button", { type: "button", class: `step ${step.kind} ${step.failed ? "failed" : ""}`, "aria-expanded": "false" },
    name, h("span", { class: "lane", "aria-hidden": "true" }, bar), h("span", { class: "step-time" }, took));
  button.addEventListener("click", () => {
    payload.hidden = !payload.hidden;
    button.setAttribute("aria-expanded", String(!payload.hidden));
    if (!payload.hasChildNodes()) payload.append(...payloads(trace, step));
  });
  return [button, payload];
}

function payloads(trace, step) {
  const parts = step.payloads.map(([name, value, isMarkdown]) => block(name, value, isMarkdown)).filter(Boolean);
  if (step.full) {
    const more = h("button", { type: "button", class: "quiet small" }, t("Show all {count} characters", { count: step.length }));
    more.addEventListener("click", async () => {
      try {
        more.replaceWith(block(t("Whole result"), await api.fullResult(step.full)));
      } catch (error) {
        more.replaceWith(h("p", { class: "trouble" }, error.message));
      }
    });
    parts.push(h("p", {}, more));
  }
  if (parts.length === 0) parts.push(h("p", {}, trace.content ? t("There is no text here.") : t("The contents of this run are not stored.")));
  return parts;
}

function block(name, value, isMarkdown = false) {
  if (value === null || value === undefined || value === "" || (Array.isArray(value) && value.length === 0)) return "";
  const shown = isMarkdown ? prose(value) : h("pre", { tabindex: "0" }, typeof value === "string" ? value : pretty(value));
  return h("div", {}, h("h3", {}, name), shown);
}

function prose(text) {
  const view = new Markdown();
  view.show(text);
  return view.element;
}
