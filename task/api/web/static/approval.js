// The card by which a person decides about a call: what, why, how risky; approve, change, or deny with a reason.
import * as api from "./api.js";
import { h, icon, announce } from "./dom.js";
import { pretty } from "./cards.js";

const RISKS = { low: "Low risk", medium: "Some risk", high: "High risk" };

/** `decided(answer)` is called with the API's answer when the decision has been taken. */
export class ApprovalCard {
  constructor(approval, decided) {
    this.approval = approval;
    this.decided = decided;
    const { card } = approval;
    const risk = card.risk_assessment ?? {};
    const level = RISKS[risk.level] ? risk.level : "medium";
    this.trouble = h("p", { class: "trouble", role: "alert", hidden: true });
    this.actions = h("div", { class: "approval-actions" });
    this.editor = this.argumentsEditor();
    this.reason = this.reasonField();
    this.element = h(
      "section", { class: `approval risk-${level}`, "aria-label": `May ${approval.tool} run?`, tabindex: "-1" },
      h("header", {}, icon("shield"), h("h3", {}, "May this run?"), h("span", { class: "risk" }, RISKS[level])),
      h("pre", { class: "command", tabindex: "0" }, card.command || `${approval.tool} ${pretty(approval.arguments)}`),
      h("dl", {},
        row("Why", card.intent, "the model's words"), row("Expected", card.expected_outcome, "the model's words"),
        row("Reaches", risk.scope), row("Mind", risk.details), row("Asked because", card.reason)),
      this.editor, this.reason, this.trouble, this.actions,
    );
    this.offer();
    announce(`${approval.tool} waits for your approval`);
  }

  offer() {
    const grant = this.approval.card.grant_told;
    this.actions.replaceChildren(
      button("primary", "Approve", () => this.send({ decision: "approve" })),
      grant ? button("quiet", "Always in this conversation", () => this.send({ decision: "always" }), `Also allow: ${grant}`) : "",
      button("quiet", "Edit arguments", () => this.edit()),
      button("quiet deny", "Deny…", () => this.refuse()),
    );
  }

  argumentsEditor() {
    this.text = h("textarea", { rows: 6, spellcheck: "false", "aria-label": "Arguments as JSON", value: pretty(this.approval.arguments) });
    return h("div", { class: "approval-edit", hidden: true }, h("label", {}, "Arguments (JSON)", this.text));
  }

  reasonField() {
    this.why = h("input", { type: "text", maxlength: 1000, placeholder: "What should it do instead? (optional)", "aria-label": "Reason" });
    this.why.addEventListener("keydown", (event) => { if (event.key === "Enter") this.deny(); });
    return h("div", { class: "approval-edit", hidden: true }, h("label", {}, "Reason", this.why));
  }

  edit() {
    this.editor.hidden = false;
    this.actions.replaceChildren(
      button("primary", "Approve with these arguments", () => this.approveEdited()),
      button("quiet", "Back", () => this.reset()),
    );
    this.text.focus();
  }

  refuse() {
    this.reason.hidden = false;
    this.actions.replaceChildren(
      button("danger", "Deny", () => this.deny()),
      button("quiet", "Back", () => this.reset()),
    );
    this.why.focus();
  }

  reset() {
    this.editor.hidden = true;
    this.reason.hidden = true;
    this.fail("");
    this.offer();
    this.actions.firstElementChild.focus();
  }

  deny() {
    return this.send({ decision: "deny", reason: this.why.value.trim() });
  }

  async approveEdited() {
    let changed;
    try {
      changed = JSON.parse(this.text.value);
    } catch (error) {
      this.fail(`These arguments are not valid JSON: ${error.message}`);
      return;
    }
    const same = JSON.stringify(changed) === JSON.stringify(this.approval.arguments);
    await this.send(same ? { decision: "approve" } : { decision: "approve", arguments: changed });
  }

  async send(decision) {
    const buttons = [...this.actions.querySelectorAll("button")];
    buttons.forEach((item) => { item.disabled = true; });
    try {
      const answer = await api.decide(this.approval.approval_id, decision);
      this.settle(decision);
      this.decided(answer, this.approval);
    } catch (error) {
      this.fail(error.message);
      buttons.forEach((item) => { item.disabled = false; });
      if (error.status === 409) this.actions.replaceChildren();
    }
  }

  settle({ decision, reason }) {
    const outcome = decision === "deny" ? `Denied${reason ? `: ${reason}` : ""}` : "Approved";
    this.element.replaceChildren(h("p", { class: "settled" }, icon(decision === "deny" ? "cross" : "check"), `${outcome} – ${this.approval.tool}`));
    this.element.className = "approval done";
    announce(outcome);
  }

  fail(message) {
    this.trouble.textContent = message;
    this.trouble.hidden = !message;
  }
}

function button(className, label, onclick, title = null) {
  return h("button", { type: "button", class: className, onclick, title }, label);
}

function row(name, value, note = null) {
  if (!value) return [];
  return [h("dt", {}, name), h("dd", {}, value, note ? h("small", {}, ` – ${note}`) : "")];
}
