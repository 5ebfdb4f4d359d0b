// Drawing the timeline: a canvas a row, and one for the axis of time.
import { serverNow } from "./times.js";
import { HOST, LANE, axis, isLive, title, tone, topOf, view, width, x } from "./timelineview.js";

const SHORT = 3; // pixels: no block is narrower, so that a run of seconds is seen in a week
const APART = 2; // short runs closer than that are one mark
const STEPS = [60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000];
const language = document.documentElement.lang || "en";
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(language, { month: "short", day: "numeric" });
const month = new Intl.DateTimeFormat(language, { month: "short", year: "numeric" });

function begin(canvas) {
  const pen = canvas.getContext("2d");
  const ratio = devicePixelRatio || 1;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  return pen;
}

/** The ticks of this window, no closer than a label is wide. */
function ticks() {
  const least = ((view.to - view.from) * 72) / width();
  const step = STEPS.find((found) => found >= least) ?? STEPS.at(-1);
  const zone = new Date(view.from * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((view.from - zone) / step) * step + zone; at < view.to; at += step) found.push(at);
  return { step, found };
}

export function drawAxis() {
  const ratio = devicePixelRatio || 1;
  axis.style.width = `${width()}px`;
  axis.width = Math.round(width() * ratio);
  axis.height = Math.round(34 * ratio);
  const pen = begin(axis);
  pen.font = "11px system-ui, sans-serif";
  const { step, found } = ticks();
  let last = "";
  for (const at of found) {
    const date = new Date(at * 1000);
    const upper = step >= 2592000 ? "" : step >= 86400 ? month.format(date) : day.format(date);
    pen.fillStyle = view.colours["ink-2"];
    pen.fillText((step >= 2592000 ? month : step >= 86400 ? day : clock).format(date), x(at) + 3, 28);
    if (upper && upper !== last) { pen.fillStyle = view.colours.ink; pen.fillText(upper, x(at) + 3, 13); }
    last = upper;
    pen.fillStyle = view.colours.line;
    pen.fillRect(x(at), 18, 1, 16);
  }
  markNow(pen, 34);
}

function markNow(pen, height) {
  const now = serverNow() / 1000;
  if (now < view.from || now > view.to) return;
  pen.fillStyle = view.colours.red;
  pen.fillRect(x(now) - 0.75, 0, 1.5, height);
}

export function draw(row) {
  row.stale = false;
  const pen = begin(row.canvas);
  pen.fillStyle = view.colours.line;
  for (const at of ticks().found) pen.fillRect(x(at), 0, 1, row.height);
  if (row.host !== null) drawCordons(pen, row);
  if (row.host !== null) drawHeld(pen, row);
  row.marks = row.host === null || row.open ? marksOf(row) : [];
  for (const mark of row.marks) (mark.blocks.length > 1 ? drawGroup : drawBlock)(pen, row, mark);
  markNow(pen, row.height);
}

function drawCordons(pen, row) {
  for (const cordon of view.data.cordons.filter((found) => found.host === row.host)) {
    const start = x(Math.max(cordon.from ?? view.data.now, view.from));
    const end = x(Math.min(cordon.to ?? view.to, view.to));
    if (end <= start) continue;
    pen.save();
    pen.beginPath();
    pen.rect(start, 0, end - start, row.height);
    pen.clip();
    pen.strokeStyle = view.colours.orange;
    pen.globalAlpha = 0.35;
    pen.beginPath();
    for (let at = start - row.height; at < end; at += 8) { pen.moveTo(at, row.height); pen.lineTo(at + row.height, 0); }
    pen.stroke();
    pen.restore();
  }
}

/** How much of the host is held: from bins, or from its blocks. */
function drawHeld(pen, row) {
  const bins = view.data.bins?.[row.host];
  const [base, tall] = [HOST - 3, HOST - 6];
  const folded = !row.open || bins;
  pen.fillStyle = view.colours.accent;
  if (bins) {
    for (const [number, share] of Object.entries(bins)) {
      const at = view.data.first + number * view.data.step;
      pen.globalAlpha = at + view.data.step / 2 > view.data.now ? 0.35 : 0.8;
      pen.fillRect(x(at), base - share * tall, Math.max(x(at + view.data.step) - x(at) - 0.5, 0.5), Math.max(share * tall, 0.5));
    }
  } else if (folded) {
    const gpus = view.data.hosts[row.host].gpus.length || 1;
    for (const block of row.blocks.filter((found) => found.lane < gpus && !found.kind)) {
      pen.globalAlpha = block.mine ? 0.95 : 0.6;
      const high = tall / gpus;
      const [start, end] = [x(block.from), x(block.to ?? view.data.now)];
      pen.fillStyle = tone(block)[0];
      pen.fillRect(start, 3 + block.lane * high, Math.max(end - start, 2), Math.max(high - 0.3, 0.6));
      if (block.to || !block.until) continue;
      pen.globalAlpha = 0.25;
      pen.fillRect(end, 3 + block.lane * high, Math.max(x(block.until) - end, 0), Math.max(high - 0.3, 0.6));
    }
  }
  pen.globalAlpha = 1;
}

const onlyMine = () => document.getElementById("timeline-mine").checked;

/** The marks of a row, lane by lane: a block each, but short runs that lie close together are one. */
function marksOf(row) {
  const lanes = new Map();
  for (const block of row.blocks) {
    const end = block.to ?? (block.kind ? block.from : view.data.now);
    if (Math.max(end, block.until ?? 0, block.likely?.[1] ?? 0) < view.from || block.from > view.to) continue;
    const marks = lanes.get(block.lane) ?? lanes.set(block.lane, []).get(block.lane);
    marks.push(markOf(block, end));
  }
  return [...lanes.values()].flatMap((marks) => joined(marks.sort((one, other) => one.start - other.start)));
}

function markOf(block, end) {
  const around = view.to - view.from; // what lies farther out is as good as endless
  const [start, stop] = [x(Math.max(block.from, view.from - around)), x(Math.min(end, view.to + around))];
  return { blocks: [block], lane: block.lane, start, wide: Math.max(stop - start, SHORT), isShort: stop - start < SHORT && !block.kind && !isLive(block) };
}

function joined(marks) {
  const found = [];
  let group = null; // the last of the short ones: longer blocks may lie between
  for (const mark of marks) {
    if (mark.isShort && group && mark.start - (group.start + group.wide) < APART) {
      group.blocks.push(...mark.blocks);
      group.wide = Math.max(group.wide, mark.start + mark.wide - group.start);
      continue;
    }
    if (mark.isShort) group = mark;
    found.push(mark);
  }
  return found;
}

/** One block; how far it reaches, in pixels, tells its mark. */
function drawBlock(pen, row, { blocks: [block], start, wide, lane }) {
  const [strong, soft] = tone(block);
  const top = topOf(row, lane) + 1.5;
  const high = LANE - 3;
  pen.globalAlpha = onlyMine() && !block.mine ? 0.2 : 1;
  pen.fillStyle = block.kind ? soft : isLive(block) || wide <= SHORT ? strong : soft;
  pen.fillRect(start, top, wide, high);
  if (!isLive(block)) {
    pen.strokeStyle = strong;
    pen.setLineDash(block.kind ? [3, 2] : []);
    if (wide > SHORT) pen.strokeRect(start + 0.5, top + 0.5, wide - 1, high - 1);
    pen.setLineDash([]);
  } else if (!block.kind) {
    drawRest(pen, block, top, high, strong, soft);
  }
  if (block.mine) { pen.fillStyle = view.colours.ink; pen.fillRect(start, top + high - 1.5, wide, 1.5); }
  if (wide > 40) write(pen, title(block), isLive(block) && !block.kind ? view.colours["on-accent"] : view.colours.ink, start, top, wide, high);
  pen.globalAlpha = 1;
}

/** Short runs, one close to the other, as one: each a line in its colour. */
function drawGroup(pen, row, { blocks, start, wide, lane }) {
  const top = topOf(row, lane) + 1.5;
  const high = LANE - 3;
  const isMine = blocks.some((block) => block.mine);
  pen.globalAlpha = onlyMine() && !isMine ? 0.2 : 1;
  pen.fillStyle = view.colours["grey-soft"];
  pen.fillRect(start, top, wide, high);
  for (const block of blocks) {
    pen.fillStyle = tone(block)[0];
    pen.fillRect(Math.min(x(block.from), start + wide - 1.5), top, 1.5, high);
  }
  if (isMine) { pen.fillStyle = view.colours.ink; pen.fillRect(start, top + high - 1.5, wide, 1.5); }
  pen.globalAlpha = 1;
}

/** What is left of a live run: up to its limit, with its likely end. */
function drawRest(pen, block, top, high, strong, soft) {
  const begin = x(view.data.now);
  if (block.until) {
    pen.fillStyle = soft;
    pen.fillRect(begin, top, Math.max(x(block.until) - begin, 0), high);
    pen.strokeStyle = strong;
    pen.strokeRect(begin, top + 0.5, Math.max(x(block.until) - begin, 0), high - 1);
  }
  if (block.likely) {
    pen.fillStyle = strong;
    pen.save();
    pen.globalAlpha *= 0.4;
    pen.fillRect(x(block.likely[0]), top + 3, Math.max(x(block.likely[1]) - x(block.likely[0]), 2), high - 6);
    pen.restore();
  }
}

function write(pen, text, colour, start, top, wide, high) {
  const left = Math.max(start, 0) + 4;
  const room = Math.min(start + wide, width()) - left - 2;
  if (room < 24) return;
  pen.save();
  pen.beginPath();
  pen.rect(left, top, room, high);
  pen.clip();
  pen.font = "10.5px system-ui, sans-serif";
  pen.fillStyle = colour;
  pen.fillText(text, left, top + high - 3);
  pen.restore();
}
