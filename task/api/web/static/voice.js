// Voice input: a recording that the agent's own deployment writes down, for the user to read before it is sent.
import * as api from "./api.js";
import { announce, icon } from "./dom.js";
import { t } from "./i18n.js";

const LONGEST = 300000; // milliseconds
const REASONS = {
  NotAllowedError: t("The browser does not allow this page to use the microphone. Allow it beside the page's address, and try again."),
  NotFoundError: t("There is no microphone. Connect one and try again."),
};

/** `button` starts and ends a recording; `write(text)` gets its words, `fail(message)` what went wrong. */
export class Voice {
  constructor(button, write, fail) {
    this.button = button;
    this.write = write;
    this.fail = fail;
    this.recorder = null;
  }

  async toggle() {
    if (this.recorder) {
      this.recorder.stop();
      return;
    }
    this.fail("");
    try {
      this.record(await navigator.mediaDevices.getUserMedia({ audio: true }));
    } catch (error) {
      this.fail(REASONS[error.name] ?? t("The microphone cannot be used: {reason}", { reason: error.message }));
    }
  }

  record(stream) {
    const pieces = [];
    this.recorder = new MediaRecorder(stream);
    this.recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
    this.recorder.addEventListener("stop", () => {
      clearTimeout(this.limit);
      stream.getTracks().forEach((track) => track.stop());
      this.finish(new Blob(pieces, { type: this.recorder.mimeType.split(";")[0] }));
    });
    this.recorder.start();
    this.limit = setTimeout(() => this.recorder?.stop(), LONGEST);
    this.show("stop", t("End the recording"), true);
    announce(t("Recording"));
  }

  async finish(recording) {
    this.recorder = null;
    this.button.disabled = true;
    this.show("mic", t("Speak a message"), false);
    try {
      const text = await api.transcribed(recording);
      if (text) this.write(text);
      else this.fail(t("Nothing was understood. Speak closer to the microphone, and try again."));
    } catch (error) {
      this.fail(error.message);
    }
    this.button.disabled = false;
  }

  show(name, label, isPressed) {
    this.button.replaceChildren(icon(name));
    this.button.title = label;
    this.button.setAttribute("aria-label", label);
    this.button.setAttribute("aria-pressed", String(isPressed));
  }
}
