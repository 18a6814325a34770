// What the menus of the list do with conversations: rename, pin, export and delete one, several or all.
import * as api from "./api.js";
import { line, sure } from "./dialogs.js";
import { announce, h } from "./dom.js";
import { t } from "./i18n.js";

const AT_ONCE = 1000; // conversations that one request lists or deletes

/** The entries of a conversation's menu, in the list and above the conversation. */
export function actions(sidebar, row) {
  return [
    { name: "edit", label: t("Rename"), run: () => rename(sidebar, row) },
    { name: "pin", label: row.pinned ? t("Unpin") : t("Pin"), run: () => pin(sidebar, row) },
    { name: "save", label: t("Export as Markdown"), run: () => save(sidebar, row.session_id, "markdown") },
    { name: "save", label: t("Export as JSON"), run: () => save(sidebar, row.session_id, "json") },
    { name: "trash", label: t("Delete"), danger: true, run: () => remove(sidebar, row) },
  ];
}

/** The entries of the menu for the whole list. */
export function forAll(sidebar) {
  const others = sidebar.startedBy === "own" ? "programs" : "own";
  return [
    { name: "trace", label: others === "own" ? t("Back to yours") : t("From programs"), run: () => sidebar.show(others) },
    { name: "check", label: t("Select…"), run: () => sidebar.select(true) },
    { name: "save", label: t("Export all"), run: () => save(sidebar, null) },
    { name: "trash", label: t("Delete all…"), danger: true, run: () => removeAll(sidebar) },
  ];
}

async function rename(sidebar, row) {
  const title = await line(t("Rename"), t("Title"), row.title);
  if (title !== null && await sidebar.tried(() => api.change(row.session_id, { title }))) await sidebar.loadAt(row);
}

async function pin(sidebar, row) {
  if (await sidebar.tried(() => api.change(row.session_id, { pinned: !row.pinned }))) await sidebar.loadAt(row);
}

function save(sidebar, sessionId, format) {
  return sidebar.tried(async () => {
    const { blob, name } = await api.exported(sessionId, format, sidebar.startedBy);
    const link = h("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    announce(t("Exported"));
  });
}

async function remove(sidebar, row) {
  const title = row.title || t("Untitled");
  const text = t("“{title}” is deleted with all versions of its answers, its messages and traces. This cannot be undone.", { title });
  if (await sure(t("Delete this conversation?"), text, t("Delete"))) await removed(sidebar, [row.session_id]);
}

/** Ask, with their number, and delete them. */
export async function removeMany(sidebar, ids) {
  const text = t("They are deleted with all versions of their answers, their messages and traces. This cannot be undone.");
  const question = t("Delete {count} conversation? | Delete {count} conversations?", { count: ids.length });
  if (ids.length && await sure(question, text, t("Delete"))) await removed(sidebar, ids);
}

/** The conversations are listed first: what is deleted is what the question counted. */
function removeAll(sidebar) {
  return sidebar.tried(async () => {
    const ids = [];
    let cursor = null;
    do {
      const page = await api.sessions({ started_by: sidebar.startedBy, families: true, limit: AT_ONCE }, cursor);
      ids.push(...page.sessions.map((row) => row.session_id));
      cursor = page.cursor;
    } while (cursor);
    await removeMany(sidebar, ids);
  });
}

async function removed(sidebar, ids) {
  const gone = await sidebar.tried(async () => {
    for (let place = 0; place < ids.length; place += AT_ONCE) await api.remove(ids.slice(place, place + AT_ONCE));
  });
  if (!gone) return;
  announce(t("Deleted"));
  await sidebar.forget(ids);
}
