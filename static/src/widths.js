// How many columns of a terminal a character takes.

const NONE = /^[\p{Mn}\p{Me}\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\u{e0100}-\u{e01ef}]$/u;
const EMOJI = /^\p{Emoji_Presentation}$/u;
const WIDE = [ // of East Asian Width "W" or "F", by block
  [0x1100, 0x115f], [0x2e80, 0x303e], [0x3041, 0xa4cf], [0xa960, 0xa97f], [0xac00, 0xd7a3], [0xf900, 0xfaff],
  [0xfe30, 0xfe6f], [0xff00, 0xff60], [0xffe0, 0xffe6], [0x17000, 0x18cff], [0x1b000, 0x1b2ff], [0x1f200, 0x1f265],
  [0x20000, 0x3fffd],
];
const NOT_NARROW = /[^\x20-\u02ff]/;
const known = new Map();

/** 0, 1 or 2 columns, for a character that is no control character. */
export function widthOf(character) {
  const code = character.codePointAt(0);
  if (code < 0x300) return 1;
  let width = known.get(code);
  if (width === undefined) {
    if (known.size > 20000) known.clear();
    width = NONE.test(character) ? 0 : EMOJI.test(character) || WIDE.some(([from, to]) => code >= from && code <= to) ? 2 : 1;
    known.set(code, width);
  }
  return width;
}

/** Columns of a text without control characters. */
export function columnsOf(text) {
  if (!NOT_NARROW.test(text)) return text.length;
  let columns = 0;
  for (const character of text) columns += widthOf(character);
  return columns;
}

/** Where in `text` the rows of `width` columns begin: indices, the first of them 0. */
export function rowStarts(text, width) {
  const starts = [0];
  let [index, columns] = [0, 0];
  for (const character of text) {
    const own = widthOf(character);
    if (columns + own > width) {
      starts.push(index);
      columns = 0;
    }
    columns += own;
    index += character.length;
  }
  return starts;
}
