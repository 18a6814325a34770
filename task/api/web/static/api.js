// The agent's HTTP API as this page uses it; the only file that knows addresses.
import { t } from "./i18n.js";
import { keep, recall } from "./memory.js";

/** A request that was refused; `message` is a sentence a user can act on, `note` its reference into the log. */
export class ApiError extends Error {
  constructor(status, message, reference = null) {
    super(message);
    this.status = status;
    this.note = reference ? t(" (error reference: {reference})", { reference }) : "";
  }
}

const UNREACHABLE = t("The agent is not responding. Check that it is running, then try again.");
const QUIET = new Set(["markdown", "memory", "v1/files", "transcription", "picks"]); // requests that change no conversation
let askForKey = async () => null;
let wrote = () => {};

/** `listener()` is called after every request that has changed something. */
export function onWrite(listener) {
  wrote = listener;
}

/** `ask` gets a key from the user, or null; it is called when the agent wants one. */
export function onMissingKey(ask) {
  askForKey = ask;
}

function headers(more = {}) {
  const key = recall("key", null, "sessionStorage");
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

async function call(method, path, { body, signal, more = {} } = {}) {
  const isForm = body instanceof FormData;
  const sent = body === undefined || isForm ? body : JSON.stringify(body);
  const kind = sent === undefined || isForm ? {} : { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(path, { method, body: sent, signal, headers: headers({ ...kind, ...more }) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, UNREACHABLE);
  }
  if (response.ok) {
    if (method !== "GET" && !QUIET.has(path)) wrote();
    return response;
  }
  if (response.status === 401) {
    const key = await askForKey();
    if (key) {
      keep("key", key, "sessionStorage");
      return call(method, path, { body, signal, more });
    }
  }
  throw await refusal(response);
}

async function refusal(response) {
  try {
    const { error, detail } = await response.json();
    return new ApiError(response.status, error?.display_message ?? error?.message ?? String(detail), error?.reference);
  } catch {
    return new ApiError(response.status, t("The agent refused this ({status}).", { status: response.status }));
  }
}

const json = async (...given) => (await call(...given)).json();
const part = encodeURIComponent;
const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

export const facts = () => json("GET", "page");
export const models = () => json("GET", "v1/models");
export const prompts = () => json("GET", "prompts");
export const savePrompt = (name, text) => json("PUT", `prompts/${part(name)}`, { body: { text } });
export const deletePrompt = (name) => call("DELETE", `prompts/${part(name)}`);
export const memory = () => json("GET", "memory");
export const changeMemory = (change) => json("PATCH", "memory", { body: change });
export const deleteMemory = () => call("DELETE", "memory");
export const skills = () => json("GET", "skills");
export const picks = () => json("GET", "picks");
/** What a prompt or a resource of a server says, as an attachment: a text, or a file. */
export const picked = (pick, values, signal) => json("POST", "picks", { body: { pick, arguments: values }, signal });
export const personas = () => json("GET", "personas");
/** A page of conversations; `which`: `q` (words), `started_by` (own, programs), `pinned`, `families`. */
export const sessions = (which, cursor = null) => json("GET", `sessions${query({ limit: 40, ...which, cursor })}`);
export const session = (id) => json("GET", `session/${part(id)}`);
export const messages = (id) => json("GET", `session/${part(id)}/messages`);
export const versions = (id) => json("GET", `session/${part(id)}/versions`);
export const end = (id) => json("POST", "session/end", { body: { session_id: id } });
export const change = (id, body) => call("PATCH", `session/${part(id)}`, { body });
/** Delete conversations with their versions; at most a thousand at once. */
export const remove = (ids) => call("POST", "sessions/delete", { body: { session_ids: ids, families: true } });
/** A conversation as a file, or without an id all that were started by `own` or `programs`: a blob and its name. */
export async function exported(id, format, startedBy) {
  const response = await call("GET", id ? `session/${part(id)}/export?format=${format}` : `sessions/export${query({ started_by: startedBy })}`);
  const name = /filename\*=UTF-8''(\S+)/.exec(response.headers.get("Content-Disposition"))?.[1];
  return { blob: await response.blob(), name: decodeURIComponent(name ?? "conversation") };
}
export const branch = (id, kept) => json("POST", `session/${part(id)}/branch`, { body: { keep: kept } });
export const startRun = (body) => json("POST", "runs", { body });
export const runs = (sessionId) => json("GET", `runs${query({ session_id: sessionId, limit: 1 })}`);
export const cancelRun = (id) => call("POST", `runs/${part(id)}/cancel`);
/** The questions of a session, or of one of its runs, with those that are answered. */
export const decisions = (sessionId, runId) => json("GET", `approvals${query({ session_id: sessionId, run_id: runId, waiting: false })}`);
export const decide = (id, body) => json("POST", `approvals/${part(id)}`, { body });
/** The address at which the user signs in, and what the server sent back to the page. */
export const startSignIn = (server) => json("POST", `sign-ins/${part(server)}`, { body: { redirect: `${location.origin}${location.pathname}` } });
export const finishSignIn = (body) => json("POST", "sign-ins", { body });
/** Between the tabs: the server at which the user has signed in. */
export const signIns = new BroadcastChannel("sign-ins");
/** A page of traces; those of titles only where their door is asked for. */
export const traces = (given) => json("GET", `traces${query({ limit: 50, except_door: given.door ? null : "title", ...given })}`);
export const ratings = (given) => json("GET", `traces/ratings${query(given)}`);
export const rate = (name, body) => json("POST", `traces/${part(name)}/rating`, { body });
export const unrate = (name) => call("DELETE", `traces/${part(name)}/rating`);
export const replay = (id, model) => json("POST", `traces/${part(id)}/replay`, { body: { model } });
export const trace = (id) => json("GET", `traces/${part(id)}`);
export const fullResult = async (path) => (await call("GET", path.replace(/^\//, ""))).text();

/** The blocks (`{line, html}`) of each Markdown text; nothing in their HTML acts. */
export const rendered = async (texts) => (await json("POST", "markdown", { body: { texts } })).texts;

/** Store a file; its id stands in messages. */
export async function upload(file, signal) {
  const form = new FormData();
  form.append("file", file, file.name);
  form.append("purpose", "user_data");
  return json("POST", "v1/files", { body: form, signal });
}

/** A file that comes with the page. */
export async function sample(name) {
  const blob = await (await call("GET", `static/samples/${part(name)}`)).blob();
  return new File([blob], name, { type: blob.type.split(";")[0] }); // as from a disk, without a charset
}

/** What is said in a recording. */
export async function transcribed(recording) {
  const form = new FormData();
  form.append("file", recording, "recording");
  return (await json("POST", "transcription", { body: form })).text;
}

/** The content of a file of ours as a blob of that type. Raises ApiError where it is not ours to read. */
export async function content(url, type) {
  const response = await call("GET", `v1/files/${fileId(url)}/content`);
  return new Blob([await response.arrayBuffer()], { type: type ?? "application/octet-stream" });
}

/** The first bytes of a file of ours, at least `most` of them where it has so many, and whether that is all. */
export async function beginning(url, most) {
  const reader = (await call("GET", `v1/files/${fileId(url)}/content`)).body.getReader();
  const pieces = [];
  for (let size = 0; size < most;) {
    const { done, value } = await reader.read();
    if (done) return { bytes: joined(pieces), whole: true };
    pieces.push(value);
    size += value.length;
  }
  await reader.cancel();
  return { bytes: joined(pieces).slice(0, most), whole: false };
}

function joined(pieces) {
  const bytes = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let place = 0;
  for (const piece of pieces) {
    bytes.set(piece, place);
    place += piece.length;
  }
  return bytes;
}

/** The id under which the API knows the file at `files/{bucket}/{path}`. */
export function fileId(url) {
  const name = new TextEncoder().encode(decodeURIComponent(url.replace(/^files\//, "")));
  const base64 = btoa(String.fromCharCode(...name));
  return `file-${base64.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

const WAITS = [300, 800, 2000, 4000, 8000];

/**
 * The events of a run, from the first on, to `onEvent`. A broken connection is resumed after the last event;
 * returns when the run is over, or `signal` is aborted.
 */
export async function follow(runId, onEvent, signal) {
  let last = 0;
  for (let failures = 0; failures <= WAITS.length; failures += 1) {
    try {
      const more = last ? { "Last-Event-ID": String(last) } : {};
      const response = await call("GET", `runs/${part(runId)}/events`, { signal, more });
      for await (const event of eventsOf(response.body)) {
        failures = 0;
        if (event.id !== undefined) last = Math.max(last, event.id);
        onEvent(event);
        if (event.type === "finished") return;
      }
    } catch (error) {
      if (error.name === "AbortError" || error.status >= 400) throw error;
    }
    if (failures < WAITS.length) await new Promise((done) => { setTimeout(done, WAITS[failures]); });
  }
  throw new ApiError(0, t("The connection to the agent was lost. Reload the page to continue the answer."));
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (waiting + value.replaceAll("\r", "")).split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
      if (data && data.trim() !== "[DONE]") yield JSON.parse(data);
    }
  }
}
