// A line's text as elements: styled, linked, with what was found marked.
import { PLAIN, look } from "./styles.js";
import { columnsOf, widthOf } from "./widths.js";

const ADDRESS = /https?:\/\/[^\s"'<>`\u0000-\u001f]+[^\s"'<>`.,;:!?)\]}]/g;
const MOST_PARTS = 400; // elements that a row may have; what is left of it is plain

/** The part [from, to) of a line: styled, linked, with what was found marked. */
export function pieces(line, from, to, hits) {
  const cuts = new Set([from, to]);
  const add = (at) => at > from && at < to && cuts.size < MOST_PARTS && cuts.add(at);
  const runs = line.runs ?? [];
  for (let at = 0; at < runs.length; at += 2) add(runs[at]);
  const links = [...line.text.matchAll(ADDRESS)].map((found) => ({ from: found.index, to: found.index + found[0].length, link: found[0] }));
  for (const { from: start, to: end } of [...links, ...hits]) (add(start), add(end));
  const sorted = [...cuts].sort((a, b) => a - b);
  return sorted.slice(1).map((end, at) => piece(line, sorted[at], end, links, hits)).flat();
}

function piece(line, from, to, links, hits) {
  const style = styleAt(line, from);
  const inside = ({ from: start, to: end }) => from >= start && from < end;
  const address = style.link || links.find(inside)?.link;
  const isHit = hits.some(inside);
  const parts = wideParts(line.text.slice(from, to));
  if (style === PLAIN && !address && !isHit) return parts;
  const element = document.createElement(address ? "a" : isHit ? "mark" : "span");
  if (address && isWeb(address)) Object.assign(element, { href: address, target: "_blank", rel: "noopener noreferrer nofollow" });
  if (isHit) element.classList.add("log-hit");
  else dress(element, style);
  element.append(...parts);
  return [element];
}

function isWeb(address) {
  try {
    return ["http:", "https:"].includes(new URL(address).protocol);
  } catch {
    return false;
  }
}

function styleAt(line, index) {
  const runs = line.runs ?? [];
  let style = PLAIN;
  for (let at = 0; at < runs.length && runs[at] <= index; at += 2) style = runs[at + 1];
  return style;
}

function dress(element, style) {
  const { color, background } = look(style);
  if (color) element.style.color = color;
  if (background) element.style.backgroundColor = background;
  for (const name of ["bold", "italic", "underline", "strike"]) if (style[name]) element.classList.add(`is-${name}`);
}

/** Text as it is, but wide characters in boxes of their columns: fonts differ in how wide they draw them. */
function wideParts(text) {
  if (columnsOf(text) === text.length && !/[\u0300-\uffff]/.test(text)) return [text];
  const parts = [];
  let [run, isWide] = ["", false];
  const flush = () => {
    if (run) parts.push(isWide ? box(run) : run);
    run = "";
  };
  for (const character of text) {
    const width = widthOf(character);
    if (width && (width === 2) !== isWide) {
      flush();
      isWide = width === 2;
    }
    run += character;
  }
  flush();
  return parts;
}

function box(text) {
  const element = document.createElement("span");
  element.className = "log-wide";
  element.style.width = `calc(var(--cell) * ${columnsOf(text)})`;
  element.textContent = text;
  return element;
}
