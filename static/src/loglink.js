// The tie between the log and the charts: what is pointed at in one is marked in the other, a click goes there.
import Tab from "bootstrap/js/dist/tab.js";

const APART = 100; // milliseconds between two words of where the pointer is
const LASTS = 3000; // for which the log's times are asked for, after the last word

/** Whether there is a chart in sight beside the log. */
const hasCharts = () => Boolean(document.getElementById("charts")?.offsetParent || document.querySelector("#metrics:not([hidden])"));

export class LogLink {
  #at = null; // what the charts point at, seconds since 1970
  #toldAt = 0;
  #until = 0;
  #line = null; // the line that the pointer is on

  /** `log`: lineOf(element), timeOf(line), point(seconds or null), go(seconds), and need(): times are wanted. */
  constructor(scroller, log) {
    this.log = log;
    scroller.addEventListener("pointermove", (event) => this.#hover(event.target));
    scroller.addEventListener("pointerleave", () => this.#leave());
    scroller.addEventListener("click", (event) => event.target.closest(".log-note-time") && this.#tell(this.log.lineOf(event.target), true));
    document.addEventListener("dockyard:time", ({ detail }) => detail.source !== "log" && this.#hear(detail));
  }

  /** Whether the log's times are wanted, though they may not be shown. */
  get isOn() {
    return Date.now() < this.#until;
  }

  /** Times have come: what waited for them is marked now. */
  renew() {
    if (this.#at !== null) this.log.point(this.#at);
    if (this.#line) this.#tell(this.#line, false);
  }

  #hear({ at, go }) {
    if (go && at !== null) {
      Tab.getOrCreateInstance(document.getElementById("tab-log")).show();
      this.log.go(at);
      return;
    }
    this.#at = at;
    this.log.point(at);
    if (at !== null) this.#want();
  }

  #want() {
    this.#until = Date.now() + LASTS;
    this.log.need();
  }

  #hover(element) {
    if (Date.now() - this.#toldAt < APART || !hasCharts()) return;
    this.#toldAt = Date.now();
    this.#line = this.log.lineOf(element);
    if (!this.#line) return;
    this.#want();
    this.#tell(this.#line, false);
  }

  #leave() {
    this.#line = null;
    this.#send(null, false);
  }

  #tell(line, go) {
    const at = line && this.log.timeOf(line);
    if (at !== null) this.#send(at, go);
  }

  #send(at, go) {
    document.dispatchEvent(new CustomEvent("dockyard:time", { detail: { at, source: "log", go } }));
  }
}
