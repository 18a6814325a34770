// Ask another model what a run was asked, and put both runs side by side.
import * as api from "./api.js";
import { h, icon } from "./dom.js";
import { t } from "./i18n.js";

/** A field for the other model; what it answers is a run like any other, and asks where it has to. */
export function replayForm(trace) {
  const field = h("select", { "aria-label": t("Ask another model"), class: "quiet" }, h("option", { value: "" }, t("Ask another model…")));
  const state = h("p", { class: "replay-state", role: "status" });
  field.addEventListener("focus", () => fill(field), { once: true });
  field.addEventListener("change", async () => {
    if (!field.value) return;
    field.disabled = true;
    try {
      await replay(trace, field.value, state);
    } catch (error) {
      state.replaceChildren(icon("warn"), `${error.message}${error.note ?? ""}`);
    }
    field.disabled = false;
    field.value = "";
  });
  fill(field);
  return h("span", { class: "replay" }, field, state);
}

async function fill(field) {
  if (field.options.length > 1) return;
  try {
    const { data } = await api.models();
    if (field.options.length === 1) field.append(...data.map((model) => h("option", { value: model.id }, model.id)));
  } catch { /* the next focus tries again */ }
}

async function replay(trace, model, state) {
  state.replaceChildren(t("{model} answers…", { model }));
  const run = await api.replay(trace.trace_id, model);
  await api.follow(run.run_id, (event) => {
    if (event.type !== "finished") return;
    if (event.status !== "suspended") {
      if (state.isConnected) location.hash = `#/traces/${trace.trace_id}/${event.trace_id}`;
      return;
    }
    state.replaceChildren(t("It waits for your approval."), " ", h("a", { href: `#/c/${event.session_id}` }, t("Conversation")));
  });
}
