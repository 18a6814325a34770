// A button that opens a menu: by keyboard as by pointer; Escape or a press elsewhere closes it.
import { h, icon, iconButton } from "./dom.js";

/** `entries()` lists `{ name, label, run, danger, href }` when the menu opens; null ones are left out. */
export function menuButton(label, entries, more = {}) {
  const button = iconButton("more", label, () => open(button, entries().filter(Boolean)), {
    "aria-haspopup": "menu", "aria-expanded": "false", ...more,
  });
  button.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") { event.preventDefault(); button.click(); }
  });
  return button;
}

function open(button, entries) {
  const menu = h("div", { class: "menu", role: "menu", "aria-label": button.getAttribute("aria-label"), popover: "auto" },
    entries.map(({ name, label, run, danger }) => h("button", {
      type: "button", role: "menuitem", tabindex: "-1", class: danger ? "deny" : null,
      onclick: () => { menu.hidePopover(); run(); },
    }, icon(name), label)));
  menu.addEventListener("keydown", (event) => move(event, menu));
  menu.addEventListener("toggle", ({ newState }) => {
    button.setAttribute("aria-expanded", String(newState === "open"));
    if (newState !== "open") menu.remove();
  });
  document.body.append(menu);
  menu.showPopover();
  place(menu, button.getBoundingClientRect());
  menu.querySelector("button")?.focus();
}

function place(menu, beside) {
  const { width, height } = menu.getBoundingClientRect();
  const left = Math.min(beside.left, innerWidth - width - 8);
  const below = beside.bottom + 4;
  menu.style.left = `${Math.max(8, left)}px`;
  menu.style.top = `${below + height < innerHeight - 8 ? below : Math.max(8, beside.top - height - 4)}px`;
}

function move(event, menu) {
  const items = [...menu.querySelectorAll("button")];
  const now = items.indexOf(document.activeElement);
  const next = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: items.length - 1 }[event.key];
  if (event.key === "Tab") menu.hidePopover();
  if (event.key === "Escape") event.stopPropagation();
  if (next === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  items.at(next % items.length).focus();
}
