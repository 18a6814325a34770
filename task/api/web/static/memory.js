// What the browser remembers for this page; nothing where storage is switched off.

export function recall(name, fallback = null, storage = "localStorage") {
  try {
    return JSON.parse(window[storage].getItem(`agent.${name}`)) ?? fallback;
  } catch {
    return fallback;
  }
}

export function keep(name, value, storage = "localStorage") {
  try {
    if (value === null) window[storage].removeItem(`agent.${name}`);
    else window[storage].setItem(`agent.${name}`, JSON.stringify(value));
  } catch { /* the page works without */ }
}
