// The editor of an application in a frame of DIAL Chat: its properties as a form, kept by DIAL Core.
//
// Only the origins that the operator names may show this page, are told anything and are listened to. The user's key or
// token goes from the browser to DIAL Core alone, whose answers every origin may read (CORS); no message contains it.
import { announce, decodedPart, h, icon } from "./dom.js";
import { schemaForm } from "./editor-form.js";
import { t } from "./i18n.js";
import { keep, recall } from "./memory.js";

const facts = JSON.parse(document.querySelector("meta[name=editor]").content);
const query = new URLSearchParams(location.search);
const name = query.get("applicationName") || document.title;
const place = document.querySelector("main");
const JSON_TYPE = { "Content-Type": "application/json" };
const GENERAL = { name: "display_name", description: "description", iconUrl: "icon_url", topics: "description_keywords", display_version: "display_version" };
let form = null, draft = null, stored = null, tag = null, saving = Promise.resolve();

class SignedOut extends Error {}

const tell = (type, more = {}) => {
  if (parent !== window) for (const origin of facts.hosts) parent.postMessage({ type, ...more }, origin);
};

// The application's address below Core, or null: its id may be encoded, and leads to no other place.
const parts = (query.get("id") ?? "").split("/").map(decodedPart);
const isSafe = parts.length > 2 && parts[0] === "applications" && parts.every((part) => part && part !== "." && part !== "..");
const address = isSafe ? `v1/${parts.map(encodeURIComponent).join("/")}` : null;

async function asked(path, options = {}) {
  const key = recall("core", "", "sessionStorage");
  const headers = { ...options.headers, ...(/^eyJ[\w-]+\./.test(key) ? { Authorization: `Bearer ${key}` } : { "Api-Key": key }) };
  const response = await fetch(`${facts.core}/${path}`, { ...options, headers, credentials: "omit", referrerPolicy: "no-referrer" }).catch(() => {
    throw new Error(t("DIAL Core is not responding. Try again in a moment."));
  });
  if (response.ok) return response;
  if (response.status === 401) throw new SignedOut(t("Your key is not valid, or has expired. Enter it again."));
  if (response.status === 412) throw new Error(t("The application was changed elsewhere. Reload it; what you have written here is then lost."));
  if (!options.method && [403, 404].includes(response.status)) throw new Error(t("There is no such application, or you may not change it."));
  const text = await response.text();
  throw new Error(t("DIAL Core refused it: {text}", { text: text.slice(0, 300) }));
}

async function own(path, options = {}) {
  const response = await fetch(path, options).catch(() => null);
  if (!response?.ok) throw new Error(t("The agent is not responding. Check that it is running, then try again."));
  return response.json();
}

async function read() {
  const response = await asked(address);
  tag = response.headers.get("etag");
  stored = await response.json();
}

/** The names that the user may choose from; none where Core does not list them. */
async function listed() {
  const kinds = ["models", "applications", "toolsets"];
  const ids = await Promise.all(kinds.map((kind) => asked(`openai/${kind}`)
    .then(async (response) => (await response.json()).data.map((one) => decodedPart(one.id))).catch(() => [])));
  return { model: ids[0], tools: [...new Set(ids.flat())].sort(), applications: new Set(ids[1]) };
}

async function open() {
  if (!address) return show(trouble(t("There is no such application, or you may not change it.")));
  if (!recall("core", "", "sessionStorage")) return showSignIn();
  try {
    const [fields, names] = await Promise.all([own(facts.schema), listed(), read()]);
    form = schemaForm(fields, draft ?? stored.application_properties, { model: names.model, tools: names.tools }, (input) => credentials(input, names.applications));
    // Hosts of before Chat 1.2 have no button of their own.
    const button = h("button", { type: "button", class: "primary", onclick: () => save() }, t("Save"));
    show(form.element, query.has("applicationCredentials") ? null : h("p", { class: "row end" }, button));
    tell(`${name}/readyToSave`);
  } catch (error) {
    if (error instanceof SignedOut) return showSignIn(error.message);
    show(trouble(error.message), h("button", { type: "button", class: "quiet", onclick: open }, t("Try again")));
  }
}

/** Opens Chat's own forms for what an application needs; what is entered there never comes here. */
function credentials(input, applications) {
  if (query.get("applicationCredentials") !== "true") return null;
  const button = h("button", { type: "button", class: "quiet small", onclick: () => tell("REQUEST_APPLICATION_CREDENTIALS", { appId: input.value }) }, icon("shield"), t("Credentials"));
  const fit = () => { button.hidden = !applications.has(input.value); };
  input.addEventListener("input", fit);
  fit();
  return button;
}

const trouble = (text) => h("p", { class: "trouble", role: "alert" }, icon("warn"), h("span", {}, text));

function show(...content) {
  place.replaceChildren(...content.filter(Boolean));
  tell(`${name}/readyToInteract`);
}

function showSignIn(text) {
  draft = form?.read() ?? draft; // what was written outlives a key
  form = null;
  keep("core", null, "sessionStorage");
  const field = h("input", { type: "password", id: "key", autocomplete: "off", required: true });
  const enter = (event) => { event.preventDefault(); keep("core", field.value.trim(), "sessionStorage"); open(); };
  show(h("form", { class: "sign-in", onsubmit: enter }, text ? trouble(text) : null,
    h("p", {}, t("To read and save this application, the page needs your key or access token of DIAL. It stays in this tab until you close it, and is sent only to DIAL Core.")),
    h("label", { for: "key" }, t("Key or access token")), field,
    h("p", {}, h("button", { class: "primary" }, t("Use this key")))));
  tell(`${name}/loggedOut`);
}

/** The same text for the same value, whatever the order of its names. */
const canonical = (value) => JSON.stringify(value, (_, one) => (one && typeof one === "object" && !Array.isArray(one) ? Object.fromEntries(Object.entries(one).sort()) : one));

async function store(general) {
  if (!form) throw new SignedOut(t("Sign in first."));
  form.calm();
  const properties = form.read() ?? {};
  const { error, at } = await own(facts.check, { method: "POST", headers: JSON_TYPE, body: JSON.stringify(properties) });
  if (error) throw Object.assign(new Error(error), { at });
  const given = Object.entries(GENERAL).filter(([one]) => general?.[one] !== undefined).map(([one, field]) => [field, general[one]]);
  const changed = { ...stored, ...Object.fromEntries(given), application_properties: properties };
  const hasChanges = canonical(changed) !== canonical(stored);
  if (hasChanges) {
    await asked(address, { method: "PUT", headers: { ...JSON_TYPE, ...(tag ? { "If-Match": tag } : {}) }, body: JSON.stringify(changed) });
    await read();
    tell(`${name}/updatedApplicationSuccess`, { payload: { application: stored } });
  }
  announce(t("Saved"));
  tell("SAVE_SUCCESS", { hasChanges });
}

/** One after the other, however often the host asks. */
function save(general) {
  saving = saving.then(() => store(general)).catch((error) => {
    if (error instanceof SignedOut) showSignIn(error.message);
    else form.complain(error.at ?? [], error.message);
    tell("SAVE_ERROR", { error: error.message });
  });
}

const theme = query.get("theme")?.match(/dark|light/)?.[0];
if (theme) document.documentElement.dataset.theme = theme;
addEventListener("message", (event) => {
  if (event.source === parent && facts.hosts.includes(event.origin) && event.data?.type === "TRIGGER_SAVE") save(event.data.general);
});
await open();
