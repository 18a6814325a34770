// The card by which a person decides about a call: what, why, how risky; approve, change, or deny with a reason.
import * as api from "./api.js";
import { h, icon, announce } from "./dom.js";
import { pretty } from "./cards.js";

const RISKS = { low: "Low risk", medium: "Some risk", high: "High risk" };
const SETTLING = 1000; // milliseconds in which a new card decides nothing: the key or click was meant for something else

/**
 * `decided(answer)` is called with the API's answer when the decision has been taken. The card is announced and never
 * takes the focus; with a high risk the keyboard needs a second step.
 */
export class ApprovalCard {
  constructor(approval, decided) {
    this.approval = approval;
    this.decided = decided;
    const { card } = approval;
    const risk = card.risk_assessment ?? {};
    const level = this.level = RISKS[risk.level] ? risk.level : "medium";
    this.trouble = h("p", { class: "trouble", role: "alert", hidden: true });
    this.actions = h("div", { class: "approval-actions" });
    this.editor = this.argumentsEditor();
    this.reason = this.reasonField();
    this.element = h(
      "section", { class: `approval risk-${level}`, "aria-label": `May ${approval.tool} run?`, onkeydown: ignoreHeldKeys },
      h("header", {}, icon("shield"), h("h3", {}, "May this run?"), h("span", { class: "risk" }, RISKS[level])),
      h("pre", { class: "command", tabindex: "0" }, card.command || `${approval.tool} ${pretty(approval.arguments)}`),
      h("dl", {},
        row("Intent, in the model's words", card.intent), row("Expected outcome, in the model's words", card.expected_outcome),
        row("What it does", risk.scope), row("Risks", risk.details), row("Why you are asked", card.reason)),
      this.editor, this.reason, this.trouble, this.actions,
    );
    this.offer();
    this.enable(false);
    setTimeout(() => this.enable(true), SETTLING);
    announce(`${approval.tool} waits for your approval`);
  }

  enable(enabled) {
    for (const item of this.actions.querySelectorAll("button")) item.disabled = !enabled;
  }

  offer() {
    const grant = this.approval.card.grant_description;
    this.actions.replaceChildren(
      button("primary", "Approve", (event) => this.approve(event, { decision: "approve" })),
      grant ? button("quiet", "Always in this conversation", (event) => this.approve(event, { decision: "always" }), `Also allow: ${grant}`) : "",
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
    this.why.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.repeat) this.deny(); });
    return h("div", { class: "approval-edit", hidden: true }, h("label", {}, "Reason", this.why));
  }

  edit() {
    this.editor.hidden = false;
    this.actions.replaceChildren(
      button("primary", "Approve with these arguments", (event) => this.approveEdited(event)),
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
    this.actions.lastElementChild.focus(); // to deny
  }

  approve(event, decision) {
    const byKeyboard = event.detail === 0; // a key counts no clicks
    return byKeyboard && this.level === "high" ? this.confirm(decision) : this.send(decision);
  }

  confirm(decision) {
    const back = button("quiet", "Back", () => this.reset());
    this.actions.replaceChildren(button("danger", "Yes, run it", () => this.send(decision)), back);
    back.focus();
    announce("The risk is high: confirm that it may run");
  }

  deny() {
    return this.send({ decision: "deny", reason: this.why.value.trim() });
  }

  async approveEdited(event) {
    let changed;
    try {
      changed = JSON.parse(this.text.value);
    } catch (error) {
      this.fail(`These arguments are not valid JSON: ${error.message}`);
      return;
    }
    const same = JSON.stringify(changed) === JSON.stringify(this.approval.arguments);
    await this.approve(event, same ? { decision: "approve" } : { decision: "approve", arguments: changed });
  }

  async send(decision) {
    this.enable(false);
    try {
      const answer = await api.decide(this.approval.approval_id, decision);
      this.settle(decision);
      this.decided(answer, this.approval);
    } catch (error) {
      this.fail(error.message);
      this.enable(true);
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

function ignoreHeldKeys(event) {
  if (event.repeat && event.target.tagName === "BUTTON") event.preventDefault();
}

function button(className, label, onclick, title = null) {
  return h("button", { type: "button", class: className, onclick, title }, label);
}

function row(name, value) {
  return value ? [h("dt", {}, name), h("dd", {}, value)] : [];
}
