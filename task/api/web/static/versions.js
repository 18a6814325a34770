// The switch between the versions of a message, ‹ 2/3 ›: a conversation and its branches as one.
import { h, iconButton, announce } from "./dom.js";
import { t } from "./i18n.js";

/** `versions` is `{sessions, shown, position}`; `choose(sessionId)` opens the session that has another version. */
export function versionSwitch({ sessions, shown, position }, choose) {
  const place = t("Version {shown} of {all}", { shown: shown + 1, all: sessions.length });
  const step = (name, label, other) => iconButton(name, label, () => choose(sessions[other]), { disabled: !(other in sessions), "data-step": name });
  return h("span", { class: "versions", role: "group", "aria-label": place, "data-position": position },
    step("back", t("Previous version"), shown - 1), h("span", { "aria-hidden": "true" }, `${shown + 1}/${sessions.length}`),
    step("chevron", t("Next version"), shown + 1));
}

/** After another version has been opened: the switch stands where it was, with the focus unless it is elsewhere by now. */
export function focusSwitch(list, position, step) {
  const found = list.querySelector(`.versions[data-position="${position}"]`);
  if (!found || document.activeElement !== document.body) return;
  found.scrollIntoView({ block: "center" });
  (found.querySelector(`[data-step="${step}"]:enabled`) ?? found.querySelector("button:enabled"))?.focus({ preventScroll: true });
  announce(found.getAttribute("aria-label"));
}
