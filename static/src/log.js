// The log of a job: opens at its tail at once, follows live, pages back by byte ranges.
import { LogStream, cleanStart, readFrame } from "./logstream.js";
import { LogTerminal } from "./terminal.js";
import { word } from "./words.js";

const TAIL = 512 * 1024; // what is loaded at first
const PAGE = 1024 * 1024; // what one step back or forth shows
const OVERLAP = 16 * 1024; // of the page before, so that the eye finds its place
const PENDING = 512 * 1024; // written to the terminal and not yet drawn: more waits

const EXPIRED = "EXPIRED"; // the hole that is a whole log, kept no longer

export class LogView {
  #terminal;
  #stream = null;
  #head = null; // {run, generation, end, complete, dropped, holes}
  #page = null; // {start, end} while reading earlier output; then nothing is followed
  #follows = true;
  #first = true;
  #pending = 0;
  #fetching = false;
  #chosen = null;

  /** `say(message)` sends to the socket; `jobUrl` ends in a slash. */
  constructor(jobUrl, say) {
    this.jobUrl = jobUrl;
    this.say = say;
    this.state = {};
    this.part = (name) => document.getElementById(`log-${name}`);
    this.#terminal = new LogTerminal(document.getElementById("terminal"), {
      scrolled: (atEnd) => this.#scrolled(atEnd),
      matches: (found) => this.#matches(found),
    });
    this.#buttons();
  }

  /** The run to show, as `status.log` has it; the newest unless the reader chose another. */
  setHead(head) {
    if (!head || (this.#chosen && head.run !== this.#chosen)) return this.#empty();
    const other = !this.#head || head.run !== this.#head.run || head.generation > this.#head.generation;
    const stale = this.#head && !this.#chosen && (head.run < this.#head.run || (head.run === this.#head.run && head.generation < this.#head.generation));
    if (stale) return;
    this.#head = head;
    if (other) this.#open();
    this.#show();
  }

  /** A frame of the socket. */
  frame(buffer) {
    const piece = readFrame(buffer);
    if (this.#stream && !this.#page && !this.#stream.take(piece)) this.resume();
  }

  /** Ask the socket to go on where we are. */
  resume() {
    if (this.#stream && !this.#page) this.say({ follow: { run: this.#stream.run, generation: this.#stream.generation, offset: this.#stream.next } });
  }

  /** Without a socket: fetch what has come since. */
  async poll() {
    if (!this.#stream || this.#page || this.#fetching || this.#stream.next >= this.#head.end || this.#pending > PENDING) return;
    const stream = this.#stream;
    const piece = await this.#range(stream.run, stream.next, stream.next + PENDING);
    if (piece && stream === this.#stream) stream.take(piece);
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
    this.#terminal.fit();
  }

  // --- reading ---

  #open(start = Math.max(0, this.#head.end - TAIL)) {
    this.#page = null;
    this.#begin(start);
    this.resume();
  }

  /** Clear, and take bytes from `start` on. */
  #begin(start) {
    this.#terminal.clear();
    this.#pending = 0;
    let whole = start === 0;
    const stream = new LogStream(this.#head.run, this.#head.generation, start, (data) => {
      const skip = whole ? 0 : cleanStart(data);
      whole = true;
      this.#write(stream, skip ? data.subarray(skip) : data);
    });
    this.#stream = stream;
    this.#first = true;
  }

  #write(stream, data) {
    const upTo = stream.next;
    this.#pending += data.length;
    this.#terminal.write(data, () => {
      if (stream !== this.#stream) return;
      this.#pending -= data.length;
      if (this.#first || this.#follows) this.#terminal.toEnd();
      this.#first = false;
      if (!this.#page) this.say({ ack: upTo });
    });
    this.#show();
  }

  async #range(run, start, end) {
    this.#fetching = true;
    try {
      const answer = await fetch(`${this.jobUrl}log?run=${run}&start=${start}&end=${end}`, { headers: { Accept: "application/octet-stream" } });
      if (!answer.ok || answer.redirected) return null;
      const data = new Uint8Array(await answer.arrayBuffer());
      const offset = Number(answer.headers.get("X-Log-Start"));
      return { run, generation: Number(answer.headers.get("X-Log-Generation")), offset, data };
    } catch {
      return null;
    } finally {
      this.#fetching = false;
    }
  }

  /** Show [start, end) from its top or its bottom on, and follow nothing. */
  async #showPage(start, end, { atEnd = false } = {}) {
    if (this.#fetching) return;
    this.#setFollow(false);
    this.#page = { start, end };
    this.#begin(start);
    const stream = this.#stream;
    this.#first = false;
    while (stream === this.#stream && stream.next < end) {
      const piece = await this.#range(stream.run, stream.next, Math.min(stream.next + PAGE, end));
      if (!piece || !piece.data.length || !stream.take(piece) || piece.generation !== stream.generation) break;
    }
    if (stream === this.#stream) this.#terminal.write("", () => (atEnd ? this.#terminal.toEnd() : this.#terminal.toTop()));
    this.#show();
  }

  #earlier() {
    const { start } = this.#stream;
    this.#showPage(Math.max(0, start - PAGE), Math.min(start + OVERLAP, this.#head.end), { atEnd: true });
  }

  #later() {
    const { end } = this.#page;
    if (end + PAGE >= this.#head.end) this.#live();
    else this.#showPage(Math.max(0, end - OVERLAP), end + PAGE);
  }

  #live() {
    this.#setFollow(true);
    if (this.#page) this.#open();
    else this.#terminal.toEnd();
    this.#show();
  }

  // --- what is around the terminal ---

  #scrolled(atEnd) {
    if (this.#page || this.#first) return;
    if (atEnd !== this.#follows) this.#setFollow(atEnd);
  }

  #setFollow(on) {
    this.#follows = on;
    const button = this.part("follow");
    button.setAttribute("aria-pressed", String(on));
    button.querySelector(".log-follow-word").textContent = word(on ? "following" : "paused");
  }

  #show() {
    const head = this.#head;
    if (!head || !this.#stream) return;
    this.part("size").textContent = word("log size", { size: size(head.end) });
    const { start } = this.#stream;
    this.part("earlier-bar").hidden = start === 0 && !this.#page;
    this.part("earlier").hidden = start === 0;
    this.part("earlier").textContent = word("earlier", { size: size(start) });
    this.part("later").hidden = !this.#page;
    this.part("range").textContent = this.#page ? word("shown", { start: start.toLocaleString(), end: this.#page.end.toLocaleString(), all: head.end.toLocaleString() }) : "";
    const lost = [];
    if (head.dropped) lost.push(this.part("lost").dataset.dropped.replace("{size}", size(head.dropped)));
    if (head.holes?.length && !isExpired(head)) lost.push(this.part("lost").dataset.holes);
    this.part("lost").hidden = !lost.length;
    this.part("lost").textContent = lost.join(" ");
    this.part("follow").hidden = head.complete && !this.#page; // nothing more comes
    this.part("download").href = `${this.jobUrl}log/download?run=${head.run}`;
    this.#empty();
  }

  #empty() {
    const empty = this.part("empty");
    empty.hidden = Boolean(this.#head?.end);
    if (!this.#head) empty.textContent = word(this.state.is_ended ? "log none" : "log waiting");
    else if (isExpired(this.#head)) empty.textContent = word("log expired");
    else empty.textContent = word(this.#head.complete || this.state.is_ended ? "log none" : "log empty");
  }

  #matches({ index, count }) {
    const query = this.part("query").value;
    this.part("matches").textContent = !query ? "" : count ? word("matches", { index: index || 1, count }) : word("no match");
  }

  #find(backwards) {
    const query = this.part("query").value;
    if (query) this.#setFollow(false);
    if (!this.#terminal.find(query, backwards)) this.#matches({ index: 0, count: 0 });
    if (!query) this.part("matches").textContent = "";
  }

  #buttons() {
    const click = (name, act) => this.part(name).addEventListener("click", act);
    click("follow", () => (this.#follows && !this.#page ? this.#setFollow(false) : this.#live()));
    click("top", () => (this.#stream?.start ? this.#showPage(0, Math.min(this.#head.end, PAGE)) : (this.#setFollow(false), this.#terminal.toTop())));
    click("end", () => this.#live());
    click("earlier", () => this.#earlier());
    click("later", () => this.#later());
    click("previous", () => this.#find(true));
    click("wrap", () => this.#toggle("wrap", (on) => (this.#terminal.wraps = on)));
    click("reader", () => this.#toggle("reader", (on) => (this.#terminal.readAloud = on)));
    click("copy", () => this.#copy());
    this.part("search").addEventListener("submit", (event) => { event.preventDefault(); this.#find(false); });
    this.part("query").addEventListener("input", () => this.#find(false));
    this.part("query").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); this.#find(true); }
      if (event.key === "Escape") { this.part("query").value = ""; this.#find(false); }
    });
    document.getElementById("log").addEventListener("keydown", (event) => {
      if (event.key === "f" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.part("query").focus(); }
    });
    document.getElementById("log").addEventListener("change", (event) => { if (event.target.id === "log-run") this.#chooseRun(Number(event.target.value)); });
  }

  async #chooseRun(run) {
    this.#chosen = run;
    const piece = await fetch(`${this.jobUrl}log?run=${run}&start=0&end=0`);
    if (!piece.ok || run !== this.#chosen) return;
    this.#head = null;
    this.#setFollow(true);
    const number = (name) => Number(piece.headers.get(name));
    const holes = piece.headers.get("X-Log-Expired") === "true" ? [{ reason: EXPIRED }] : [];
    this.setHead({ run, generation: number("X-Log-Generation"), end: number("X-Log-Size"), complete: piece.headers.get("X-Log-Complete") === "true", holes });
  }

  #toggle(name, set) {
    const on = this.part(name).getAttribute("aria-pressed") !== "true";
    this.part(name).setAttribute("aria-pressed", String(on));
    set(on);
  }

  async #copy() {
    const said = await navigator.clipboard.writeText(this.#terminal.text()).then(() => word("copied"), () => word("could not copy"));
    document.getElementById("announcer").textContent = said;
    const icon = this.part("copy").querySelector(".bi");
    icon.className = said === word("copied") ? "bi bi-check-lg" : "bi bi-x-lg";
    setTimeout(() => (icon.className = "bi bi-clipboard"), 1500);
  }
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
