// How far a running step is: the last line of its own report, with a bar and the time left where it counts.
import { h } from "./dom.js";
import { t } from "./i18n.js";

const READ = 2000; // characters at the end of a report
const SHARE = /(\d+(?:\.\d+)?) ?%|(\d+(?:\.\d+)?)\/(\d+(?:\.\d+)?)/;
const CERTAIN = 2000; // milliseconds after which the speed is known

export class StepProgress {
  constructor() {
    this.text = h("span", {});
    this.bar = h("progress", { max: 1, hidden: true, "aria-label": t("Progress") });
    this.element = h("span", { class: "card-progress", hidden: true }, this.bar, this.text);
    this.began = null;
  }

  /** Show what the report that has been written so far ends with. */
  show(report) {
    const line = lastLine(report);
    this.element.hidden = !line;
    const found = SHARE.exec(line);
    const share = found ? Math.min(1, found[1] ? found[1] / 100 : found[2] / found[3]) : null;
    this.bar.hidden = !Number.isFinite(share) || share === null;
    if (!this.bar.hidden) this.bar.value = share;
    this.text.textContent = [line, this.bar.hidden ? "" : this.left(share)].filter(Boolean).join(" · ");
  }

  left(share) {
    const now = performance.now();
    this.began ??= { share, now };
    const done = share - this.began.share;
    if (done <= 0 || now - this.began.now < CERTAIN) return "";
    const seconds = Math.ceil(((1 - share) * (now - this.began.now)) / done / 1000);
    return seconds > 0 ? t("about {seconds} s left", { seconds }) : "";
  }
}

/** The last line after the arguments; of a line that grows (`… 10 % … 20 %`) its newest part. */
function lastLine(report) {
  const tail = report.slice(-READ);
  const own = tail.slice(tail.lastIndexOf("```") + (tail.includes("```") ? 3 : 0)).trimEnd();
  const line = own.slice(own.lastIndexOf("\n") + 1).split(" … ").at(-1);
  return line.startsWith("#") ? "" : line.replace(/^- |\*\*/g, "").trim();
}
