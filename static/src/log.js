// The log of a job: opens at its tail at once, follows live, and scrolls through all of it by byte ranges.
import { isGoing } from "./keys.js";
import { LogGoto } from "./loggoto.js";
import { LogLink } from "./loglink.js";
import { LogNotes } from "./lognotes.js";
import { LogReader } from "./logreader.js";
import { LogSearch } from "./logsearch.js";
import { readFrame } from "./logstream.js";
import { Rows } from "./rows.js";
import { exactly } from "./times.js";
import { word } from "./words.js";

const EXPIRED = "EXPIRED"; // the hole that is a whole log, kept no longer
const NOTES_APART = 1000; // milliseconds between two looks for times of what has come
const ACKNOWLEDGED_AFTER = 100;
const ALOUD_APART = 1500;
const NEAR = 2; // pages from an end of what is loaded: load more
const MARGINS = ["time", "number", "stream"];
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export class LogView {
  #reader;
  #rows;
  #notes;
  #search;
  #goto;
  #link;
  #head = null; // {run, generation, end, complete, dropped, holes}
  #follows = true;
  #top = 0; // where the reader had scrolled to
  #chosen = null;
  #acknowledged = null; // to be told once drawn
  #notedAt = 0;
  #noteLater = null; // a look that came too soon after another
  #aloud = { on: false, at: 0, from: 0 };

  /** `say(message)` sends to the socket; `jobUrl` ends in a slash. */
  constructor(jobUrl, say) {
    this.jobUrl = jobUrl;
    this.say = say;
    this.state = {};
    this.part = (name) => document.getElementById(`log-${name}`);
    const scroller = this.part("rows");
    this.#notes = new LogNotes(jobUrl);
    this.#rows = new Rows(scroller, { sticks: () => this.#follows && this.#reader.isAttached, drawn: () => this.#drawn(), scrolled: (byReader) => this.#scrolled(byReader) }, (line) => this.#notesOf(line));
    this.#reader = new LogReader(jobUrl, {
      above: (change) => this.#rows.changeAbove(change),
      appended: (offset) => this.#appended(offset),
      opened: (screen) => this.#opened(screen),
      attach: (follow) => this.say({ follow }),
    });
    this.#search = new LogSearch(jobUrl, () => this.#head?.run, {
      jump: (offset) => this.jump(offset),
      changed: () => this.#rows.redraw(),
    });
    this.#goto = new LogGoto(jobUrl, this);
    this.#buttons(scroller);
    this.#link = new LogLink(scroller, {
      lineOf: (element) => this.#rows.lineOf(element),
      timeOf: (line) => this.#notes.timeOf(line.at),
      point: (seconds) => this.#point(seconds),
      go: (seconds) => this.#goto.toTime(seconds),
      need: () => this.#note(),
    });
  }

  /** The run to show, as `status.log` has it; the newest unless the reader chose another. */
  setHead(head) {
    if (!head || (this.#chosen && head.run !== this.#chosen)) return this.#empty();
    const old = this.#head;
    const isStale = old && !this.#chosen && (head.run < old.run || (head.run === old.run && head.generation < old.generation));
    if (isStale) return;
    this.#head = head;
    this.#reader.grown(head, this.#follows);
    const isOther = !old || head.run !== old.run || head.generation > old.generation;
    if (isOther || (!this.#reader.isOpen && !this.#reader.isLoading)) this.#openEnd();
    this.#show();
  }

  /** A frame of the socket. */
  frame(buffer) {
    if (!this.#reader.take(readFrame(buffer))) this.resume();
  }

  /** Ask the socket to go on where we are. */
  resume() {
    if (this.#reader.position) this.say({ follow: this.#reader.position });
  }

  /** Without a socket: fetch what has come since. */
  async poll() {
    await this.#reader.poll();
  }

  /** The chooser has been made anew: let it name the run that is shown. */
  runsChanged() {
    const shown = this.#chosen ?? this.#head?.run;
    if (shown) this.part("run").value = String(shown);
  }

  setState(state) {
    this.state = state;
    this.#empty();
    this.#show();
  }

  fit() {
    this.#rows.fit();
  }

  /** Show the line that an offset lies in. */
  async jump(offset) {
    this.#setFollow(false);
    const loaded = this.#reader.screen && this.#reader.lineAt(offset);
    const index = loaded ?? (await this.#reader.openAt(offset));
    if (index === null) return;
    this.#rows.reveal(index);
    this.#more();
  }

  async toTop() {
    this.#setFollow(false);
    if (!this.#reader.atStart) await this.#reader.openAt(0);
    this.#rows.toTop();
  }

  toEnd() {
    this.#setFollow(true);
    if (this.#reader.isAttached) this.#rows.later();
    else this.#openEnd();
  }

  // --- what is loaded ---

  #openEnd() {
    this.#setFollow(this.#follows);
    this.#reader.openEnd();
  }

  #opened(screen) {
    this.#notes.clear();
    this.#rows.show(screen);
    this.#aloud.from = screen.end;
    this.#show();
  }

  #appended(offset) {
    this.#acknowledged = offset ?? this.#acknowledged;
    this.#rows.later();
    setTimeout(() => this.#acknowledge(), ACKNOWLEDGED_AFTER); // a tab that is not in sight draws nothing
    this.#readAloud();
  }

  #drawn() {
    this.#acknowledge();
    this.#note();
  }

  #acknowledge() {
    if (this.#acknowledged === null) return;
    this.say({ ack: this.#acknowledged });
    this.#acknowledged = null;
    this.#reader.trim(this.#follows);
    this.#show();
  }

  #scrolled(byReader) {
    const { scrollTop } = this.part("rows");
    const up = scrollTop < this.#top;
    this.#top = scrollTop;
    if (byReader && this.#follows && up && !this.#rows.atEnd) this.#setFollow(false);
    else if (byReader && !this.#follows && !up && this.#rows.atEnd && this.#reader.isAttached) this.#setFollow(true);
    this.#more();
    this.#goto.moved();
  }

  /** Load more when the reader comes near an end of what is loaded. */
  async #more() {
    const { above, below, page } = this.#rows.spare;
    let came = false;
    if (above < NEAR * page && !this.#reader.atStart && !this.#follows) came = await this.#reader.earlier();
    else if (below < NEAR * page && !this.#reader.isAttached) came = await this.#reader.later();
    if (came) this.#more();
    this.#rows.later();
    this.#show();
  }

  // --- times, numbers and streams ---

  #showsNotes() {
    return MARGINS.some((name) => this.#rows.margin[name]);
  }

  async #note() {
    if (!(this.#showsNotes() || this.#link.isOn) || !this.#reader.screen) return;
    const wait = this.#notedAt + NOTES_APART - Date.now();
    if (wait > 0) { this.#noteLater ??= setTimeout(() => { this.#noteLater = null; this.#note(); }, wait); return; }
    this.#notedAt = Date.now();
    const { start, end } = this.#reader.screen;
    if (await this.#notes.cover(this.#head.run, start, end)) {
      if (this.#showsNotes()) this.#rows.redraw();
      this.#link.renew();
      setTimeout(() => this.#note(), NOTES_APART); // the other end, and what came meanwhile
    }
    this.part("no-times").hidden = !this.#rows.margin.time || this.#notes.known;
  }

  #notesOf(line) {
    const { screen } = this.#reader;
    const found = {};
    if (this.#search?.hits.length) found.hits = this.#search.hitsOf(line, endOf(screen, line));
    if (!this.#showsNotes()) return found;
    const time = this.#notes.timeOf(line.at);
    found.time = time === null ? "" : clock.format(time * 1000);
    found.when = time === null ? "" : exactly(time * 1000);
    found.isError = this.#rows.margin.stream && this.#notes.isError(line.at);
    const first = this.#notes.firstLine;
    const base = first && this.#reader.lineAt(first.at);
    if (first && base !== null) found.number = (first.line + line.n - screen.lines[base].n + 1).toLocaleString();
    return found;
  }

  /** Mark the line of a time, if it is in sight. */
  #point(seconds) {
    const offset = seconds === null ? null : this.#notes.offsetAt(seconds);
    const index = offset === null || !this.#reader.screen ? null : this.#reader.lineAt(offset);
    this.#rows.point(index === null ? null : this.#reader.screen.lines[index]);
  }

  // --- what is around the rows ---

  #setFollow(on) {
    this.#follows = on;
    const button = this.part("follow");
    button.setAttribute("aria-pressed", String(on));
    button.querySelector(".log-follow-word").textContent = word(on ? "following" : "paused");
    button.hidden = Boolean(this.#head?.complete) && on;
  }

  #show() {
    const head = this.#head;
    if (!head) return;
    this.part("size").textContent = size(head.end);
    const lost = [];
    if (head.dropped) lost.push(this.part("lost").dataset.dropped.replace("{size}", size(head.dropped)));
    if (head.holes?.length && !isExpired(head)) lost.push(this.part("lost").dataset.holes);
    this.part("lost").hidden = !lost.length;
    this.part("lost").textContent = lost.join(" ");
    this.part("follow").hidden = head.complete && this.#follows; // nothing more comes
    this.#links(head);
    this.#goto.moved();
    this.#empty();
  }

  #links(head) {
    const { start, end } = this.#reader.screen ?? { start: 0, end: 0 };
    const address = (more) => `${this.jobUrl}log/download?run=${head.run}${more}`;
    this.part("download").href = address("");
    this.part("download-gz").href = address("&format=gz");
    this.part("download-part").href = address(`&start=${start}&end=${end}`);
  }

  #empty() {
    const empty = this.part("empty");
    empty.hidden = Boolean(this.#head?.end);
    if (!this.#head) empty.textContent = word(this.state.is_ended ? "log none" : "log waiting");
    else if (isExpired(this.#head)) empty.textContent = word("log expired");
    else empty.textContent = word(this.#head.complete || this.state.is_ended ? "log none" : "log empty");
  }

  #readAloud() {
    const { screen } = this.#reader;
    if (!this.#aloud.on || Date.now() - this.#aloud.at < ALOUD_APART) return;
    const fresh = screen.lines.slice(Math.max(this.#reader.lineAt(this.#aloud.from) ?? 0, screen.lines.length - 6));
    Object.assign(this.#aloud, { at: Date.now(), from: screen.end });
    this.part("aloud").textContent = fresh.map((line) => line.text).join("\n");
  }

  #buttons(scroller) {
    const click = (name, act) => this.part(name).addEventListener("click", act);
    click("follow", () => (this.#follows ? this.#setFollow(false) : this.toEnd()));
    click("top", () => this.toTop());
    click("end", () => this.toEnd());
    click("wrap", () => this.#toggle("wrap", (on) => (this.#rows.wraps = on)));
    click("full", () => this.#toggle("full", (on) => this.#setFull(on)));
    click("reader", () => this.#toggle("reader", (on) => (this.#aloud.on = on)));
    for (const name of MARGINS) click(name, () => this.#toggle(name, (on) => this.#setMargin(name, on)));
    click("copy", () => this.#copy());
    this.part("copy").addEventListener("mousedown", (event) => event.preventDefault()); // what is selected stays so
    document.addEventListener("keydown", (event) => this.#key(event, scroller), { capture: true }); // before the page's own
    document.getElementById("log").addEventListener("change", (event) => { if (event.target.id === "log-run") this.#chooseRun(Number(event.target.value)); });
  }

  #setMargin(name, on) {
    this.#rows.setMargin(name, on);
    this.#notedAt = 0;
    this.#note();
    if (name === "time" && !on) this.part("no-times").hidden = true;
  }

  #setFull(on) {
    document.getElementById("log").classList.toggle("is-full", on);
    document.body.classList.toggle("has-full-log", on);
    this.fit();
  }

  #isOn(name) {
    return this.part(name).getAttribute("aria-pressed") === "true";
  }

  /** Keys of the log: with the log in hand, or nothing. Those that scroll are the browser's. */
  #key(event, scroller) {
    const inLog = event.target.closest?.("#log");
    if (event.defaultPrevented || event.altKey || isGoing() || !document.getElementById("pane-log").classList.contains("active")) return;
    if (!inLog && event.target !== document.body) return;
    if (inLog && event.key === "f" && (event.ctrlKey || event.metaKey)) return this.#obey(event, () => this.#search.focus());
    if (event.ctrlKey || event.metaKey) return undefined;
    if (event.key === "Escape" && this.#isOn("full")) return this.#obey(event, () => this.part("full").click());
    if (event.target.closest?.("input, select, textarea, .modal, .dropdown-menu")) return undefined;
    const buttons = { f: "follow", w: "wrap", z: "full", t: "time", l: "number", e: "stream", y: "copy" };
    if (event.key in buttons) return this.#obey(event, () => this.part(buttons[event.key]).click());
    const acts = {
      n: () => this.#search.step(1), N: () => this.#search.step(-1), ":": () => this.#goto.focus(),
      ...(event.target === scroller ? { "/": () => this.#search.focus(), Home: () => this.toTop(), End: () => this.toEnd() } : {}),
    };
    return event.key in acts ? this.#obey(event, acts[event.key]) : undefined;
  }

  #obey(event, act) {
    event.preventDefault();
    act();
  }

  async #chooseRun(run) {
    this.#chosen = run;
    const piece = await fetch(`${this.jobUrl}log?run=${run}&start=0&end=0`);
    if (!piece.ok || run !== this.#chosen) return;
    this.#head = null;
    this.#setFollow(true);
    const number = (name) => Number(piece.headers.get(name));
    const holes = piece.headers.get("X-Log-Expired") === "true" ? [{ reason: EXPIRED }] : [];
    this.#search.close();
    this.setHead({ run, generation: number("X-Log-Generation"), end: number("X-Log-Size"), complete: piece.headers.get("X-Log-Complete") === "true", holes });
  }

  #toggle(name, set) {
    const on = !this.#isOn(name);
    this.part(name).setAttribute("aria-pressed", String(on));
    set(on);
  }

  async #copy() {
    if (!this.#reader.screen) return;
    const text = this.#rows.selected() || this.#rows.text();
    const said = await navigator.clipboard.writeText(text).then(() => word("copied"), () => word("could not copy"));
    document.getElementById("announcer").textContent = said;
    const icon = this.part("copy").querySelector(".bi");
    icon.className = said === word("copied") ? "bi bi-check-lg" : "bi bi-x-lg";
    setTimeout(() => (icon.className = "bi bi-clipboard"), 1500);
  }

  /** Where what is in sight lies: {offset, run, end}. */
  get place() {
    const { screen } = this.#reader;
    return screen && this.#head && { offset: screen.lines[this.#rows.first].at, run: this.#head.run, end: this.#head.end, isWhole: screen.start === 0 && screen.end >= this.#head.end };
  }
}

/** The offset behind a line. */
function endOf(screen, line) {
  const index = screen.lines.indexOf(line);
  return screen.lines[index + 1]?.at ?? screen.end + 1;
}

function isExpired(head) {
  return Boolean(head.holes?.some((hole) => hole.reason === EXPIRED));
}

/** Bytes in the nearest binary unit. */
export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let value = bytes;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${at ? value.toFixed(1).replace(/\.0$/, "") : value} ${units[at]}`;
}
