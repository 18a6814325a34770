// A run of many steps as one line that opens: how many, how long, and while it lasts what is going on.
import { duration, h, icon } from "./dom.js";
import { t } from "./i18n.js";

const FEWEST = 5; // steps in a row that are folded

/** Steps that follow each other in `parts`, with nothing between them. */
export class StepRun {
  constructor(parts) {
    this.parts = parts;
    this.cards = [];
    this.fold = null;
  }

  add(card) {
    this.cards.push(card);
    card.changed = () => this.update();
    (this.fold ? this.inside : this.parts).append(card.element);
    if (!this.fold && this.shown.length >= FEWEST) this.collapse();
    this.update();
  }

  get shown() {
    return this.cards.filter((card) => card.element.parentNode);
  }

  /** Nothing that a user has opened, or is in, disappears. */
  collapse() {
    const cards = this.shown;
    if (cards.some((card) => card.element.contains(document.activeElement))) return;
    this.mark = h("span", { class: "card-mark" });
    this.title = h("span", { class: "card-title" });
    this.time = h("span", { class: "card-time" });
    this.inside = h("div", { class: "fold-steps" });
    this.fold = h("details", { class: "fold", open: cards.some((card) => card.element.open) },
      h("summary", {}, this.mark, this.title, this.time, icon("chevron")), this.inside);
    cards[0].element.before(this.fold);
    this.inside.append(...cards.map((card) => card.element));
  }

  update() {
    if (!this.fold) return;
    const cards = this.shown;
    const running = cards.findLast((card) => card.running);
    const failed = cards.filter((card) => card.failed).length;
    const timed = cards.filter((card) => card.milliseconds !== undefined);
    this.fold.classList.toggle("running", Boolean(running));
    this.mark.replaceChildren(running ? h("span", { class: "spinner", "aria-hidden": "true" }) : icon("check"));
    this.title.textContent = [t("{count} step | {count} steps", { count: cards.length }),
      failed ? t("{count} failed", { count: failed }) : "", running ? running.title.textContent : ""].filter(Boolean).join(" · ");
    this.time.textContent = timed.length ? duration(timed.reduce((sum, card) => sum + card.milliseconds, 0)) : "";
  }
}
