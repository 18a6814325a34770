// The language of the interface: texts by message catalogue, numbers and dates by the browser's Intl.
//
// The English text is the key: t("Delete the chat?"). {name} is replaced by a value, numbers are written as people
// read them. A text whose form depends on a number lists its forms, separated by " | ", in the order of FORMS, as many
// as the language has, and takes that number as `count`: t("{count} call waits | {count} calls wait", { count }).
// English and German have one and other, Ukrainian one, few, many and other, Chinese only other.

export const LANGUAGES = { en: "English", de: "Deutsch", uk: "Українська", zh: "中文" };
const FORMS = ["zero", "one", "two", "few", "many", "other"];
const KEPT = "language";

/** The user's choice; null follows the browser. */
export function chosenLanguage() {
  try {
    const kept = localStorage.getItem(KEPT);
    return kept in LANGUAGES ? kept : null;
  } catch {
    return null;
  }
}

/** Keep a choice, null to follow the browser, and show the page in it. */
export function chooseLanguage(language) {
  try {
    if (language === null) localStorage.removeItem(KEPT);
    else localStorage.setItem(KEPT, language);
  } catch { /* the storage is switched off: the browser's language stays */ }
  location.reload();
}

const base = (tag) => tag.toLowerCase().split("-")[0];
const preferred = () => navigator.languages.find((tag) => base(tag) in LANGUAGES);

export const language = chosenLanguage() ?? base(preferred() ?? "en");
/** The language with the user's region, where the browser names one: en-GB writes dates otherwise than en-US. */
export const locale = navigator.languages.find((tag) => base(tag) === language) ?? language;

const plurals = new Intl.PluralRules(language);
const categories = FORMS.filter((form) => plurals.resolvedOptions().pluralCategories.includes(form));
const english = new Intl.PluralRules("en");
const catalogue = language === "en" ? {} : await loaded(language);
document.documentElement.lang = language === "zh" ? "zh-Hans" : language;

async function loaded(name) {
  try {
    const response = await fetch(new URL(`lang/${name}.json`, import.meta.url));
    return response.ok ? await response.json() : {};
  } catch {
    return {}; // the page in English is better than no page
  }
}

/** The text in the user's language; a text without a translation stays English. */
export function t(text, values = {}) {
  const found = catalogue[text];
  const form = found === undefined ? formOf(text, values.count, english, ["one", "other"]) : formOf(found, values.count, plurals, categories);
  return form.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? written(values[name]) : whole));
}

function formOf(text, count, rules, order) {
  if (count === undefined) return text;
  const forms = text.split(" | ");
  return forms[order.indexOf(rules.select(count))] ?? forms.at(-1);
}

const written = (value) => (typeof value === "number" ? number(value) : String(value));

/** A number as users write it in this language. */
export const number = (value, options = {}) => new Intl.NumberFormat(locale, options).format(value);

/** A point in time as users write it in this language. */
export const date = (value, options) => new Intl.DateTimeFormat(locale, options).format(new Date(value));
