// What a trace is called, and how its run ended.
import { textOf } from "./cards.js";
import { h } from "./dom.js";
import { t } from "./i18n.js";

export const STATUS = {
  running: t("running"), finished: t("finished"), limited: t("limited"), suspended: t("suspended"), cancelled: t("cancelled"),
  failed: t("failed"), interrupted: t("interrupted"),
};

/** The first line of what the run was asked, also where it continues another one. */
export function questionOf(trace) {
  const asked = trace.question ?? textOf(trace.turns.find((item) => item.role === "user")?.content);
  return asked.split("\n")[0].slice(0, 90) || trace.trace_id;
}

export const badge = (status) => h("span", { class: `badge ${status}` }, STATUS[status] ?? status);
