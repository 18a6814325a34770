// The questions of a run that wait together: one list, each call with a decision of its own.
import * as api from "./api.js";
import { ApprovalCard } from "./approval.js";
import { h, announce } from "./dom.js";
import { t } from "./i18n.js";

/**
 * `decided(run)` is called after the last decision with the run that continues; null where that decision was taken in
 * another tab or the console. All calls at once cannot be approved: each is to be read.
 */
export class ApprovalList {
  constructor(decided) {
    this.decided = decided;
    this.cards = [];
    this.heading = h("h3", { class: "approvals-heading" });
    this.element = h("div", { class: "approvals" }, this.heading);
  }

  get waiting() {
    return this.cards.filter((card) => card.isOpen);
  }

  add(approvals) {
    for (const approval of approvals) {
      const card = new ApprovalCard(approval, {
        decided: (reply) => this.count(reply.resumed),
        late: () => this.check(),
      });
      this.cards.push(card);
      this.element.append(card.element);
    }
    this.count();
    announce(this.waiting.length === 1 ? t("{tool} waits for your approval", { tool: approvals[0].tool }) : this.heading.textContent);
  }

  count(resumed = null) {
    const { waiting } = this;
    const count = waiting.length;
    waiting.forEach((card) => card.moved());
    this.heading.textContent = t("{count} call waits for your decision | {count} calls wait for your decision", { count });
    this.heading.hidden = this.cards.length < 2 || count === 0;
    if (count === 0) this.decided(resumed);
  }

  /** Settle the cards that were answered elsewhere, or have expired. */
  async check() {
    const before = this.waiting;
    if (before.length === 0) return;
    const [{ approval }] = before;
    const { approvals } = await api.decisions(approval.session_id, approval.run_id).catch(() => ({ approvals: [] }));
    for (const card of before.filter((item) => !item.sending)) {
      const known = approvals.find((item) => item.approval_id === card.approval.approval_id);
      if (known && known.status !== "waiting") card.settle(known);
    }
    if (this.waiting.length < before.length) this.count();
  }
}
