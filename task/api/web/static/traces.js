// Traces: the list with its filters, and the way to one run or to two side by side.
import * as api from "./api.js";
import { cost, count, duration, h, icon } from "./dom.js";
import { date, t } from "./i18n.js";
import { badge, questionOf, STATUS } from "./tracewords.js";
import { showWaterfalls } from "./waterfall.js";

const DOORS = ["runs", "v1", "responses", "chat", "dial", "console", "coding", "title"];
const STARTED = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" };
const filters = {}; // kept while the page is open
const seen = { model: new Set(), tool: new Set() };

/** What the page is called at `#/traces/{first}/{second}`. */
export function titleOf(first, second) {
  if (first) return second ? t("Two traces") : t("Trace");
  return t("Traces");
}

/** Show the list, one trace, or two of them. */
export async function showTraces(place, first, second) {
  place.replaceChildren(h("div", { class: "skeleton", role: "status", "aria-label": t("Loading") }, h("i"), h("i"), h("i")));
  try {
    if (!first) await list(place);
    else await showWaterfalls(place, [first, second].filter(Boolean));
  } catch (error) {
    const isGone = error.status === 404;
    place.replaceChildren(h("div", { class: "nothing" }, icon("warn"),
      h("p", {}, isGone ? `${t("There is no such trace. It may have been deleted.")}${error.note}` : error.message),
      isGone ? "" : h("button", { type: "button", class: "primary", onclick: () => showTraces(place, first, second) }, t("Try again")),
      first ? h("a", { class: "quiet", href: "#/traces" }, t("All traces")) : ""));
  }
}

async function list(place) {
  const { traces, cursor } = await api.traces(filters);
  if (traces.length === 0 && Object.keys(filters).length === 0) {
    place.replaceChildren(h("div", { class: "nothing" }, icon("trace"), h("p", {}, t("There are no traces yet. Every answer leaves one.")), h("a", { class: "quiet", href: "#/" }, t("Ask something"))));
    return;
  }
  const table = new Table();
  const ratings = h("span", { class: "rating-counts" });
  const shown = h("p", { class: "hint", role: "status" });
  let latest = 0;
  const search = async () => {
    const number = latest += 1;
    try {
      const page = await api.traces(filters);
      if (number === latest) show(page);
    } catch (error) {
      if (number === latest) shown.textContent = error.message;
    }
  };
  const show = async (page) => {
    table.fill(page);
    shown.textContent = page.traces.length ? "" : t("No trace fits these filters.");
    ratings.replaceChildren(...await rated());
  };
  const tools = h("div", { class: "trace-tools" }, h("p", {}, t("What each run did, call by call.")), ratings, h("span", { class: "grow" }), table.compare);
  place.replaceChildren(tools, fields(search), h("div", { class: "scrolls" }, table.element), shown, table.more);
  await show({ traces, cursor });
}

async function rated() {
  try {
    const { up, down } = await api.ratings(filters);
    const part = (name, label, number) => h("span", { title: label }, icon(name), h("span", { class: "unseen" }, label), count(number));
    return up + down ? [part("up", t("Rated up"), up), part("down", t("Rated down"), down)] : [];
  } catch {
    return []; // the list is there all the same
  }
}

/** The filters; every change asks the agent again. */
function fields(search) {
  const set = (name, value) => {
    if (value) filters[name] = value;
    else delete filters[name];
    search();
  };
  const choice = (name, label, options) => {
    const field = h("select", { "aria-label": label, class: "quiet" }, h("option", { value: "" }, label), Object.entries(options).map(([value, text]) => h("option", { value }, text)));
    field.value = filters[name] ?? "";
    field.addEventListener("change", () => set(name, field.value));
    return field;
  };
  const written = (name, label, type) => {
    const offered = h("datalist", { id: `trace-${name}s` });
    const field = h("input", { type, class: "quiet", "aria-label": label, placeholder: label, maxlength: 200, list: seen[name] ? offered.id : null, value: filters[name] ?? "" });
    field.addEventListener("focus", () => offered.replaceChildren(...[...seen[name] ?? []].sort().map((value) => h("option", { value }))));
    field.addEventListener("change", () => set(name, field.value.trim()));
    return [field, offered];
  };
  const form = h("form", { class: "trace-filters", role: "search", "aria-label": t("Filter traces") },
    written("text", t("Text"), "search"), choice("status", t("Status"), STATUS),
    choice("door", t("Door"), Object.fromEntries(DOORS.map((door) => [door, door]))),
    written("model", t("Model"), "search"), written("tool", t("Tool"), "search"),
    choice("rating", t("Rating"), { up: t("Rated up"), down: t("Rated down") }),
    written("experiment", t("Experiment"), "search"));
  form.addEventListener("submit", (event) => { event.preventDefault(); document.activeElement?.dispatchEvent(new Event("change")); });
  return form;
}

/** The rows, of which two can be chosen to be compared. */
class Table {
  constructor() {
    this.chosen = [];
    this.rows = new Map(); // a row that stays is the same element: a click that is under way still finds its link
    this.compare = h("button", { type: "button", class: "primary", disabled: true, onclick: () => { location.hash = `#/traces/${this.chosen.join("/")}`; } }, t("Compare two"));
    this.body = h("tbody", {});
    this.more = h("button", { type: "button", class: "quiet", hidden: true }, t("Show more"));
    const heads = [[""], [t("Asked"), "asked"], [t("Status")], [t("Time"), "number"], [t("Started")], [t("Model"), "model"], [t("Calls"), "number"], [t("Tokens"), "number"], [t("Cost"), "number"], [t("Rating")]];
    const head = ([name, kind]) => (name ? h("th", { scope: "col", class: kind }, name) : h("td", {}));
    this.element = h("table", { class: "traces-list" }, h("thead", {}, h("tr", {}, heads.map(head))), this.body);
  }

  fill(page) {
    this.chosen = [];
    this.compare.disabled = true;
    const rows = page.traces.map((trace) => this.row(trace));
    for (const row of [...this.body.children]) {
      row.querySelector("input").checked = false;
      if (!rows.includes(row)) row.remove();
    }
    this.add(page, 0);
  }

  /** The rows of `traces` from place `from` on; what is at its place already isn't moved, which would end a click. */
  add({ traces, cursor }, from = this.body.children.length) {
    for (const [at, trace] of traces.entries()) {
      seen.model.add(trace.model);
      for (const call of trace.tool_calls) seen.tool.add(call.name);
      const there = this.body.children[from + at] ?? null;
      if (there !== this.row(trace)) this.body.insertBefore(this.row(trace), there);
    }
    this.more.hidden = !cursor;
    this.more.onclick = async () => this.add(await api.traces({ ...filters, cursor }));
  }

  row(trace) {
    const key = JSON.stringify(trace);
    if (!this.rows.has(key)) this.rows.set(key, this.made(trace));
    return this.rows.get(key);
  }

  made(trace) {
    const name = questionOf(trace);
    const box = h("input", { type: "checkbox", value: trace.trace_id, "aria-label": t("Compare {name}", { name }) });
    box.addEventListener("change", () => this.choose(box));
    const rating = trace.rating ? [icon(trace.rating), h("span", { class: "unseen" }, trace.rating === "up" ? t("Rated up") : t("Rated down"))] : [];
    const cell = (content, kind) => h("td", { class: kind }, content);
    return h("tr", {}, cell(box), cell(h("a", { href: `#/traces/${trace.trace_id}`, title: name }, name), "asked"), cell(badge(trace.status)),
      cell(duration(trace.duration_ms), "number"), cell(date(trace.started_at, STARTED)), cell(trace.model, "model"), cell(count(trace.tool_calls.length), "number calls"),
      h("td", { class: "number tokens", "data-unit": t("tokens") }, count(trace.total_tokens)), cell(cost(trace.cost), "number"), cell(rating, "rated"));
  }

  choose(box) {
    if (box.checked) this.chosen.push(box.value);
    else this.chosen.splice(this.chosen.indexOf(box.value), 1);
    if (this.chosen.length > 2) this.body.querySelector(`input[value="${CSS.escape(this.chosen.shift())}"]`).checked = false;
    this.compare.disabled = this.chosen.length !== 2;
  }
}
