// The card by which a user decides about a call: what, why, how risky; approve, change, or deny with a reason.
import * as api from "./api.js";
import { pretty } from "./cards.js";
import { changeList } from "./diff.js";
import { h, icon, announce } from "./dom.js";
import { t } from "./i18n.js";

const RISKS = { low: t("Low risk"), medium: t("Some risk"), high: t("High risk") };
// Milliseconds for which a card's buttons must have been in view, in their place, before they decide anything: a key or
// click before that was meant for something else.
const SETTLING = 1000;

/**
 * `decided(reply)` is called with the API's reply when the decision has been taken here, `late()` when it was taken
 * elsewhere. The card never takes the focus; with a high risk the keyboard needs a second step.
 */
export class ApprovalCard {
  constructor(approval, { decided, late }) {
    this.approval = approval;
    this.listeners = { decided, late };
    const { card } = approval;
    const risk = card.risk_assessment ?? {};
    this.level = RISKS[risk.level] ? risk.level : "medium";
    this.ready = this.sending = false;
    this.trouble = h("p", { class: "trouble", role: "alert", hidden: true });
    this.actions = h("div", { class: "approval-actions" });
    this.editor = this.argumentsEditor();
    this.reason = this.reasonField();
    this.command = h("pre", { class: "command", tabindex: "0", "aria-label": t("The call") }, card.command || `${approval.tool} ${pretty(approval.arguments)}`);
    const title = t("May {tool} run?", { tool: approval.tool });
    this.element = h(
      "section", { class: `approval risk-${this.level}`, "aria-label": title, tabindex: "-1", onkeydown: ignoreHeldKeys },
      h("header", {}, icon("shield"), h("h3", {}, title), h("span", { class: "risk" }, RISKS[this.level])),
      this.command,
      h("dl", {},
        row(t("Intent, in the model's words"), card.intent), row(t("Expected outcome, in the model's words"), card.expected_outcome),
        row(t("What it does"), risk.scope), row(t("Risks"), risk.details), row(t("Why you are asked"), card.reason),
        row(t("“Always” would also allow"), card.grant_description)),
      this.editor, this.reason, this.trouble, this.actions,
    );
    this.offer();
    this.settleInView();
  }

  get isOpen() {
    return !this.element.classList.contains("done");
  }

  settleInView() {
    const watch = new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting) return;
      watch.disconnect();
      this.showWhole();
      this.wait();
    });
    watch.observe(this.actions);
  }

  wait() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.enable(this.ready = true), SETTLING);
  }

  /** The card has moved: the next click was aimed at what stood there before. A card that the user works in keeps its focus. */
  moved() {
    if (!this.waiting || this.sending || this.element.contains(document.activeElement)) return;
    this.enable(this.ready = false);
    this.wait();
  }

  /** A call that is longer than its box can be seen whole. */
  showWhole() {
    if (this.command.scrollHeight <= this.command.clientHeight + 2) return;
    const more = button("quiet small", t("Show the whole call"), () => { this.command.classList.add("whole"); this.command.focus(); more.remove(); });
    this.command.after(more);
  }

  enable(enabled) {
    for (const item of this.actions.querySelectorAll("button")) item.disabled = !enabled;
  }

  show(...buttons) {
    this.actions.replaceChildren(...buttons);
    this.enable(this.ready);
  }

  /** The server that this card is about, if it asks the user to sign in. */
  get server() {
    const { tool, arguments: { server } } = this.approval;
    return tool === `sign_in_${server}` ? server : null;
  }

  async signIn() {
    const tab = open("", "_blank"); // in the click: afterwards browsers take it for an advertisement
    try {
      const { url } = await api.startSignIn(this.server);
      api.signIns.addEventListener("message", ({ data }) => { if (data === this.server && this.isOpen) this.send({ decision: "approve" }); });
      tab.opener = null;
      tab.location = url;
    } catch (error) {
      tab?.close();
      this.fail(error.message);
    }
  }

  offer() {
    if (this.server) {
      this.show(
        button("primary", t("Sign in to {server}", { server: this.server }), () => this.signIn()),
        button("quiet", t("I have signed in"), (event) => this.approve(event, { decision: "approve" })),
        button("quiet deny", t("Deny…"), () => this.refuse()),
      );
      return;
    }
    this.show(
      button("primary", t("Approve"), (event) => this.approve(event, { decision: "approve" })),
      this.approval.card.grant_description ? button("quiet", t("Always in this conversation"), (event) => this.approve(event, { decision: "always" })) : "",
      button("quiet", t("Edit arguments"), () => this.edit()),
      button("quiet deny", t("Deny…"), () => this.refuse()),
    );
  }

  argumentsEditor() {
    this.text = h("textarea", { rows: 6, spellcheck: "false", "aria-label": t("Arguments as JSON"), value: pretty(this.approval.arguments), oninput: () => this.compare() });
    this.difference = h("div", { class: "difference", role: "group", "aria-label": t("What you changed") });
    return h("div", { class: "approval-edit", hidden: true }, h("label", {}, t("Arguments (JSON)"), this.text), this.difference);
  }

  reasonField() {
    this.why = h("input", { type: "text", maxlength: 1000, placeholder: t("What should it do instead? (optional)"), "aria-label": t("Reason") });
    this.why.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.repeat) this.deny(); });
    return h("div", { class: "approval-edit", hidden: true }, h("label", {}, t("Reason"), this.why));
  }

  edit() {
    this.editor.hidden = false;
    this.show(
      button("primary", t("Approve with these arguments"), (event) => this.approveEdited(event)),
      button("quiet", t("Back"), () => this.reset()),
    );
    this.compare();
    this.text.focus();
  }

  /** The arguments in the field; null where they are not valid JSON. */
  edited() {
    try {
      return JSON.parse(this.text.value);
    } catch {
      return null;
    }
  }

  compare() {
    const edited = this.edited();
    if (edited !== null) this.difference.replaceChildren(changeList(this.approval.arguments, edited));
  }

  refuse() {
    this.reason.hidden = false;
    this.show(
      button("danger", t("Deny"), () => this.deny()),
      button("quiet", t("Back"), () => this.reset()),
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
    const back = button("quiet", t("Back"), () => this.reset());
    this.show(button("danger", t("Yes, run it"), () => this.send(decision)), back);
    back.focus();
    announce(t("The risk is high: confirm that it may run"));
  }

  deny() {
    return this.send({ decision: "deny", reason: this.why.value.trim() });
  }

  async approveEdited(event) {
    const changed = this.edited();
    if (changed === null) {
      this.fail(t("These arguments are not valid JSON."));
      this.text.focus();
      return;
    }
    const same = JSON.stringify(changed) === JSON.stringify(this.approval.arguments);
    await this.approve(event, same ? { decision: "approve" } : { decision: "approve", arguments: changed });
  }

  async send(decision) {
    if (this.element.contains(document.activeElement)) this.element.focus(); // the next key decides no other call
    this.enable(false);
    this.sending = true;
    try {
      const reply = await api.decide(this.approval.approval_id, decision);
      this.settle(reply.approval);
      this.listeners.decided(reply);
    } catch (error) {
      this.fail(error.message);
      this.enable(true);
      this.sending = false;
      if (error.status === 409) this.listeners.late();
    }
  }

  /** Show how it was decided, here or elsewhere. */
  settle(approval) {
    if (!this.isOpen) return;
    this.element.replaceChildren(...outcomeOf(approval));
    this.element.className = "approval done";
    announce(this.element.querySelector(".outcome").textContent);
  }

  fail(message) {
    this.trouble.textContent = message;
    this.trouble.hidden = !message;
  }
}

/** How a question was decided: a line, the reason of a refusal, and what was changed. */
export function outcomeOf({ status, tool, answer, arguments: given }) {
  const reason = status === "denied" ? answer?.reason : "";
  const names = { denied: t("Denied"), expired: t("Expired: no longer open"), allowed: t("Approved") };
  const word = answer?.arguments ? t("Approved with changes") : answer?.reason === "always" && answer.allowed ? t("Always allowed in this conversation") : names[status] ?? status;
  return [
    h("p", { class: "settled" }, icon(status === "allowed" ? "check" : "cross"), h("span", { class: "outcome" }, `${word} – ${tool}`)),
    reason ? h("p", { class: "settled-reason" }, h("span", {}, t("Reason:")), ` ${reason}`) : "",
    answer?.arguments ? changeList(given, answer.arguments) : "",
  ];
}

function ignoreHeldKeys(event) {
  if (event.repeat && event.target.tagName === "BUTTON") event.preventDefault();
}

function button(className, label, onclick) {
  return h("button", { type: "button", class: className, onclick }, label);
}

function row(name, value) {
  return value ? [h("dt", {}, name), h("dd", {}, value)] : [];
}
