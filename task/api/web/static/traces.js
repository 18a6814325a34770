// Traces: the list, and the waterfall of one run or of two side by side.
import * as api from "./api.js";
import { cost, count, duration, h, icon, when } from "./dom.js";
import { pretty, textOf } from "./cards.js";
import { steps, totals } from "./steps.js";

/** Show the list, one trace, or two of them. */
export async function showTraces(place, first, second) {
  place.replaceChildren(h("div", { class: "skeleton", role: "status", "aria-label": "Loading" }, h("i"), h("i"), h("i")));
  try {
    if (!first) await list(place);
    else await waterfalls(place, [first, second].filter(Boolean));
  } catch (error) {
    const isGone = error.status === 404;
    place.replaceChildren(h("div", { class: "nothing" }, icon("warn"),
      h("p", {}, isGone ? `There is no such trace. It may have been deleted.${error.note}` : error.message),
      isGone ? "" : h("button", { type: "button", class: "primary", onclick: () => showTraces(place, first, second) }, "Try again"),
      first ? h("a", { class: "quiet", href: "#/traces" }, "All traces") : ""));
  }
}

async function list(place) {
  const chosen = [];
  const compare = h("button", { type: "button", class: "primary", disabled: true, onclick: () => { location.hash = `#/traces/${chosen.join("/")}`; } }, "Compare two");
  const body = h("tbody", {});
  const more = h("button", { type: "button", class: "quiet", hidden: true }, "Show more");
  const choose = (id, box) => {
    if (box.checked) chosen.push(id);
    else chosen.splice(chosen.indexOf(id), 1);
    if (chosen.length > 2) {
      body.querySelector(`input[value="${CSS.escape(chosen.shift())}"]`).checked = false;
    }
    compare.disabled = chosen.length !== 2;
  };
  const load = async (cursor) => {
    const page = await api.traces({ cursor });
    body.append(...page.traces.map((trace) => row(trace, choose)));
    more.hidden = !page.cursor;
    more.onclick = () => load(page.cursor);
    return page.traces.length;
  };
  if (await load(null) === 0) {
    place.replaceChildren(h("div", { class: "nothing" }, icon("trace"), h("p", {}, "There are no traces yet. Every answer leaves one."), h("a", { class: "quiet", href: "#/" }, "Ask something")));
    return;
  }
  const heads = ["", "Asked", "Status", "Time", "Started", "Model", "Calls", "Tokens", "Cost"];
  place.replaceChildren(
    h("div", { class: "trace-tools" }, h("p", {}, "What each run did, call by call."), h("span", { class: "grow" }), compare),
    h("div", { class: "scrolls" }, h("table", { class: "traces-list" },
      h("thead", {}, h("tr", {}, heads.map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {}))))), body)), more,
  );
}

function row(trace, choose) {
  const name = asked(trace);
  const box = h("input", { type: "checkbox", value: trace.trace_id, "aria-label": `Compare ${name}` });
  box.addEventListener("change", () => choose(trace.trace_id, box));
  const cells = [badge(trace.status), duration(trace.duration_ms), when(trace.started_at), trace.model,
    String(trace.tool_calls.length), count(trace.total_tokens), cost(trace.cost)];
  return h("tr", {}, h("td", {}, box), h("td", {}, h("a", { href: `#/traces/${trace.trace_id}` }, name)), cells.map((cell) => h("td", {}, cell)));
}

function asked(trace) {
  const turn = trace.turns.find((item) => item.role === "user");
  return textOf(turn?.content).split("\n")[0].slice(0, 90) || trace.trace_id;
}

const badge = (status) => h("span", { class: `badge ${status}` }, status);

async function waterfalls(place, ids) {
  const found = await Promise.all(ids.map(api.trace));
  const read = found.map((trace) => ({ trace, steps: steps(trace) }));
  const span = Math.max(1, ...read.flatMap((item) => item.steps.map((step) => step.end)));
  const tools = h("div", { class: "trace-tools" }, h("a", { class: "quiet", href: "#/traces" }, icon("back"), "All traces"));
  if (found.length === 1) tools.append(await comparison(found[0]));
  else tools.append(h("p", {}, parting(read)));
  place.replaceChildren(tools, h("div", { class: `side-by-side ${found.length > 1 ? "two" : ""}` }, read.map((item) => waterfall(item, span))));
}

/** A field to put another trace beside this one. */
async function comparison(trace) {
  const { traces } = await api.traces({ limit: 30 });
  const others = traces.filter((other) => other.trace_id !== trace.trace_id);
  if (others.length === 0) return "";
  const field = h("select", { "aria-label": "Compare with", class: "quiet" }, h("option", { value: "" }, "Compare with…"),
    others.map((other) => h("option", { value: other.trace_id }, `${asked(other).slice(0, 50)} – ${duration(other.duration_ms)}`)));
  field.addEventListener("change", () => { if (field.value) location.hash = `#/traces/${trace.trace_id}/${field.value}`; });
  return h("label", { class: "row" }, field);
}

function parting([one, other]) {
  const place = one.steps.findIndex((step, number) => step.key !== other.steps[number]?.key);
  if (place < 0 && one.steps.length === other.steps.length) return "Both runs took the same steps.";
  const step = place < 0 ? one.steps.length : place;
  for (const item of [one.steps[step], other.steps[step]]) if (item) item.parts = true;
  return `The runs differ from step ${step + 1} on.`;
}

function waterfall({ trace, steps: all }, span) {
  const facts = [badge(trace.status), trace.model, duration(trace.duration_ms), ...totals(trace), when(trace.started_at)].filter(Boolean);
  const session = trace.session_id ? h("a", { href: `#/c/${trace.session_id}` }, "Conversation") : "";
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => {
    const tick = h("span", {}, part === 0 ? "0" : duration(span * part));
    tick.style.left = `${part * 100}%`;
    return tick;
  });
  const rows = all.flatMap((step) => stepRow(trace, step, span));
  const error = trace.error ? h("p", { class: "trouble" }, icon("warn"), trace.error) : "";
  return h("section", { "aria-label": `Trace ${trace.trace_id}` },
    h("header", { class: "trace-head" }, h("h2", {}, asked(trace)), facts.map((item) => h("span", {}, item)), session), error,
    h("div", { class: "waterfall" }, h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, "Step"), h("span", { class: "ticks" }, ticks), h("span", {})), rows),
    h("details", { class: "card" }, h("summary", {}, h("span", { class: "card-title" }, "Settings, decisions and limits"), icon("chevron")),
      h("div", { class: "payload" }, block("Settings", trace.config), block("Decisions", trace.decisions), block("Limits", trace.limits), block("Warnings", trace.warnings))));
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
  const parts = step.payloads.map(([name, value]) => block(name, value)).filter(Boolean);
  if (step.full) {
    const more = h("button", { type: "button", class: "quiet small" }, `Show all ${count(step.length)} characters`);
    more.addEventListener("click", async () => {
      try {
        more.replaceWith(block("Whole result", await api.fullResult(step.full)));
      } catch (error) {
        more.replaceWith(h("p", { class: "trouble" }, error.message));
      }
    });
    parts.push(h("p", {}, more));
  }
  if (parts.length === 0) parts.push(h("p", {}, trace.content ? "There is no text here." : "The contents of this run are not stored."));
  return parts;
}

function block(name, value) {
  if (value === null || value === undefined || value === "" || (Array.isArray(value) && value.length === 0)) return "";
  return h("div", {}, h("h3", {}, name), h("pre", { tabindex: "0" }, typeof value === "string" ? value : pretty(value)));
}
