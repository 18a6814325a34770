// The page: the list beside the conversation, and what the address and the keyboard do.
import * as api from "./api.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { askKey, shortcuts, sure } from "./dialogs.js";
import { decodedPart, h, icon, iconButton } from "./dom.js";
import { t } from "./i18n.js";
import { followOthers } from "./live.js";
import { actions as actionsOf } from "./managing.js";
import { menuButton } from "./menu.js";
import { Sidebar } from "./sidebar.js";
import { showTraces, titleOf } from "./traces.js";

const SAMPLES = [ // as in task/llm/demo.py
  [t("Read a table"), t("Which product has the highest revenue, and how did it develop?"), "sample-sales.csv"],
  [t("Search a PDF"), t("What must I do if I lose my access card, and what does it cost?"), "sample-handbook.pdf"],
  [t("Draw a chart"), t("Draw solar power and consumption over the year. When is there more than we use?"), "sample-energy.csv"],
];
const WEB = [t("Search the web"), t("What is new in the latest Python release? Name your sources.")];

const AGENT = "general-purpose-agent"; // another name of the first model in the list
const DEMO = "scripted-demo";

let makesTitles = false;
const composer = new Composer({ send: (message) => send(message), stop: () => conversation.stop() });
const endButton = iconButton("archive", t("End this conversation"), () => endConversation(), { hidden: true });
const closed = h("div", { class: "over", role: "status", hidden: true }, h("p", {}, t("This conversation has ended. It can be read, and continued in a branch.")),
  h("button", { type: "button", class: "quiet", onclick: () => conversation.continue().catch((error) => conversation.newest()?.trouble(error.message)) }, t("Continue in a branch")),
  h("a", { class: "quiet", href: "#/" }, t("New conversation")));
const conversation = new Conversation({
  opened: (id) => { endButton.hidden = false; composer.started(id); history.pushState(null, "", `#/c/${id}`); sidebar.mark(id, conversation.family); sidebar.load().then(retitle); },
  switched: (id) => { composer.enter(id); history.replaceState(null, "", `#/c/${id}`); sidebar.mark(id, conversation.family); retitle(); },
  changed: () => sidebar.load().then(retitle).then(awaitTitle),
  ended: (isOver, id) => {
    closed.hidden = !isOver;
    composer.element.hidden = isOver;
    endButton.hidden = isOver || !id;
  },
  gone: (id, error) => showMissing(id, error),
  busy: (answering) => composer.busy(answering),
  refused: (message, trouble) => {
    welcome.hidden = !conversation.isEmpty();
    composer.fill(message.text, message.files);
    composer.fail(trouble);
    composer.field.focus();
  },
  manner: () => composer.manner,
});
const themeButton = iconButton("moon", t("Dark or light"), () => switchTheme());
const memoryButton = iconButton("memory", t("Memory"), async () => {
  const { manageMemory } = await import("./remembered.js");
  await manageMemory().catch((error) => composer.fail(error.message));
}, { hidden: true });
const sidebar = new Sidebar({
  chosen: () => retitle(),
  removed: (id, family) => { composer.forget(id); if (id === conversation.sessionId || (family && family === conversation.family)) location.hash = "#/"; },
  tools: [h("span", { class: "grow" }), iconButton("help", t("Help and language"), () => shortcuts()), memoryButton, themeButton],
});
const banner = h("div", { class: "banner", role: "note", hidden: true }, icon("warn"), h("p", {},
  h("strong", {}, t("Demo: the tools really run, but the answers are scripted: no model writes them.")), " ",
  t("For a model, run “dial-agent model pull”, start Ollama, or set OPENAI_API_KEY or DIAL_ENDPOINT, and start again.")),
  h("div", { class: "row", role: "group", "aria-label": t("Samples") }, SAMPLES.map(([name, text, file]) => h("button", { type: "button", class: "quiet small", onclick: () => propose(text, file) }, name))));
const title = h("h1", {}, t("New conversation"));
const welcome = h("section", { class: "welcome" },
  h("h2", {}, t("What can I do for you?")),
  h("p", {}, t("Ask a question, attach a file, or begin with one of these.")),
  h("div", { class: "ideas" }, [...SAMPLES, WEB].map(([name, text, file]) => h("button", { type: "button", onclick: () => propose(text, file) },
    h("strong", {}, name), h("span", {}, text), file ? h("small", {}, icon("clip"), file) : ""))));
const chat = h("div", { class: "chat" }, welcome, conversation.element, conversation.down,
  h("div", { class: "dock" }, closed, composer.element));
const traces = h("div", { class: "traces", hidden: true, tabindex: "-1" });
const burger = iconButton("menu", t("Conversations"), () => sidebar.toggle(true), { class: "icon-button only-narrow", "aria-controls": "sidebar", "aria-expanded": "false" });
const actions = menuButton(t("Actions for this conversation"), () => actionsOf(sidebar, sidebar.currentRow()), { hidden: true });
const tools = h("span", { class: "row" }, endButton, actions);
const main = h("main", {}, h("header", { class: "bar" }, burger, title, tools), banner, chat, traces, h("div", { class: "drop" }, icon("clip"), t("Drop files to attach them")));
document.getElementById("app").append(sidebar.element, sidebar.veil, main);

/** Put a question into the message field, with its sample file; the user reads and sends it. */
async function propose(text, file) {
  try {
    const files = file ? [await api.sample(file)] : [];
    composer.fill(text);
    composer.add(files);
  } catch (error) {
    composer.fail(error.message);
  }
}

function send(message) {
  welcome.hidden = true;
  conversation.send(message);
}

function retitle() {
  tools.hidden = !traces.hidden;
  actions.hidden = !conversation.sessionId;
  if (!traces.hidden) return;
  title.textContent = conversation.sessionId ? sidebar.titleOf(conversation.sessionId) || t("Conversation") : t("New conversation");
  document.title = conversation.sessionId ? t("{title} – Agent", { title: title.textContent }) : t("General Purpose Agent");
}

/** A title that a model makes comes soon after the first answer. */
function awaitTitle() {
  if (makesTitles && conversation.sessionId && conversation.list.querySelectorAll(".question").length === 1) {
    sidebar.awaitTitle(conversation.sessionId).then(retitle);
  }
}

async function route() {
  const [, place, first, second] = location.hash.split("/").map(decodedPart);
  const inTraces = place === "traces";
  traces.hidden = !inTraces;
  chat.hidden = inTraces;
  if (inTraces) {
    tools.hidden = true;
    sidebar.mark(null);
    title.textContent = titleOf(first, second);
    document.title = t("{title} – Agent", { title: title.textContent });
    await showTraces(traces, first, second);
    return;
  }
  if (place === "c" && first) await openConversation(first);
  else begin();
  retitle();
}

function begin() {
  conversation.reset();
  composer.enter(null);
  sidebar.mark(null);
  welcome.hidden = false;
  composer.field.focus();
}

async function openConversation(id) {
  welcome.hidden = true;
  sidebar.mark(id, conversation.sessionId === id ? conversation.family : null);
  if (conversation.sessionId === id) return;
  composer.enter(id);
  try {
    await conversation.open(id);
    if (conversation.sessionId !== id) return; // the user has gone on to another
    sidebar.mark(id, conversation.family);
    const isTyping = document.activeElement === sidebar.field;
    if (!isTyping && !matchMedia("(pointer: coarse)").matches) composer.field.focus();
  } catch (error) {
    if (conversation.sessionId === id) showMissing(id, error);
  }
}

/** What stands in place of a conversation that cannot be shown. */
function showMissing(id, error) {
  const isGone = error.status === 404;
  conversation.reset();
  conversation.list.replaceChildren(h("div", { class: "nothing" }, icon("warn"),
    h("p", {}, isGone ? t("There is no such conversation. It may have been deleted.") + error.note : error.message),
    isGone ? "" : h("button", { type: "button", class: "primary", onclick: () => openConversation(id) }, t("Try again")),
    h("a", { class: "quiet", href: "#/" }, t("Begin another"))));
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const chosen = dark ? "light" : "dark";
  document.documentElement.dataset.theme = chosen;
  try { localStorage.setItem("theme", chosen); } catch { /* for this visit only */ }
  showTheme();
}

function showTheme() {
  const dark = document.documentElement.dataset.theme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  themeButton.replaceChildren(icon(dark ? "sun" : "moon"));
}

function pressed(event) {
  if ((event.ctrlKey || event.metaKey) && event.code === "KeyK" && !document.querySelector("dialog:modal")) {
    event.preventDefault();
    sidebar.search();
    return;
  }
  const writing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (document.querySelector("dialog:modal")) return;
  if (event.key === "Escape" && conversation.runId) conversation.stop();
  else if (event.altKey && event.code === "KeyN") location.hash = "#/";
  else if (event.altKey && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    const next = sidebar.neighbour(event.key === "ArrowDown" ? 1 : -1);
    if (next) location.hash = `#/c/${next}`;
  } else if (!writing && event.key === "/") composer.field.focus();
  else if (!writing && event.key === "?") shortcuts();
  else return;
  event.preventDefault();
}

let over = 0;
function dragging(event) {
  if (![...event.dataTransfer.types].includes("Files")) return;
  event.preventDefault();
  over += event.type === "dragenter" ? 1 : event.type === "dragleave" ? -1 : 0;
  if (event.type === "drop") {
    over = 0;
    composer.add([...event.dataTransfer.files]);
  }
  document.body.classList.toggle("dropping", over > 0);
}

async function endConversation() {
  const text = t("An answer in progress is stopped, open questions are withdrawn, and nothing can be added. You can still read it.");
  if (!await sure(t("End this conversation?"), text, t("End"))) return;
  await conversation.end().catch((error) => conversation.newest()?.trouble(error.message));
}

async function loadChoices() {
  try {
    const [models, personas, facts] = await Promise.all([api.models(), api.personas(), api.facts()]);
    composer.limit(facts.upload_bytes);
    if (facts.transcription) composer.offerVoice();
    makesTitles = facts.titles;
    memoryButton.hidden = !facts.memory;
    composer.offer(models.data.map((model) => model.id).filter((id) => id !== AGENT));
    composer.offerPersonas(personas.personas, personas.default, personas.descriptions);
    showBanner();
  } catch (error) {
    composer.fail(error.message);
  }
}

/** The script is not taken for a model, and only its samples are offered. */
function showBanner() {
  banner.hidden = composer.model.value !== DEMO;
  welcome.querySelector(".ideas").lastChild.hidden = !banner.hidden;
}

/** The server at which the user has signed in sends him back here, in a tab of its own. */
async function finishSignIn() {
  const back = new URLSearchParams(location.search);
  if (!back.has("state")) return;
  history.replaceState(null, "", location.pathname); // the code is a secret, for one use
  try {
    const { server } = await api.finishSignIn({ state: back.get("state"), code: back.get("code") ?? "", iss: back.get("iss") });
    api.signIns.postMessage(server);
    composer.fail(t("You are signed in to {server}. You can close this tab.", { server }));
  } catch (error) {
    composer.fail(error.message);
  }
}

api.onMissingKey(askKey);
composer.model.addEventListener("change", showBanner);
showTheme();
addEventListener("hashchange", route);
document.addEventListener("keydown", pressed);
for (const type of ["dragenter", "dragover", "dragleave", "drop"]) main.addEventListener(type, dragging);
document.querySelector(".skip").textContent = t("Skip to the conversation");
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); conversation.element.focus(); });
await finishSignIn();
await Promise.allSettled([route(), sidebar.load().then(retitle), loadChoices()]);
followOthers(async (changed) => {
  if (changed) await sidebar.load();
  if (await conversation.refresh() && !changed) await sidebar.load();
  retitle();
});
