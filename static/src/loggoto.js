// Going to a place of the log that is not loaded: by the rail beside it, by line, by time, by percent.
import { serverNow } from "./times.js";
import { word } from "./words.js";

const RAIL = 1000; // steps of the rail
const TIME = /^(?:(\d{4})-(\d\d)-(\d\d)[ T])?(\d{1,2}):(\d\d)(?::(\d\d))?$/;
const DAY = 86400000;

export class LogGoto {
  #dragged = null;

  /** `view`: the log's, with `place`, `head`, `state` and `jump(offset)`. */
  constructor(url, view) {
    Object.assign(this, { url, view });
    this.part = (name) => document.getElementById(`log-${name}`);
    this.rail = this.part("rail");
    this.rail.max = RAIL;
    this.rail.addEventListener("input", () => this.#drag());
    this.part("goto").addEventListener("submit", (event) => { event.preventDefault(); this.#go(this.part("place").value.trim()); });
    this.part("place").addEventListener("input", () => this.#say(""));
    this.part("place").addEventListener("keydown", (event) => { if (event.key === "Escape") this.part("rows").focus(); });
  }

  focus() {
    this.part("place").focus();
    this.part("place").select();
  }

  /** What is in sight is another part. */
  moved() {
    const { place } = this.view;
    this.rail.hidden = !place || place.isWhole;
    if (!place || this.#dragged) return;
    this.rail.value = Math.round((RAIL * place.offset) / place.end);
    this.rail.setAttribute("aria-valuetext", `${Math.round((100 * place.offset) / place.end)} %`);
  }

  #drag() {
    clearTimeout(this.#dragged);
    this.#dragged = setTimeout(() => {
      this.#dragged = null;
      const { place } = this.view;
      const share = Number(this.rail.value) / RAIL;
      if (share === 1) this.view.toEnd();
      else if (place) this.view.jump(Math.floor(place.end * share));
    }, 120);
  }

  #go(text) {
    const time = TIME.exec(text);
    if (/^\d[\d,.\s]*%$/.test(text)) this.#toShare(parseFloat(text) / 100);
    else if (time) this.toTime(this.#seconds(time));
    else if (/^[\d,.\s]+$/.test(text)) this.#find(`line=${text.replace(/\D/g, "")}`, word("no such line"));
    else if (text) this.#say(word("what place"));
  }

  #toShare(share) {
    const { place } = this.view;
    if (place) this.view.jump(Math.floor(Math.min(share, 1) * Math.max(place.end - 1, 0)));
  }

  toTime(seconds) {
    this.#find(`time=${seconds}`, word("no times"));
  }

  /** A time of day is of the last day of the job on which it had come. */
  #seconds([, year, month, day, hour, minute, second = 0]) {
    if (year) return new Date(year, month - 1, day, hour, minute, second).getTime() / 1000;
    const last = this.view.state.ended_at ? Date.parse(this.view.state.ended_at) : serverNow();
    const at = new Date(last);
    at.setHours(hour, minute, second, 0);
    return (at.getTime() > last ? at.getTime() - DAY : at.getTime()) / 1000;
  }

  async #find(asked, otherwise) {
    const { place } = this.view;
    if (!place) return;
    const answer = await fetch(`${this.url}log/find?run=${place.run}&${asked}`, { headers: { Accept: "application/json" } }).catch(() => null);
    const found = answer?.ok && !answer.redirected ? await answer.json() : null;
    this.#say(found && found.offset !== null ? "" : otherwise);
    if (found && found.offset !== null) {
      this.view.jump(found.offset);
      this.part("rows").focus({ preventScroll: true });
    }
  }

  #say(sentence) {
    this.part("place-said").textContent = sentence;
    this.part("place").classList.toggle("is-invalid", Boolean(sentence));
  }
}
