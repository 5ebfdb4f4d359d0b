// What a terminal would show of a log's bytes, as lines. Colours, `\r` bars and cursor moves within the log count;
// whatever else a program may ask of a terminal is left out, and what is no whole sequence is shown as text.
import { PLAIN, afterSgr, withLink } from "./styles.js";
import { columnsOf, widthOf } from "./widths.js";

export const LONGEST = 16384; // columns; a longer line goes on in another one
const REACH = 500; // lines that a cursor may go up
const MOST_HELD = 4096; // characters of a sequence whose end has not come
const SPECIAL = /[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;
const CSI = /\x1b\[([\x30-\x3f]*)([\x20-\x2f]*)([\x40-\x7e])/y;
const CSI_BEGUN = /\x1b(\[[\x30-\x3f]*[\x20-\x2f]*)?$/y;
const STRING = /\x1b([\]PX^_])([^\x07\x1b\n]{0,4096})(?:\x07|\x1b\\)/y; // titles, links, device strings
const STRING_BEGUN = /\x1b[\]PX^_][^\x07\x1b\n]{0,4096}\x1b?$/y;
const OTHER = /\x1b[\x20-\x2f]*[\x30-\x5a\x5c\x60-\x7e]/y;
const LINK = /^8;[^;]*;(.*)$/s;

let ids = 0;

/**
 * One line: `at`, the offset of its first byte; `n`, the newlines before it, counted from where this screen began;
 * `isMore` for what goes on with a line that is too long; `runs`: [index, style, index, style, …], or null.
 */
class Line {
  constructor(at, n, enter, isMore = false) {
    this.id = ids += 1;
    this.at = at;
    this.n = n;
    this.enter = this.last = enter;
    this.isMore = isMore;
    this.raw = "";
    this.runs = enter === PLAIN ? null : [0, enter];
    this.cols = this.version = 0;
    this.cells = null;
    this.isDirty = false;
  }

  get text() {
    if (this.cells) this.#freeze();
    return this.raw;
  }

  get isWide() {
    return this.cols !== this.text.length;
  }

  append(text, cols, style) {
    if (style !== this.last) {
      (this.runs ??= []).push(this.text.length, style);
      this.last = style;
    }
    this.raw += text;
    this.cols += cols;
    this.version += 1;
  }

  replace(text, cols, style) {
    Object.assign(this, { cells: null, isDirty: false, raw: text, cols, last: style, runs: style === PLAIN ? null : [0, style] });
    this.version += 1;
  }

  /** The line as cells [{text, style}], to be changed in place; a wide character is followed by an empty one. */
  thaw() {
    if (!this.cells) {
      this.cells = [];
      let [index, run, style] = [0, 0, PLAIN];
      for (const character of this.raw) {
        while (this.runs && run < this.runs.length && this.runs[run] <= index) [style, run] = [this.runs[run + 1], run + 2];
        put(this.cells, this.cells.length, character, style);
        index += character.length;
      }
    }
    this.isDirty = true;
    this.version += 1;
    return this.cells;
  }

  /** Text and runs anew, after cells have changed. */
  #freeze() {
    if (!this.isDirty) return;
    let [text, runs, style] = ["", [], PLAIN];
    for (const cell of this.cells) {
      if (cell.style !== style && cell.text) {
        style = cell.style;
        runs.push(text.length, style);
      }
      text += cell.text;
    }
    Object.assign(this, { raw: text, runs: runs.length ? runs : null, last: style, isDirty: false });
  }

  /** No cursor stands here any more. */
  leave() {
    if (this.cells) this.#freeze();
    this.cells = null;
  }
}

/** Put one character into cells at a column. Returns the column behind it. */
function put(cells, column, character, style) {
  const width = widthOf(character);
  if (!width) {
    let before = column - 1;
    while (before > 0 && cells[before].text === "") before -= 1;
    if (cells[before] && cells[before].text.length < 32) cells[before] = { text: cells[before].text + character, style: cells[before].style };
    return column;
  }
  while (cells.length < column) cells.push({ text: " ", style: PLAIN });
  if (cells[column]?.text === "" && column) cells[column - 1] = { text: " ", style: cells[column - 1].style }; // its other half
  cells[column] = { text: character, style };
  if (width === 2) cells[column + 1] = { text: "", style };
  if (cells[column + width]?.text === "") cells[column + width] = { text: " ", style: PLAIN };
  return column + width;
}

export class Screen {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #held = ""; // the beginning of a sequence
  #style;
  #row = 0;
  #col = 0;
  #after; // the offset behind the newline that comes next
  #newlines = 0;
  #inside = false; // the last byte may be in the middle of a character

  /** Bytes are fed from offset `at` on; `style` is what was in force there. */
  constructor(at, style = PLAIN) {
    this.start = this.end = this.#after = at;
    this.#style = style;
    this.lines = [new Line(at, 0, style)];
    this.changed = 0; // lines from this one on may have changed; whoever draws sets it
  }

  get style() {
    return this.#style;
  }

  /** How many newlines have come. */
  get newlines() {
    return this.#newlines;
  }

  feed(bytes) {
    if (!this.#inside && isAllAscii(bytes)) {
      this.#text(this.#decoder.decode(bytes, { stream: true }), this.end);
      this.end += bytes.length;
      return;
    }
    for (let at = 0, stop; at < bytes.length; at = stop) {
      const newline = bytes.indexOf(10, at);
      stop = newline < 0 ? bytes.length : newline + 1;
      this.#after = this.end + stop - at;
      this.#text(this.#decoder.decode(bytes.subarray(at, stop), { stream: true }));
      this.end += stop - at;
    }
    this.#inside = bytes.length ? bytes[bytes.length - 1] > 0x7f : this.#inside;
  }

  /** Forget the first `count` lines. */
  dropFirst(count) {
    this.lines.splice(0, count);
    this.#row = Math.max(0, this.#row - count);
    this.start = this.lines[0].at;
    this.changed = 0;
  }

  /** Forget the lines from `count` on; what comes next must be fed from the offset that `end` is then. */
  dropLast(count) {
    const first = this.lines[count];
    this.lines.length = count;
    this.end = this.#after = first.at;
    this.#style = first.enter;
    this.#held = "";
    this.#inside = false;
    this.#decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    this.#newlines = first.n;
    this.#col = 0;
    this.lines.push(new Line(first.at, first.n, first.enter, first.isMore));
    this.#row = count;
    this.changed = Math.min(this.changed, count);
  }

  /** Put another screen's lines, which end where these start, before these. */
  prepend(earlier) {
    const lines = earlier.lines;
    if (lines.length > 1 && lines[lines.length - 1].at === this.start) lines.pop(); // the empty one behind its last newline
    for (const line of lines) {
      line.leave();
      line.n += this.lines[0].n - earlier.newlines;
    }
    restyle(this.lines, earlier.style);
    this.lines = lines.concat(this.lines);
    this.#row += lines.length;
    this.start = earlier.start;
    this.changed = 0;
  }

  #text(fresh, base = null) {
    const text = this.#held + fresh;
    const origin = base === null ? 0 : base - this.#held.length;
    this.#held = "";
    for (let at = 0; at < text.length; ) {
      SPECIAL.lastIndex = at;
      const stop = SPECIAL.exec(text)?.index ?? text.length;
      if (stop > at) this.#print(text.slice(at, stop));
      if (stop === text.length) return;
      if (base !== null) this.#after = origin + stop + 1;
      at = this.#control(text, stop);
      if (at < 0) {
        this.#held = text.slice(stop);
        return;
      }
    }
  }

  /** Obey what stands at `at`; returns where to go on, -1 when its end has not come. */
  #control(text, at) {
    const line = this.lines[this.#row];
    switch (text[at]) {
      case "\n": this.#newline(); break;
      case "\r": this.#touch(); this.#col = 0; break;
      case "\b": this.#touch(); this.#col = Math.max(0, Math.min(this.#col, line.cols) - 1); break;
      case "\t": this.#print(" ".repeat(8 - (this.#col % 8))); break;
      case "\x1b": return this.#escape(text, at);
      case "\x07": case "\x0e": case "\x0f": break;
      default: this.#print(pictureOf(text[at]));
    }
    return at + 1;
  }

  #escape(text, at) {
    const match = (pattern) => ((pattern.lastIndex = at), pattern.exec(text));
    let found = match(CSI);
    if (found) {
      if (!found[2] && !/^[<=>?]/.test(found[1])) this.#sequence(found[3], found[1]);
    } else if ((found = match(STRING))) {
      const link = found[1] === "]" && LINK.exec(found[2]);
      if (link) this.#style = withLink(this.#style, /^https?:\/\//i.test(link[1]) ? link[1] : "");
    } else {
      found = match(OTHER);
    }
    if (found) return at + found[0].length;
    if (text.length - at <= MOST_HELD && (match(CSI_BEGUN) || match(STRING_BEGUN))) return -1;
    this.#print(pictureOf("\x1b"));
    return at + 1;
  }

  #sequence(final, parameters) {
    if (final === "m") {
      this.#style = afterSgr(this.#style, parameters);
      return;
    }
    const first = parseInt(parameters, 10) || 0;
    const count = Math.min(Math.max(first, 1), LONGEST);
    if (final in EDITS) {
      const line = this.lines[this.#row];
      if (this.#col < line.cols || final === "K") EDITS[final](line, this.#col, final === "K" ? first : count);
      this.#touch();
    } else if (final === "J" && !first) {
      this.#eraseBelow();
    } else {
      this.#move(final, count);
    }
  }

  #move(final, count) {
    if ("AF".includes(final)) this.#go(this.#row - count);
    if ("BE".includes(final)) this.#go(this.#row + count);
    if ("EF".includes(final)) this.#col = 0;
    if (final === "C") this.#col = Math.min(this.#col + count, LONGEST - 1);
    if (final === "D") this.#col = Math.max(this.#col - count, 0);
    if (final === "G" || final === "`") this.#col = count - 1;
  }

  #go(row) {
    this.lines[this.#row].leave();
    this.#row = Math.min(Math.max(row, 0, this.lines.length - REACH), this.lines.length - 1);
  }

  #eraseBelow() {
    EDITS.K(this.lines[this.#row], this.#col, 0);
    this.#touch();
    for (const line of this.lines.slice(this.#row + 1)) line.replace("", 0, PLAIN);
  }

  #touch() {
    this.changed = Math.min(this.changed, this.#row);
  }

  #newline() {
    this.#newlines += 1;
    this.#col = 0;
    if (this.#row + 1 < this.lines.length) this.#go(this.#row + 1);
    else this.#push(new Line(this.#after, this.#newlines, this.#style));
  }

  #push(line) {
    this.lines[this.#row].leave();
    this.#touch();
    this.lines.push(line);
    this.#row = this.lines.length - 1;
    this.#col = 0;
  }

  /** Text without control characters, at the cursor. */
  #print(text) {
    let rest = text;
    while (rest) {
      const room = LONGEST - this.#col;
      const part = rest.length <= room ? rest : rest.slice(0, Math.max(room, 0));
      if (part) this.#put(part);
      rest = rest.slice(part.length);
      if (rest && this.#row < this.lines.length - 1) return; // what is drawn over a line that is there stays in it
      if (rest) this.#push(new Line(this.end, this.#newlines, this.#style, true));
    }
    this.#touch();
  }

  #put(text) {
    const line = this.lines[this.#row];
    const cols = columnsOf(text);
    if (this.#col >= line.cols && !line.cells) {
      if (this.#col > line.cols) line.append(" ".repeat(this.#col - line.cols), this.#col - line.cols, PLAIN);
      line.append(text, cols, this.#style);
      this.#col += cols;
    } else if (!this.#col && cols >= line.cols) {
      line.replace(text, cols, this.#style);
      this.#col = cols;
    } else {
      const cells = line.thaw();
      for (const character of text) this.#col = put(cells, this.#col, character, this.#style);
      line.cols = cells.length;
    }
  }
}

function isAllAscii(bytes) {
  for (let at = 0; at < bytes.length; at += 1) if (bytes[at] > 0x7f) return false;
  return true;
}

/** What an unprintable character looks like: `^A`, as terminals and editors write it. */
function pictureOf(character) {
  const code = character.charCodeAt(0);
  return code < 0x20 || code === 0x7f ? `^${String.fromCharCode(code ^ 0x40)}` : "\ufffd";
}

/** (line, column, count) for the sequences that change a line. */
const EDITS = {
  K(line, column, what) {
    if (what === 2 || (what === 0 && column === 0)) line.replace("", 0, PLAIN);
    else if (what === 0) EDITS.cut(line, column);
    else EDITS.X(line, 0, column + 1);
  },
  P: (line, column, count) => EDITS.splice(line, (cells) => cells.splice(column, count)),
  X: (line, column, count) => EDITS.splice(line, (cells) => cells.fill({ text: " ", style: PLAIN }, column, Math.min(column + count, cells.length))),
  "@": (line, column, count) => EDITS.splice(line, (cells) => {
    cells.splice(column, 0, ...Array.from({ length: Math.min(count, LONGEST - cells.length) }, () => ({ text: " ", style: PLAIN })));
  }),
  cut: (line, column) => column < line.cols && EDITS.splice(line, (cells) => (cells.length = column)),
  splice(line, change) {
    const cells = line.thaw();
    change(cells);
    line.cols = cells.length;
  },
};

/** Lines that were read without knowing what was in force before them: `style` was, up to the first change. */
function restyle(lines, style) {
  if (style === PLAIN) return;
  for (const line of lines) {
    if (line.enter !== PLAIN) return;
    line.enter = style;
    if (line.text) {
      const rest = line.runs?.[0] === 0 ? [] : [0, style];
      line.runs = [...rest, ...(line.runs ?? [])];
    }
    line.version += 1;
    if (line.runs && line.runs.length > 2) return;
  }
}
