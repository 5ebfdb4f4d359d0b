// The part of a log that is loaded: a stretch of bytes as lines, which grows at both ends and is let go at the far one.
import { LogStream, cleanStart } from "./logstream.js";
import { Screen } from "./screen.js";

const TAIL = 256 * 1024; // what is loaded at first
const PIECE = 256 * 1024; // what is loaded more at either end
const MOST_BYTES = 6 * 1024 * 1024; // of the log, loaded at once
const MOST_LINES = 40000;
const FEW_LINES = 2000; // so many stay, however many bytes they took
const BEHIND = 4 * 1024 * 1024; // a reader of the end who is further behind goes on there, not here

export class LogReader {
  #stream = null; // takes what comes live; null while the end of the log is not what is loaded
  #loading = null;
  #opened = null; // {run, generation} of the screen

  /** `url` ends in a slash. `on`: {above(change), appended(offset), opened(screen), attach({run, generation, offset})}. */
  constructor(url, on) {
    this.url = url;
    this.on = on;
    this.screen = null;
    this.head = null; // {run, generation, end, complete, …} as the server tells
  }

  /** Whether what comes next is shown as it comes. */
  get isAttached() {
    return this.#stream !== null;
  }

  get isLoading() {
    return this.#loading !== null;
  }

  /** Whether anything of the log that `head` tells of is loaded. */
  get isOpen() {
    return this.#opened?.run === this.head.run && this.#opened.generation === this.head.generation;
  }

  get atStart() {
    return this.screen?.start === 0;
  }

  /** How far the log is read; where to go on after a cut line. */
  get position() {
    return this.#stream && { run: this.head.run, generation: this.head.generation, offset: this.#stream.next };
  }

  /** The log ends further on now. */
  grown(head, isFollowed) {
    this.head = head;
    if (isFollowed && this.#stream && head.end - this.#stream.next > BEHIND && !this.#loading) this.openEnd();
  }

  openEnd() {
    return this.#open(Math.max(0, this.head.end - TAIL), this.head.end, true);
  }

  /** Load what is around an offset; the index of the line it lies in, or null when something else was opened since. */
  async openAt(offset) {
    const start = Math.max(0, offset - PIECE / 2);
    const screen = await this.#open(start, start + PIECE);
    return screen ? this.lineAt(offset) : null;
  }

  /** The index of the loaded line that holds an offset; null when it is not loaded. */
  lineAt(offset) {
    const { lines, start, end } = this.screen;
    if (offset < start || offset > end) return null;
    let [low, high] = [0, lines.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (lines[middle].at <= offset) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  async #open(start, end, isLive = false) {
    const { run, generation } = this.head;
    const token = (this.#loading = {});
    this.#stream = null;
    const piece = await this.#range(start, end);
    if (token !== this.#loading) return null;
    this.#loading = null;
    if (!piece || piece.generation !== generation || run !== this.head.run) return null;
    const skip = piece.offset ? cleanStart(piece.data) : 0;
    this.screen = new Screen(piece.offset + skip);
    this.screen.feed(piece.data.subarray(skip));
    this.#opened = { run, generation };
    this.on.opened(this.screen);
    this.#attach(isLive);
    return this.screen;
  }

  /** Go on live when the end of the log is loaded, or what came since it was asked for is all that lacks. */
  #attach(isLive = false) {
    if (this.#stream || (!isLive && this.screen.end < this.head.end)) return;
    const { run, generation } = this.head;
    this.#stream = new LogStream(run, generation, this.screen.end, (data) => this.#append(data));
    this.on.attach(this.position);
  }

  /** A piece that came live. False: ask again from `position`. */
  take(piece) {
    return this.#stream ? this.#stream.take(piece) : true;
  }

  #append(data) {
    this.screen.feed(data);
    this.on.appended(this.screen.end);
  }

  /** Stay within bounds. With `keepsEnd`, by letting go of what is above; else what comes live waits. */
  trim(keepsEnd) {
    const { lines, start, end } = this.screen;
    if (lines.length < FEW_LINES || (lines.length < MOST_LINES * 1.2 && end - start < MOST_BYTES * 1.2)) return;
    if (keepsEnd) this.#dropAbove();
    else this.#stream = null;
  }

  #dropAbove() {
    const { lines, end } = this.screen;
    let count = Math.max(0, lines.length - MOST_LINES);
    while (end - lines[count].at > MOST_BYTES && lines.length - count > FEW_LINES) count += 1;
    while (count && lines[count].isMore) count -= 1;
    if (count) this.on.above(() => this.screen.dropFirst(count));
  }

  #dropBelow() {
    const { lines, start } = this.screen;
    let count = Math.min(lines.length - 1, MOST_LINES);
    while (lines[count].at - start > MOST_BYTES && count > FEW_LINES) count -= 1;
    while (count && (lines[count].isMore || lines[count].at === lines[count - 1].at)) count -= 1;
    if (count < FEW_LINES || count >= lines.length - 1) return;
    this.#stream = null;
    this.screen.dropLast(count);
  }

  /** Load some more above. True when something was. */
  async earlier() {
    const { screen } = this;
    if (!screen?.start) return false;
    const from = Math.max(0, screen.start - PIECE);
    const piece = await this.#load(from, screen.start);
    if (!piece) return false;
    const skip = piece.offset ? Math.min(cleanStart(piece.data), piece.data.length - 1) : 0;
    const above = new Screen(piece.offset + skip);
    above.feed(piece.data.subarray(skip));
    this.on.above(() => screen.prepend(above));
    this.#dropBelow();
    return true;
  }

  /** Load some more below. True when something was. */
  async later() {
    const { screen } = this;
    if (!screen || this.#stream) return false;
    const piece = screen.end < this.head.end ? await this.#load(screen.end, screen.end + PIECE) : null;
    if (piece) {
      screen.feed(piece.data);
      this.on.appended(null);
      this.#dropAbove();
    }
    if (screen === this.screen && !this.#loading) this.#attach();
    return Boolean(piece);
  }

  /** Without a socket: what has come since. */
  async poll() {
    if (!this.#stream || this.#loading || this.#stream.next >= this.head.end) return;
    const stream = this.#stream;
    const piece = await this.#range(stream.next, stream.next + PIECE);
    if (piece && stream === this.#stream) stream.take(piece);
  }

  /** A range for what is loaded now; null when another load is on its way, or something else was opened meanwhile. */
  async #load(start, end) {
    if (this.#loading) return null;
    const { screen, head } = this;
    const token = (this.#loading = {});
    const piece = await this.#range(start, end);
    if (token !== this.#loading) return null;
    this.#loading = null;
    return piece?.data.length && screen === this.screen && piece.generation === head.generation ? piece : null;
  }

  async #range(start, end) {
    const { run } = this.head;
    const answer = await fetch(`${this.url}log?run=${run}&start=${start}&end=${end}`, { headers: { Accept: "application/octet-stream" } }).catch(() => null);
    if (!answer?.ok || answer.redirected) return null;
    const number = (name) => Number(answer.headers.get(name));
    const data = new Uint8Array(await answer.arrayBuffer().catch(() => new ArrayBuffer(0)));
    return { run, generation: number("X-Log-Generation"), offset: number("X-Log-Start"), data };
  }
}
