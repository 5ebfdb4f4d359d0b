// What is under the pointer on the timeline, and what is told of it.
import { element } from "./timelinerows.js";
import { LANE, root, title, topOf, view, width, x } from "./timelineview.js";
import { duration, exactly } from "./times.js";
import { word } from "./words.js";

const tip = document.getElementById("timeline-tip");

/** The mark under the pointer; null: none. */
export function markAt(row, event) {
  const box = row.canvas.getBoundingClientRect();
  const [left, top] = [event.clientX - box.left, event.clientY - box.top];
  if (row.host !== null && !row.open) return null;
  const hit = (mark) => {
    const [block] = mark.blocks;
    const end = Math.max(mark.start + Math.max(mark.wide, 4), mark.blocks.length > 1 ? 0 : x(Math.max(block.until ?? 0, block.to ? 0 : view.data.now)));
    const y = topOf(row, mark.lane);
    return top >= y && top < y + LANE && left >= mark.start - 2 && left <= end;
  };
  return (row.marks ?? []).findLast(hit) ?? null;
}

/** Whether a click on a mark leads somewhere: to its job, or closer to what it has together. */
export const leads = (mark) => mark.blocks.length > 1 || mark.blocks[0].name !== null;

export function hideTip() {
  tip.hidden = true;
}

export function hover(row, event) {
  const mark = markAt(row, event);
  const share = mark ? null : shareAt(row, event);
  tip.hidden = !mark && share === null;
  row.canvas.style.cursor = mark && leads(mark) ? "pointer" : "";
  if (tip.hidden) return;
  const lines = mark ? (mark.blocks.length > 1 ? toldOfMany(mark.blocks) : told(mark.blocks[0])) : [word("held", { percent: Math.round(share * 100) })];
  tip.replaceChildren(...lines.map((line) => (typeof line === "string" ? element("div", "", line) : line)));
  const box = root.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX - box.left + 12, box.width - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY - box.top + 14}px`;
}

/** How many short runs there are, how they ended, and the first and last of them. */
function toldOfMany(blocks) {
  const counts = new Map();
  for (const { state } of blocks) counts.set(state, (counts.get(state) ?? 0) + 1);
  const states = [...counts].map(([state, count]) => `${count} ${view.data.looks[state]?.label ?? state}`);
  const [from, to] = [Math.min(...blocks.map((block) => block.from)), Math.max(...blocks.map((block) => block.to))];
  return [
    element("strong", "", word("short runs", { count: blocks.length })), states.join(" · "),
    `${word("from")} ${exactly(from * 1000)}`, `${word("to")} ${exactly(to * 1000)}`, word("click closer"),
  ];
}

function shareAt(row, event) {
  const bins = row.host === null ? null : view.data.bins?.[row.host];
  if (!bins) return null;
  const moment = view.from + ((event.clientX - row.canvas.getBoundingClientRect().left) / width()) * (view.to - view.from);
  return bins[Math.floor((moment - view.data.first) / view.data.step)] ?? 0;
}

function told(block) {
  const lines = [element("strong", "", title(block)), `${block.owner} · ${block.kind ? word(block.kind) : view.data.looks[block.state].label}`];
  lines.push(`${word("from")} ${exactly(block.from * 1000)}`);
  if (block.to) lines.push(`${word("to")} ${exactly(block.to * 1000)} (${duration(block.to - block.from)})`);
  if (!block.to && block.until) lines.push(`${word("limit")} ${exactly(block.until * 1000)}`);
  if (block.likely) lines.push(`${word("likely")} ${exactly(block.likely[0] * 1000)} – ${exactly(block.likely[1] * 1000)}`);
  return lines;
}
