// A user's questions: how they are shown and edited, and which messages follow each of them.
import { fileId } from "./api.js";
import { attached } from "./attachments.js";
import { textOf } from "./cards.js";
import { copy, h, iconButton } from "./dom.js";
import { t } from "./i18n.js";
import { markdown } from "./markdown.js";

const LONG = 1200; // characters of a message of which only the beginning is shown first
const LONG_LINES = 18;
const MARKED = /```|\$\$|\$\S(?:[^$\n]*[^\s$])?\$(?!\w)|\\[([]/; // code or formulas; any other question stays as it was typed

/** The element of a question; `again(element, message)` asks what it was changed to. */
export function questionElement(text, files, again) {
  const copying = iconButton("copy", t("Copy the message"), () => copy(text, copying));
  const element = h("article", { class: "question", "aria-label": t("You") },
    h("div", { class: "bubble" }, text ? shortened(text) : "",
      files.length ? h("ul", { class: "chips" }, files.map((item) => attached(item))) : ""),
    h("div", { class: "question-actions" }, copying, iconButton("edit", t("Edit and ask again"), () => edit(element, again))));
  element.message = { text, files };
  return element;
}

function edit(element, again) {
  const field = h("textarea", { rows: 3, "aria-label": t("Your message"), value: element.message.text });
  const bubble = element.querySelector(".bubble");
  const before = [...bubble.childNodes];
  const back = () => { bubble.replaceChildren(...before); element.classList.remove("editing"); };
  const go = () => { if (field.value.trim()) again(element, { ...element.message, text: field.value.trim() }); };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); back(); }
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); go(); }
  });
  element.classList.add("editing");
  bubble.replaceChildren(field, h("div", { class: "row end" },
    h("small", {}, t("The first version stays; you switch between them below the message.")),
    h("button", { type: "button", class: "quiet", onclick: back }, t("Cancel")),
    h("button", { type: "button", class: "primary", onclick: go }, t("Ask"))));
  field.focus();
}

/** What the user wrote; the agent adds a list of the attached files for the model, which the page shows as chips. */
export function asWritten({ content, attachments = [] }) {
  const text = textOf(content);
  return attachments.length ? text.replace(/(^|\n\n)Attached files:\n- [\s\S]*$/, "") : text;
}

/** A message as a request has it. */
export function requestOf({ text, files }) {
  const skills = files.flatMap(({ skill }) => skill ?? []);
  const parts = files.filter(({ skill }) => !skill).map((item) => (item.data
    ? { type: "quote", title: item.title, text: item.data }
    : { type: "file", file: { file_id: item.id ?? fileId(item.url), filename: item.filename ?? item.title } }));
  const content = parts.length ? [...(text ? [{ type: "text", text }] : []), ...parts] : text;
  return { messages: [{ role: "user", content }], ...(skills.length ? { skills } : {}) };
}

/** The text of a message; of a very long one the beginning, until the rest is asked for. */
function shortened(text) {
  const place = MARKED.test(text) ? markdown(text) : h("p", {}, text);
  if (text.length < LONG && text.split("\n").length < LONG_LINES) return place;
  place.classList.add("cut");
  const more = h("button", { type: "button", class: "quiet small more", "aria-expanded": "false" }, t("Show all"));
  more.addEventListener("click", () => {
    const isCut = place.classList.toggle("cut");
    more.setAttribute("aria-expanded", String(!isCut));
    more.textContent = isCut ? t("Show all") : t("Show less");
  });
  return [place, more];
}

/** A message of the user stands alone; what follows, up to the next one, is an answer, which may be empty. */
export function grouped(messages) {
  const groups = [];
  const add = (from, ...items) => groups.push({ messages: items, from, to: Infinity });
  for (const message of messages) {
    const isQuestion = groups.at(-1)?.messages[0]?.role === "user";
    if (message.role === "user" && isQuestion) add(groups.at(-1).from + 1); // of that answer nothing was kept
    if (message.role === "user" && groups.length > 0) groups.at(-1).to = message.place;
    if (message.role === "user" || isQuestion || groups.length === 0) add(message.place, message);
    else groups.at(-1).messages.push(message);
  }
  groups.forEach((group, place) => { group.skills = pickedBy(groups[place + 1]); });
  return groups;
}

/** The skills that were picked for a message: its answer begins with the calls that read them. */
function pickedBy(answer) {
  const calls = (answer?.messages[0]?.tool_calls ?? []).filter(({ id }) => id.startsWith("pick_"));
  const names = calls.flatMap((call) => /"name": ?"([a-z0-9-]+)"/.exec(call.function.arguments)?.[1] ?? []); // programs send calls, too
  return names.map((name) => ({ title: `/${name}`, skill: name }));
}
