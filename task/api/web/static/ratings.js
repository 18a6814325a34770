// The two thumbs of an answer, and the comment that may go with one.
import { rate, unrate } from "./api.js";
import { announce, h, icon, iconButton } from "./dom.js";
import { t } from "./i18n.js";

const COMMENT_CHARS = 2000;

/** The thumbs of one trace, as far as it is rated already; pressing the same thumb again takes the rating back. */
export class Rating {
  constructor({ trace_id: id, rating = null, comment = null }) {
    this.id = id;
    this.rating = rating;
    this.comment = comment;
    this.thumbs = {
      up: iconButton("up", t("Good answer"), () => this.press("up")),
      down: iconButton("down", t("Bad answer"), () => this.press("down")),
    };
    this.note = h("div", { class: "rating-note" });
    this.element = h("span", { class: "rating" }, this.thumbs.up, this.thumbs.down);
    this.draw();
  }

  draw() {
    for (const [name, thumb] of Object.entries(this.thumbs)) thumb.setAttribute("aria-pressed", String(this.rating === name));
  }

  async press(name) {
    const isRetracted = this.rating === name;
    if (!await this.save(isRetracted ? null : name, null)) return;
    announce(isRetracted ? t("The rating was removed") : t("The rating was kept"));
    this.note.replaceChildren(...(isRetracted ? [] : [this.form()]));
  }

  async save(rating, comment) {
    const before = { rating: this.rating, comment: this.comment };
    Object.assign(this, { rating, comment });
    this.draw();
    try {
      if (rating === null) await unrate(this.id);
      else await rate(this.id, { rating, ...(comment ? { comment } : {}) });
      return true;
    } catch (error) {
      Object.assign(this, before);
      this.draw();
      this.note.replaceChildren(h("p", { class: "trouble", role: "alert" }, icon("warn"), h("span", {}, `${error.message}${error.note ?? ""}`)));
      return false;
    }
  }

  form() {
    const asked = this.rating === "up" ? t("What was good about it? (optional)") : t("What was wrong with it? (optional)");
    const field = h("input", { type: "text", maxlength: COMMENT_CHARS, "aria-label": asked, placeholder: asked });
    const send = h("button", { type: "submit", class: "quiet small" }, t("Send"));
    const form = h("form", { class: "rating-form" }, field, send);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const comment = field.value.trim();
      if (comment && !await this.save(this.rating, comment)) return;
      this.note.replaceChildren();
      this.thumbs[this.rating].focus();
      if (comment) announce(t("Thank you"));
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.note.replaceChildren();
      this.thumbs[this.rating].focus();
    });
    return form;
  }
}
