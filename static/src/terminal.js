// A read-only terminal for what jobs print. Colours, `\r` bars and cursor moves within the log are shown;
// whatever else a program could ask of a terminal is ignored. Links open only by a click, and only http(s).
import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { Terminal } from "@xterm/xterm";

export const MOST_LINES = 30000;
const WIDE = 500; // columns at first when long lines are not wrapped
const WIDEST = 4096; // columns that the longest line may have then
const SLACK = 1.01; // glyphs are up to a hundredth wider than the columns that xterm.js reckons with
const CELLS = MOST_LINES * WIDE; // what is kept at most, of 12 bytes each: more columns leave fewer lines
const ALLOWED_CSI = new Set([..."mABCDEFGKP@X"]);
const CSI_FINALS = Array.from({ length: 0x7e - 0x40 + 1 }, (_, i) => String.fromCharCode(0x40 + i));
const OSC_IGNORED = [0, 1, 2, 4, 5, 7, 9, 10, 11, 12, 13, 17, 19, 21, 22, 50, 52, 99, 104, 105, 110, 111, 112, 133, 633, 777, 1337];
const DECORATIONS = {
  matchBackground: "#f2d06b", matchOverviewRuler: "#f2d06b",
  activeMatchBackground: "#f08c3c", activeMatchColorOverviewRuler: "#f08c3c",
};

const THEMES = {
  dark: {
    background: "#12161d", foreground: "#d7dde8", selectionBackground: "#39476b", cursor: "#12161d",
    black: "#3b4252", red: "#ff8a80", green: "#7fd69b", yellow: "#ecc368", blue: "#8fb1ff", magenta: "#d2a1ff",
    cyan: "#74d4de", white: "#d7dde8", brightBlack: "#7d889b", brightRed: "#ffa8a1", brightGreen: "#a0e6b6",
    brightYellow: "#f6d88f", brightBlue: "#b2caff", brightMagenta: "#e2c2ff", brightCyan: "#9ee6ed", brightWhite: "#ffffff",
  },
  light: {
    background: "#ffffff", foreground: "#1b2330", selectionBackground: "#cdd8ff", cursor: "#ffffff",
    black: "#1b2330", red: "#b42318", green: "#19713d", yellow: "#855300", blue: "#2f49b8", magenta: "#7a35b0",
    cyan: "#0b6a78", white: "#566072", brightBlack: "#6a7486", brightRed: "#c9372a", brightGreen: "#1f8549",
    brightYellow: "#976000", brightBlue: "#3b5bdb", brightMagenta: "#8e44c8", brightCyan: "#0e7c8c", brightWhite: "#39424f",
  },
};

function openLink(event, uri) {
  let url;
  try {
    url = new URL(uri);
  } catch {
    return;
  }
  if (url.protocol === "http:" || url.protocol === "https:") window.open(url.href, "_blank", "noopener,noreferrer");
}

function quiet(parser) {
  for (const final of CSI_FINALS) {
    for (const prefix of ["", "?", ">", "=", "<"]) {
      if (prefix === "" && (ALLOWED_CSI.has(final) || final === "J")) continue;
      parser.registerCsiHandler(prefix ? { prefix, final } : { final }, () => true);
    }
    for (const intermediates of [" ", "!", "\"", "$", "'", "*"]) parser.registerCsiHandler({ intermediates, final }, () => true);
    parser.registerDcsHandler({ final }, () => true);
  }
  // Erasing below the cursor belongs to progress bars; erasing the whole screen or the scrollback would hide output.
  parser.registerCsiHandler({ final: "J" }, (params) => (params[0] || 0) !== 0);
  OSC_IGNORED.forEach((code) => parser.registerOscHandler(code, () => true));
  // Marked-up links: only http(s) ones become links at all.
  parser.registerOscHandler(8, (data) => {
    const uri = data.slice(data.indexOf(";") + 1);
    return uri !== "" && !/^https?:\/\//i.test(uri);
  });
  for (const final of ["c", "D", "E", "M", "N", "O", "Z", "=", ">", "n", "o", "|", "}", "~"]) parser.registerEscHandler({ final }, () => true);
  parser.registerEscHandler({ intermediates: "#", final: "8" }, () => true);
}

export class LogTerminal {
  #fit = new FitAddon();
  #search = new SearchAddon();
  #wraps = true;
  #wide = WIDE;
  #measured = null; // marks the line up to which widths are known

  /** `on`: {scrolled(atEnd), matches({index, count})} */
  constructor(element, on) {
    this.element = element;
    this.term = new Terminal({
      allowProposedApi: true, convertEol: true, disableStdin: true, cursorBlink: false, cursorStyle: "bar",
      cursorInactiveStyle: "none", scrollback: MOST_LINES, fontSize: 13, lineHeight: 1.25, minimumContrastRatio: 4.5,
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono") || "monospace",
      linkHandler: { activate: openLink, allowNonHttpProtocols: false }, theme: THEMES[theme()], logLevel: "off",
      smoothScrollDuration: 0, screenReaderMode: false, reflowCursorLine: true,
    });
    this.term.loadAddon(this.#fit);
    this.term.loadAddon(this.#search);
    this.term.loadAddon(new WebLinksAddon(openLink));
    quiet(this.term.parser);
    this.term.open(element);
    this.term.textarea?.setAttribute("aria-label", element.closest("[data-wide-label]")?.dataset.wideLabel ?? "log");
    this.term.attachCustomKeyEventHandler((event) => this.#key(event));
    this.term.onWriteParsed(() => this.#widen() && this.fit());
    this.term.onScroll(() => on.scrolled(this.atEnd));
    element.addEventListener("wheel", () => requestAnimationFrame(() => on.scrolled(this.atEnd)), { passive: true });
    this.#search.onDidChangeResults((found) => on.matches({ index: found.resultIndex + 1, count: found.resultCount }));
    new ResizeObserver(() => this.fit()).observe(element.parentElement);
    document.addEventListener("dockyard:theme", () => (this.term.options.theme = THEMES[theme()]));
    this.fit();
  }

  get atEnd() {
    const buffer = this.term.buffer.active;
    return buffer.viewportY >= buffer.baseY;
  }

  fit() {
    const size = this.#fit.proposeDimensions();
    if (!size || !Number.isFinite(size.cols) || size.rows < 2) return;
    const cols = this.#wraps ? Math.max(size.cols, 20) : this.#wide;
    if (cols === this.term.cols && size.rows === this.term.rows) return;
    const kept = Math.min(MOST_LINES, Math.floor(CELLS / cols));
    if (cols < this.term.cols) this.term.options.scrollback = kept; // before lines are broken into more of them
    this.term.resize(cols, size.rows);
    this.term.options.scrollback = kept;
  }

  /** Room for the longest line, as far as no line that is there would have to go; true when it has grown. */
  #widen() {
    if (this.#wraps) return false;
    const { length } = this.term.buffer.active;
    const room = Math.ceil(this.#longest() * SLACK);
    const wide = Math.min(room, WIDEST, Math.max(WIDE, Math.floor(CELLS / length)));
    this.#measured?.dispose();
    this.#measured = wide > this.#wide ? null : this.term.registerMarker(0); // none: lines are about to move
    if (wide <= this.#wide) return false;
    this.#wide = wide;
    return true;
  }

  /** Columns of the longest of the lines that have not been measured. */
  #longest() {
    const buffer = this.term.buffer.active;
    let y = this.#measured && !this.#measured.isDisposed ? this.#measured.line : 0;
    while (y > 0 && buffer.getLine(y).isWrapped) y -= 1;
    let [longest, before] = [0, 0];
    for (; y < buffer.length; y += 1) {
      const line = buffer.getLine(y);
      before = line.isWrapped ? before + this.term.cols : 0;
      if (before + this.term.cols > longest) longest = Math.max(longest, before + columns(line));
    }
    return longest;
  }

  write(data, done) {
    this.term.write(data, done);
  }

  clear() {
    this.term.reset();
    this.term.options.screenReaderMode = this.reader === true;
  }

  toEnd() {
    this.term.scrollToBottom();
  }

  toTop() {
    this.term.scrollToTop();
  }

  set wraps(on) {
    this.#wraps = on;
    this.#wide = WIDE;
    this.#measured?.dispose();
    this.#measured = null;
    this.element.classList.toggle("is-wide", !on);
    do this.fit(); while (this.#widen()); // the fewer rows long lines take, the wider they may be
  }

  set readAloud(on) {
    this.reader = on;
    this.term.options.screenReaderMode = on;
  }

  find(text, backwards = false) {
    if (!text) {
      this.#search.clearDecorations();
      return true;
    }
    const options = { decorations: DECORATIONS, caseSensitive: /[A-Z]/.test(text) };
    return backwards ? this.#search.findPrevious(text, options) : this.#search.findNext(text, options);
  }

  /** The selection, or everything that is loaded, as text. */
  text() {
    const selected = this.term.getSelection();
    if (selected) return selected;
    const buffer = this.term.buffer.active;
    const lines = [];
    for (let y = 0; y < buffer.length; y += 1) {
      const line = buffer.getLine(y);
      const piece = line.translateToString(true);
      if (line.isWrapped && lines.length) lines[lines.length - 1] += piece;
      else lines.push(piece);
    }
    return lines.join("\n").replace(/\n+$/, "\n");
  }

  /** Keys scroll; all others, Tab above all, are left to the browser. */
  #key(event) {
    if (event.type !== "keydown") return false;
    const page = this.term.rows - 1;
    const moves = { PageUp: -page, PageDown: page, ArrowUp: -1, ArrowDown: 1 };
    if (event.key in moves) this.term.scrollLines(moves[event.key]);
    else if (event.key === "Home") this.toTop();
    else if (event.key === "End") this.toEnd();
    else return false;
    event.preventDefault();
    return false;
  }
}

/** How many columns of a line of the buffer have something in them. */
function columns(line) {
  let x = line.length;
  for (let cell; x > 0; x -= 1) {
    cell = line.getCell(x - 1, cell);
    if (cell.getChars() || !cell.getWidth()) break; // the right half of a wide character has no text and no width
  }
  return x;
}

function theme() {
  return document.documentElement.dataset.bsTheme === "dark" ? "dark" : "light";
}
