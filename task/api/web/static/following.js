// A scrolled list that shows its end while it grows, until the user scrolls up.
import { h, iconButton } from "./dom.js";
import { t } from "./i18n.js";

const NEAR_END = 90; // pixels

export class Following {
  constructor() {
    this.list = h("div", { class: "messages" });
    this.down = iconButton("chevron", t("To the newest message"), () => this.toEnd(), { class: "icon-button to-end", hidden: true });
    this.element = h("div", { class: "scroller", id: "main", tabindex: "-1" }, this.list);
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => { if (this.follows) this.toEnd(); }).observe(this.list);
    this.list.addEventListener("click", (event) => { if (event.target.closest("summary, .more")) this.follows = false; }, { capture: true });
  }

  nearEnd(pixels = NEAR_END) {
    return this.element.scrollHeight - this.element.scrollTop - this.element.clientHeight < pixels;
  }

  /** Scrolling up, by any means, stops following the answer; scrolling back to the end follows it again. */
  scrolled() {
    const { scrollTop } = this.element;
    if (scrollTop < this.top && !this.nearEnd(2)) this.follows = false;
    else if (scrollTop > this.top && this.nearEnd()) this.follows = true;
    this.top = scrollTop;
    this.down.hidden = this.nearEnd();
  }

  toEnd() {
    this.element.scrollTop = this.element.scrollHeight;
    this.top = this.element.scrollTop;
  }
}
