// Experiments: which there are, and the figures of their variants with the differences between them.
import * as api from "./api.js";
import { cost, count, duration, h, icon, when } from "./dom.js";
import { number, t } from "./i18n.js";

const BARE = "±";

/** Show all experiments, or the variants of one or two. */
export async function showExperiments(place, names) {
  if (names.length === 0) await all(place);
  else await variants(place, names);
}

/** An experiment's name is its labels' part before the first slash. */
const nameOf = (label) => label.split("/")[0];
const address = (...names) => `#/traces/experiments/${names.map(encodeURIComponent).join("/")}`;

async function known() {
  const { experiments } = await api.experiments();
  const sums = new Map();
  for (const { label, count: runs, last_at: last } of experiments) {
    const sum = sums.get(nameOf(label)) ?? { runs: 0, labels: 0, last };
    sums.set(nameOf(label), { runs: sum.runs + runs, labels: sum.labels + 1, last: sum.last });
  }
  return sums;
}

const back = () => h("a", { class: "quiet", href: "#/traces" }, icon("back"), t("All traces"));

async function all(place) {
  const sums = await known();
  const rows = [...sums].map(([name, { runs, labels, last }]) => h("tr", {}, h("td", {}, h("a", { href: address(name) }, name)),
    [count(labels), count(runs), when(last)].map((cell) => h("td", {}, cell))));
  const heads = [t("Experiment"), t("Labels"), t("Runs"), t("Last run")];
  const nothing = h("div", { class: "nothing" }, icon("trace"), h("p", {}, t("There are no experiments yet. A request's “experiment” names one, such as greeting/short.")));
  const table = h("div", { class: "scrolls" }, h("table", { class: "figures-table" },
    h("thead", {}, h("tr", {}, heads.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)));
  place.replaceChildren(h("div", { class: "trace-tools" }, back()), rows.length ? table : nothing);
}

async function variants(place, names) {
  const [{ variants: found }, sums] = await Promise.all([api.variants(names), known()]);
  const others = [...sums.keys()].filter((name) => !names.includes(name));
  const beside = h("select", { class: "quiet", "aria-label": t("Compare with") }, h("option", { value: "" }, t("Compare with…")),
    others.map((name) => h("option", { value: name }, name)));
  beside.addEventListener("change", () => { if (beside.value) location.hash = address(names[0], beside.value); });
  const heads = found.map((variant) => h("th", { scope: "col" }, variant.label, h("small", {}, variant.model)));
  const rows = figures().map(({ name, key, show, more }) => h("tr", {}, h("th", { scope: "row" }, name),
    found.map((variant) => h("td", {}, show(variant), difference(variant.differences[key], more)))));
  place.replaceChildren(
    h("div", { class: "trace-tools" }, back(), h("a", { class: "quiet", href: address() }, t("Experiments")), others.length ? beside : ""),
    h("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": t("Variants of {names}", { names: names.join(", ") }) },
      h("table", { class: "figures-table" }, h("thead", {}, h("tr", {}, h("td", {}), heads)), h("tbody", {}, rows))),
    h("p", { class: "hint" }, found.length > 1
      ? t("Below a figure: its difference from the first variant, with the 95 % confidence interval from five values on. Bold: the interval does not include zero.")
      : t("There is one variant so far. Another label, or another model, is another variant.")),
  );
}

function figures() {
  const percent = (value) => `${number(value * 100, { maximumFractionDigits: 1 })} %`;
  const signed = (write) => (value) => `${value < 0 ? "−" : value > 0 ? "+" : BARE}${write(Math.abs(value))}`;
  const rated = ({ up, down }) => (up + down > 0 ? `${percent(up / (up + down))} (${count(up)} / ${count(down)})` : "");
  const price = ({ mean_cost: mean, priced, count: runs }) => {
    if (mean === null) return t("unknown");
    return priced === runs ? cost(mean) : `${cost(mean)} (${t("known of {priced} of {runs}", { priced, runs })})`;
  };
  return [
    { name: t("Runs"), show: (variant) => count(variant.count) },
    { name: t("Failed"), key: "failures", show: (variant) => `${count(variant.failures)} (${percent(variant.failures / variant.count)})`, more: signed(percent) },
    { name: t("Tokens of a run"), key: "mean_tokens", show: (variant) => count(Math.round(variant.mean_tokens)), more: signed((value) => count(Math.round(value))) },
    { name: t("Cost of a run"), key: "mean_cost", show: price, more: signed(cost) },
    { name: t("Median time"), key: "p50_ms", show: (variant) => duration(variant.p50_ms), more: signed(duration) },
    { name: t("95th percentile of time"), key: "p95_ms", show: (variant) => duration(variant.p95_ms), more: signed(duration) },
    { name: t("Rated up (up / down)"), key: "up", show: rated, more: signed(percent) },
  ];
}

function difference(found, write) {
  if (!found || !write) return "";
  const isClear = found.low !== null && (found.low > 0 || found.high < 0);
  const interval = found.low === null ? "" : h("small", {}, `[${write(found.low)} … ${write(found.high)}]`);
  return [h("small", { class: isClear ? "clear" : null }, write(found.value)), interval];
}
