// A form drawn from a JSON Schema: texts, numbers, choices, lists and groups; it gives back what was filled in.
import { h, icon, iconButton } from "./dom.js";
import { t } from "./i18n.js";

// The label and the help of the properties that this page knows; others show their name, and the schema's description.
const WORDS = {
  instructions: [t("Instructions"), t("What this agent is for, and how it should work and answer.")],
  model: [t("Model"), t("Empty: the one that the operator has chosen.")],
  tools: [t("Tools"), t("Models, applications and toolsets of DIAL that the agent may use, by their names.")],
  builtin: [t("Built-in tools"), t("The agent's own tools that stay switched on.")],
  context: [t("Context files"), t("Files of DIAL that the agent knows, such as files/BUCKET/report.pdf. A folder ends with a slash.")],
  starters: [t("Conversation starters"), t("Buttons that a new conversation begins with.")],
  title: [t("Button")],
  text: [t("Text that it sends")],
  permission_mode: [t("Permissions"), t("What the agent may do without asking. It never gets more than the operator allows.")],
  limits: [t("Limits"), t("They can be lower than the operator's, not higher.")],
  steps: [t("Steps of an answer")],
  run_seconds: [t("Seconds of an answer")],
  run_tokens: [t("Tokens of an answer")],
  default: [t("Ask when risky")],
  ask: [t("Ask always")],
  read_only: [t("Read only")],
};
const LONG = 1000; // characters; longer texts get an area
const FIELDS = "input, textarea, select";
let made = 0;

/**
 * `element` is the form for an object of this schema, `read()` what it holds, without what is empty, and
 * `complain(keys, text)` shows a sentence at the field that the keys lead to.
 *
 * `choices` are suggestions by property, `more(input)` further buttons beside an entry of `tools`.
 */
export function schemaForm(schema, value, choices, more) {
  const context = { choices, more };
  const lists = Object.entries(choices).map(([name, names]) => h("datalist", { id: `of-${name}` }, names.map((one) => h("option", { value: one }))));
  const { parts, read, at } = members(schema, value ?? {}, context);
  const element = h("form", { novalidate: true, onsubmit: (event) => event.preventDefault() }, parts.map((part) => part.element), lists);
  function calm() {
    for (const one of element.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
    for (const one of element.querySelectorAll(".trouble")) one.remove();
  }
  function complain(keys, text) {
    const found = at(keys)?.element, id = `said-${made += 1}`;
    const note = h("p", { class: "trouble", id, role: "alert" }, icon("warn"), h("span", {}, text));
    (found?.closest(".field") ?? element).append(note);
    const input = found?.matches(FIELDS) ? found : found?.querySelector(FIELDS);
    input?.setAttribute("aria-invalid", "true");
    input?.setAttribute("aria-describedby", id);
    input?.focus();
    note.scrollIntoView({ block: "nearest" });
  }
  return { element, read, calm, complain };
}

/** Fields of each property; `name` finds a property's words. */
function members(schema, value, context) {
  const named = Object.entries(schema.properties ?? {}).sort(([, one], [, other]) => order(one) - order(other));
  const parts = named.map(([name, one]) => ({ name, ...drawn(name, one, value[name], context) }));
  const read = () => {
    const found = parts.map((part) => [part.name, part.read()]).filter(([, one]) => one !== undefined);
    return found.length ? Object.fromEntries(found) : undefined;
  };
  return { parts, read, at: ([name, ...rest]) => within(parts.find((part) => part.name === name), rest) };
}

const within = (part, keys) => part?.at?.(keys) ?? part;

const order = (schema) => schema["dial:meta"]?.["dial:propertyOrder"] ?? 0;

function drawn(name, schema, value, context) {
  const [label, help] = WORDS[name] ?? [name, schema.description];
  if (schema.type === "object") {
    const inner = members(schema, value ?? {}, context);
    return { ...inner, element: boxed("field group", label, help, inner.parts.map((part) => part.element)) };
  }
  if (schema.type === "array") {
    const values = Array.isArray(value) ? value : undefined, proposed = schema.items.examples;
    const inner = proposed ? checks(proposed, values) : entries(name, schema.items, values ?? [], label, context);
    return { ...inner, element: boxed("field", label, help, inner.element) };
  }
  const { input, read } = simple(name, schema, value, context);
  const id = input.id = `field-${made += 1}`;
  const noted = help ? h("small", { id: `${id}-help` }, help) : null;
  if (noted) input.setAttribute("aria-describedby", noted.id);
  return { element: h("div", { class: "field" }, h("label", { for: id }, label), noted, input), read };
}

const boxed = (kind, label, help, content) => h("fieldset", { class: kind }, h("legend", {}, label), help ? h("small", {}, help) : null, content);

function simple(name, schema, value, { choices }) {
  if (schema.enum) {
    const options = schema.enum.map((one) => h("option", { value: one }, WORDS[one]?.[0] ?? one));
    const input = h("select", {}, h("option", { value: "" }, t("As the operator has set it")), options);
    input.value = schema.enum.includes(value) ? value : "";
    return { input, read: () => input.value || undefined };
  }
  if (schema.type === "integer" || schema.type === "number") {
    const input = h("input", { type: "number", min: schema.minimum ?? schema.exclusiveMinimum, max: schema.maximum, step: schema.type === "integer" ? 1 : "any", value: value ?? "" });
    return { input, read: () => (input.value === "" ? undefined : input.valueAsNumber) };
  }
  const known = choices[name] ? `of-${name}` : null;
  const input = schema.maxLength > LONG
    ? h("textarea", { rows: schema.maxLength > 5000 ? 7 : 2, value: value ?? "" })
    : h("input", { type: "text", value: value ?? "", list: known, autocomplete: "off", spellcheck: known ? "false" : null });
  return { input, read: () => input.value.trim() ? input.value : undefined };
}

/** A box for each proposed value; without a list all are ticked, and all ticked is no list. */
function checks(proposed, value) {
  const values = [...new Set([...proposed, ...(value ?? [])])];
  const boxes = values.map((one) => h("input", { type: "checkbox", checked: value?.includes(one) ?? true }));
  const element = h("div", { class: "checks" }, values.map((one, index) => h("label", {}, boxes[index], one)));
  const read = () => {
    const chosen = values.filter((_, index) => boxes[index].checked);
    if (value?.length === chosen.length && chosen.every((one) => value.includes(one))) return value;
    return chosen.length === values.length ? undefined : chosen;
  };
  return { element, read };
}

/** A list that grows and shrinks. */
function entries(name, schema, values, label, context) {
  const rows = [], list = h("ul", { class: "items" });
  function add(value) {
    const inner = schema.type === "object" ? members(schema, value ?? {}, context) : simple(name, schema, value, context);
    const content = inner.input ?? boxed("field group", h("span", { class: "unseen" }, label), null, inner.parts.map((part) => part.element));
    const row = { ...inner, element: content };
    inner.input?.setAttribute("aria-label", label);
    const drop = iconButton("cross", t("Remove"), () => { rows.splice(rows.indexOf(row), 1); item.remove(); });
    const item = h("li", {}, content, inner.input && name === "tools" ? context.more(inner.input) : null, drop);
    rows.push(row);
    list.append(item);
    return inner.input ?? inner.parts[0].element.querySelector("input, textarea");
  }
  values.forEach(add);
  const adder = h("button", { type: "button", class: "quiet small", onclick: () => add(undefined).focus() }, icon("plus"), t("Add"));
  const read = () => {
    const found = rows.map((row) => row.read()).filter((one) => one !== undefined);
    return found.length ? found : undefined;
  };
  const at = ([index, ...rest]) => within(rows.filter((row) => row.read() !== undefined)[index], rest);
  return { element: [list, adder], read, at };
}
