// A window on a screen's lines: only the rows in sight are in the page. All rows are of one height, so that what is
// where is arithmetic; lines are broken into rows here, never by the browser.
import { pieces } from "./rowtext.js";
import { forgetLooks } from "./styles.js";
import { rowStarts } from "./widths.js";

const AROUND = 12; // rows kept ready above and below what is in sight

export class Rows {
  #tops = [0]; // rows before each line; one more than lines that are known
  #shown = new Map(); // "line.sub" to element
  #wraps = true;
  #frame = 0;
  #widest = 0;
  #own = -1; // where we have scrolled to, not the reader
  #pointed = null; // the line that the charts point at
  #row = 18; // pixels
  #cell = 8;

  /** `on`: {sticks() whether the end is to stay in sight, drawn(), scrolled(byReader)}. `notes(line)` gives {time, when, number, isError, hits} for the margin. */
  constructor(scroller, on, notes) {
    this.scroller = scroller;
    this.on = on;
    this.notes = notes;
    this.screen = null;
    this.marked = null; // the line that stands out
    this.body = scroller.querySelector(".log-body");
    this.margin = { time: false, number: false, stream: false };
    this.#measure();
    scroller.addEventListener("scroll", () => this.#scroll(), { passive: true });
    scroller.addEventListener("copy", (event) => this.#copy(event));
    new ResizeObserver(() => this.fit()).observe(scroller);
    document.addEventListener("dockyard:theme", () => (forgetLooks(), this.redraw()));
    document.fonts?.ready.then(() => this.fit());
  }

  get atEnd() {
    return this.scroller.scrollTop + this.scroller.clientHeight >= this.scroller.scrollHeight - this.#row;
  }

  /** How many pixels are above, and below, what is in sight. */
  get spare() {
    const { scrollTop, clientHeight } = this.scroller;
    return { above: scrollTop, below: this.#height() - scrollTop - clientHeight, page: clientHeight };
  }

  show(screen) {
    this.screen = screen;
    this.#tops = [0];
    this.#widest = 0;
    this.#clear();
    this.later();
  }

  set wraps(on) {
    this.#keepingPlace(() => {
      this.#wraps = on;
      this.scroller.classList.toggle("is-wide", !on);
      this.#tops = [0];
    });
    if (this.screen) this.redraw();
  }

  setMargin(name, on) {
    this.margin[name] = on;
    this.scroller.classList.toggle(`with-${name}`, on);
    this.fit();
    this.redraw();
  }

  /** Where a line's number may have changed, or its time: draw all that is in sight anew. */
  redraw() {
    this.#clear();
    this.later();
  }

  /** Draw before the next frame. */
  later() {
    this.#frame ||= requestAnimationFrame(() => this.draw());
  }

  fit() {
    const before = this.columns;
    this.#measure();
    if (!this.screen) return;
    if (before !== this.columns && this.#wraps) {
      this.#keepingPlace(() => (this.#tops = [0]));
      this.#clear();
    }
    this.later();
  }

  /** Change lines before the first that is in sight, without moving what is in sight. */
  #keepingPlace(change) {
    const place = this.screen && this.#place();
    change();
    if (place) this.#restore(place);
  }

  changeAbove(change) {
    this.#keepingPlace(() => {
      change();
      this.#tops = [0];
    });
    this.later();
  }

  #place() {
    const row = this.scroller.scrollTop / this.#row;
    const index = this.#lineAt(Math.floor(row));
    return { line: this.screen.lines[index], index, within: row - this.#tops[index] };
  }

  #restore({ line, within }) {
    const index = this.screen.lines.indexOf(line);
    this.#count();
    this.#size();
    this.#scrollTo((this.#tops[Math.max(index, 0)] + (index < 0 ? 0 : within)) * this.#row);
  }

  toTop() {
    this.#scrollTo(0);
  }

  #scrollTo(top) {
    this.scroller.scrollTop = top;
    this.#own = this.scroller.scrollTop;
  }

  /** Put a line a third below the top, and let it stand out. */
  reveal(index) {
    this.#count();
    this.#size();
    const old = this.marked;
    this.marked = this.screen.lines[index];
    this.#scrollTo(Math.max(0, this.#tops[index] * this.#row - this.scroller.clientHeight / 3));
    if (old) old.version += 1;
    this.marked.version += 1;
    this.later();
  }

  /** Let a line stand out while something points at it; null: none. Nothing is scrolled. */
  point(line) {
    if (line === this.#pointed) return;
    this.#pointed = line;
    for (const element of this.#shown.values()) element.classList.toggle("is-pointed", element.line === line);
  }

  /** The index of the first line in sight. */
  get first() {
    return this.screen ? this.#lineAt(Math.floor(this.scroller.scrollTop / this.#row)) : 0;
  }

  /** The line that an element of the page belongs to. */
  lineOf(element) {
    return element?.closest?.(".log-row")?.line ?? null;
  }

  // --- arithmetic ---

  #measure() {
    const probe = document.createElement("span");
    probe.className = "log-probe";
    probe.textContent = "0".repeat(100);
    this.scroller.append(probe);
    const box = probe.getBoundingClientRect();
    probe.remove();
    if (!box.width) return;
    this.#cell = box.width / 100;
    this.#row = Math.round(box.height) || 18;
    this.body.style.setProperty("--cell", `${this.#cell}px`);
    this.body.style.setProperty("--row", `${this.#row}px`);
    const margin = this.#marginColumns();
    this.columns = Math.max(20, Math.floor((this.scroller.clientWidth - 16) / this.#cell) - margin);
    this.body.style.setProperty("--margin", String(margin));
  }

  #marginColumns() {
    return (this.margin.time ? 10 : 0) + (this.margin.number ? 10 : 0) + (this.margin.stream ? 5 : 0);
  }

  #rowsOf(line) {
    if (!this.#wraps || line.cols <= this.columns) return 1;
    return line.isWide ? rowStarts(line.text, this.columns).length : Math.ceil(line.cols / this.columns);
  }

  /** Know the tops of all lines; those before the first that changed are known already. */
  #count() {
    const { lines } = this.screen;
    const from = Math.min(this.screen.changed, this.#tops.length - 1);
    this.#tops.length = Math.max(from, 0) + 1;
    for (let index = from; index < lines.length; index += 1) {
      this.#tops.push(this.#tops[index] + this.#rowsOf(lines[index]));
      if (lines[index].cols > this.#widest) this.#widest = lines[index].cols;
    }
    this.screen.changed = lines.length;
  }

  #lineAt(row) {
    let [low, high] = [0, this.#tops.length - 2];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#tops[middle] <= row) low = middle;
      else high = middle - 1;
    }
    return Math.max(low, 0);
  }

  #height() {
    return this.#tops[this.#tops.length - 1] * this.#row + 8;
  }

  #size() {
    this.body.style.height = `${this.#height()}px`;
    this.body.style.width = this.#wraps ? "" : `${Math.ceil((this.#widest + this.#marginColumns() + 3) * this.#cell)}px`;
  }

  // --- drawing ---

  #scroll() {
    this.later();
    this.on.scrolled(this.scroller.scrollTop !== this.#own);
  }

  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (!this.screen) return;
    this.#count();
    this.#size();
    if (this.on.sticks() && !this.#isSelecting()) this.#scrollTo(this.#height());
    const top = Math.floor(this.scroller.scrollTop / this.#row) - AROUND;
    const bottom = top + Math.ceil(this.scroller.clientHeight / this.#row) + 2 * AROUND;
    const kept = this.#selected();
    const wanted = this.#wanted(Math.max(top, 0), bottom);
    for (const [key, element] of this.#shown) {
      if (!wanted.has(key) && !kept.has(element)) {
        element.remove();
        this.#shown.delete(key);
      }
    }
    let before = null;
    for (const [key, place] of wanted) before = this.#put(key, place, before);
    this.on.drawn();
  }

  /** Keys of the rows to be shown, in order, with their places. */
  #wanted(top, bottom) {
    const wanted = new Map();
    const { lines } = this.screen;
    for (let index = this.#lineAt(top); index < lines.length && this.#tops[index] < bottom; index += 1) {
      const count = this.#tops[index + 1] - this.#tops[index];
      const from = Math.max(0, top - this.#tops[index]);
      for (let sub = from; sub < count && this.#tops[index] + sub < bottom; sub += 1) {
        wanted.set(`${lines[index].id}.${sub}`, { line: lines[index], sub, row: this.#tops[index] + sub });
      }
    }
    return wanted;
  }

  #put(key, { line, sub, row }, before) {
    let element = this.#shown.get(key);
    if (!element) {
      element = document.createElement("div");
      element.className = "log-row";
      this.#shown.set(key, element);
    }
    const next = before ? before.nextSibling : this.body.firstChild;
    if (next !== element) this.body.insertBefore(element, next);
    if (element.row !== row) {
      element.row = row;
      element.style.top = `${row * this.#row}px`;
    }
    if (element.line !== line || element.version !== line.version || element.columns !== this.columns) {
      Object.assign(element, { line, sub, version: line.version, columns: this.columns });
      this.#fill(element);
    }
    return element;
  }

  #clear() {
    for (const element of this.#shown.values()) element.remove();
    this.#shown.clear();
  }

  /** The rows in which a selection begins and ends: they stay, so that it does. */
  #selected() {
    if (!this.#isSelecting()) return new Set();
    const selection = getSelection();
    const row = (node) => (node?.nodeType === Node.ELEMENT_NODE ? node : node?.parentElement)?.closest(".log-row");
    return new Set([row(selection.anchorNode), row(selection.focusNode)]);
  }

  #fill(element) {
    const { line, sub } = element;
    const starts = this.#starts(line);
    const [from, to] = [starts[sub] ?? line.text.length, starts[sub + 1] ?? line.text.length];
    const notes = this.notes(line);
    element.classList.toggle("is-error", Boolean(notes.isError));
    element.classList.toggle("is-marked", line === this.marked);
    element.classList.toggle("is-pointed", line === this.#pointed);
    const text = document.createElement("span");
    text.className = "log-text";
    text.from = from;
    text.append(...pieces(line, from, to, notes.hits ?? []));
    element.replaceChildren(...this.#marginOf(notes, sub === 0 && !line.isMore), text);
  }

  #starts(line) {
    if (!this.#wraps || line.cols <= this.columns) return [0];
    if (line.isWide) return rowStarts(line.text, this.columns);
    return Array.from({ length: Math.ceil(line.cols / this.columns) }, (_, sub) => sub * this.columns);
  }

  #marginOf(notes, isFirst) {
    const said = { number: notes.number, time: notes.time, stream: notes.isError ? "err" : "" };
    return Object.keys(said).filter((name) => this.margin[name]).map((name) => {
      const note = document.createElement("span");
      note.className = `log-note log-note-${name}`;
      note.textContent = isFirst ? (said[name] ?? "") : "";
      if (name === "time" && isFirst) note.title = notes.when ?? "";
      return note;
    });
  }

  // --- copying ---

  #isSelecting() {
    const selection = getSelection();
    return Boolean(selection) && !selection.isCollapsed && this.scroller.contains(selection.anchorNode);
  }

  /** What is selected in the log, from its lines; "" when nothing is. */
  selected() {
    if (!this.#isSelecting()) return "";
    const selection = getSelection();
    const ends = [this.#point(selection.anchorNode, selection.anchorOffset), this.#point(selection.focusNode, selection.focusOffset)];
    if (ends.includes(null)) return selection.toString();
    const [from, to] = ends.sort((a, b) => a.index - b.index || a.at - b.at);
    return this.text(from, to);
  }

  /** The text between two points, or all of it. */
  text(from = { index: 0, at: 0 }, to = { index: this.screen.lines.length - 1, at: Infinity }) {
    let all = "";
    for (let index = from.index; index <= to.index; index += 1) {
      const line = this.screen.lines[index];
      const piece = line.text.slice(index === from.index ? from.at : 0, index === to.index ? to.at : undefined);
      all += index === from.index || line.isMore ? piece : `\n${piece}`;
    }
    return all;
  }

  /** A place in the page as {index of the line, at: index into its text}. */
  #point(node, offset) {
    const element = node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement;
    const row = element?.closest(".log-row");
    const index = row ? this.screen.lines.indexOf(row.line) : -1;
    if (index < 0) return null;
    const text = row.querySelector(".log-text");
    if (!text.contains(node)) return { index, at: text.from };
    const range = document.createRange();
    range.setStart(text, 0);
    range.setEnd(node, offset);
    return { index, at: text.from + range.toString().length };
  }

  #copy(event) {
    const text = this.selected();
    if (!text) return;
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
  }
}
