// The timeline of hosts and GPUs: canvases drawn only where they are seen, one window of time for all of them.
import "./styles/timeline.css";
import { duration, exactly, serverNow, setServerTime, showTimes } from "./times.js";
import { word } from "./words.js";

const LANE = 16; // pixels
const HOST = 24;
const SHORTEST = 300; // seconds
const LONGEST = 800 * 86400;
const REFRESH = 30000;
const UNFOLDED = 8; // hosts, at most, whose GPUs are shown at first
const STEPS = [60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000];
const language = document.documentElement.lang || "en";
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(language, { month: "short", day: "numeric" });
const month = new Intl.DateTimeFormat(language, { month: "short", year: "numeric" });

const root = document.getElementById("timeline");
const body = document.getElementById("timeline-body");
const place = document.getElementById("timeline-lanes");
const tip = document.getElementById("timeline-tip");
const axis = document.getElementById("timeline-axis");
let data = JSON.parse(document.getElementById("timeline-data").textContent);
let from = data.from;
let to = data.to;
let colours = {};
const rows = []; // {name, canvas, open, lanes, host, top}

const width = () => Math.max(body.clientWidth - label(), 50);
const label = () => parseFloat(getComputedStyle(body).getPropertyValue("--label"));
const x = (at) => ((at - from) / (to - from)) * width();

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["accent", "accent-soft", "green", "green-soft", "red", "red-soft", "amber", "amber-soft", "orange", "orange-soft", "violet", "violet-soft", "grey", "grey-soft", "line", "ink", "ink-2", "on-accent"];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// --- rows ---

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** One row a host, and one for what is expected; built once for the same hosts. */
function build() {
  rows.length = 0;
  const wide = data.hosts.length > UNFOLDED;
  const made = [{ name: word("expected row"), host: null, open: true }, ...data.hosts.map((host, at) => ({ name: host.name, host: at, open: !wide }))];
  place.replaceChildren(...made.map(rowOf));
}

function rowOf(row) {
  const head = element(row.host === null ? "span" : "button", "timeline-name");
  row.canvas = document.createElement("canvas");
  row.canvas.setAttribute("aria-hidden", "true");
  row.box = element("div", "timeline-row", head, row.canvas);
  if (row.host !== null) {
    head.type = "button";
    const sign = element("i", "bi bi-chevron-right");
    sign.setAttribute("aria-hidden", "true");
    head.append(sign, element("span", "", row.name));
    head.addEventListener("click", () => { row.open = !row.open; size(row); draw(row); });
  } else {
    head.append(row.name);
  }
  row.head = head;
  rows.push(row);
  watch.observe(row.box);
  row.canvas.addEventListener("pointermove", (event) => hover(row, event));
  row.canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  return row.box;
}

/** The blocks of a row, each with its lane: a host's GPUs, then as many lanes as its jobs without GPUs need. */
function arrange(row) {
  row.blocks = [];
  if (row.host === null) {
    const dated = data.expected.filter((job) => job.from !== null);
    const ends = pack(dated, (job) => [job.from, job.to ?? job.from]);
    row.blocks = dated.map((job, at) => ({ ...job, lane: ends.lanes[at], kind: "expected" }));
    row.lanes = Math.min(Math.max(ends.count, 1), 6);
    return;
  }
  const gpus = data.hosts[row.host].gpus.length;
  const mine = (data.blocks ?? []).filter((block) => block.host === row.host);
  for (const block of mine) block.lanes.forEach((lane) => row.blocks.push({ ...block, lane }));
  const without = mine.filter((block) => !block.lanes.length);
  const packed = pack(without, (block) => [block.from, block.to ?? block.until ?? data.now]);
  without.forEach((block, at) => row.blocks.push({ ...block, lane: gpus + packed.lanes[at] }));
  row.lanes = gpus + Math.min(packed.count, 4);
  for (const job of data.expected) {
    if (job.kept !== row.name) continue;
    row.blocks.push({ ...job, from: job.kept_from ?? data.now, to: (job.kept_from ?? data.now) + (job.lasts ?? 3600), lane: 0, lanes: [], kind: "kept" });
  }
}

/** As few lanes as keep spans from lying over each other. */
function pack(items, span) {
  const free = [];
  const lanes = items.map((item) => {
    const [begin, end] = span(item);
    let lane = free.findIndex((until) => until <= begin);
    if (lane < 0) lane = free.length;
    free[lane] = end;
    return lane;
  });
  return { lanes, count: free.length };
}

function size(row) {
  const folded = row.host !== null && !row.open;
  const height = folded || !row.lanes ? HOST : (row.host === null ? 8 : HOST) + row.lanes * LANE;
  const ratio = devicePixelRatio || 1;
  row.height = height;
  row.box.style.height = `${height}px`;
  if (row.host !== null) row.head.setAttribute("aria-expanded", String(!folded));
  row.head.classList.toggle("is-open", !folded);
  row.canvas.style.width = `${width()}px`;
  row.canvas.style.height = `${height}px`;
  row.canvas.width = Math.round(width() * ratio);
  row.canvas.height = Math.round(height * ratio);
}

// --- drawing ---

const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const row = rows.find((found) => found.box === entry.target);
    if (!row) continue;
    row.seen = entry.isIntersecting;
    if (row.seen && row.stale) draw(row);
  }
}, { rootMargin: "200px" });

function drawAll() {
  drawAxis();
  for (const row of rows) {
    row.stale = true;
    if (row.seen) draw(row);
  }
  say();
}

function begin(canvas) {
  const pen = canvas.getContext("2d");
  const ratio = devicePixelRatio || 1;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  return pen;
}

/** The ticks of this window, no closer than a label is wide. */
function ticks() {
  const least = ((to - from) * 72) / width();
  const step = STEPS.find((found) => found >= least) ?? STEPS.at(-1);
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at < to; at += step) found.push(at);
  return { step, found };
}

function drawAxis() {
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
    pen.fillStyle = colours["ink-2"];
    pen.fillText((step >= 2592000 ? month : step >= 86400 ? day : clock).format(date), x(at) + 3, 28);
    if (upper && upper !== last) { pen.fillStyle = colours.ink; pen.fillText(upper, x(at) + 3, 13); }
    last = upper;
    pen.fillStyle = colours.line;
    pen.fillRect(x(at), 18, 1, 16);
  }
  mark(pen, 34);
}

function mark(pen, height) {
  const now = serverNow() / 1000;
  if (now < from || now > to) return;
  pen.fillStyle = colours.red;
  pen.fillRect(x(now) - 0.75, 0, 1.5, height);
}

function draw(row) {
  row.stale = false;
  const pen = begin(row.canvas);
  pen.fillStyle = colours.line;
  for (const at of ticks().found) pen.fillRect(x(at), 0, 1, row.height);
  if (row.host !== null) drawCordons(pen, row);
  if (row.host !== null) drawHeld(pen, row);
  if (row.host === null || row.open) for (const block of row.blocks) drawBlock(pen, row, block);
  mark(pen, row.height);
}

function drawCordons(pen, row) {
  for (const cordon of data.cordons.filter((found) => found.host === row.host)) {
    const start = x(Math.max(cordon.from ?? data.now, from));
    const end = x(Math.min(cordon.to ?? to, to));
    if (end <= start) continue;
    pen.save();
    pen.beginPath();
    pen.rect(start, 0, end - start, row.height);
    pen.clip();
    pen.strokeStyle = colours.orange;
    pen.globalAlpha = 0.35;
    pen.beginPath();
    for (let at = start - row.height; at < end; at += 8) { pen.moveTo(at, row.height); pen.lineTo(at + row.height, 0); }
    pen.stroke();
    pen.restore();
  }
}

/** How much of the host is held: from bins, or from its blocks. */
function drawHeld(pen, row) {
  const bins = data.bins?.[row.host];
  const [base, tall] = [HOST - 3, HOST - 6];
  const folded = !row.open || bins;
  pen.fillStyle = colours.accent;
  if (bins) {
    for (const [number, share] of Object.entries(bins)) {
      const at = data.first + number * data.step;
      pen.globalAlpha = at + data.step / 2 > data.now ? 0.35 : 0.8;
      pen.fillRect(x(at), base - share * tall, Math.max(x(at + data.step) - x(at) - 0.5, 0.5), Math.max(share * tall, 0.5));
    }
  } else if (folded) {
    const gpus = data.hosts[row.host].gpus.length || 1;
    for (const block of row.blocks.filter((found) => found.lane < gpus && !found.kind)) {
      pen.globalAlpha = block.mine ? 0.95 : 0.6;
      const high = tall / gpus;
      const [start, end] = [x(block.from), x(block.to ?? data.now)];
      pen.fillStyle = tone(block)[0];
      pen.fillRect(start, 3 + block.lane * high, Math.max(end - start, 0.75), Math.max(high - 0.3, 0.6));
      if (block.to || !block.until) continue;
      pen.globalAlpha = 0.25;
      pen.fillRect(end, 3 + block.lane * high, Math.max(x(block.until) - end, 0), Math.max(high - 0.3, 0.6));
    }
  }
  pen.globalAlpha = 1;
}

const LIVE = new Set(["PLACED", "STARTING", "RUNNING", "STOPPING"]);

function tone(block) {
  if (block.kind) return [colours.amber, colours["amber-soft"]];
  const name = data.looks[block.state]?.tone ?? "grey";
  return [colours[name], colours[`${name}-soft`]];
}

const onlyMine = () => document.getElementById("timeline-mine").checked;

function topOf(row, block) {
  const lane = Math.min(block.lane, row.lanes - 1);
  return (row.host === null ? 4 : HOST) + lane * LANE;
}

function drawBlock(pen, row, block) {
  const end = block.to ?? (block.kind ? block.from : data.now);
  const last = Math.max(end, block.until ?? 0, block.likely?.[1] ?? 0);
  if (last < from || block.from > to) return;
  const [strong, soft] = tone(block);
  const [start, stop] = [x(Math.max(block.from, from - (to - from))), x(Math.min(end, to + (to - from)))];
  const top = topOf(row, block) + 1.5;
  const high = LANE - 3;
  pen.globalAlpha = onlyMine() && !block.mine ? 0.2 : 1;
  const wide = Math.max(stop - start, 1.5);
  pen.fillStyle = block.kind ? soft : LIVE.has(block.state) ? strong : soft;
  pen.fillRect(start, top, wide, high);
  if (!LIVE.has(block.state)) {
    pen.strokeStyle = strong;
    pen.setLineDash(block.kind ? [3, 2] : []);
    if (wide > 3) pen.strokeRect(start + 0.5, top + 0.5, wide - 1, high - 1);
    pen.setLineDash([]);
  } else if (!block.kind) {
    drawRest(pen, block, top, high, strong, soft);
  }
  if (block.mine) { pen.fillStyle = colours.ink; pen.fillRect(start, top + high - 1.5, wide, 1.5); }
  if (wide > 40) write(pen, block, start, top, wide, high);
  pen.globalAlpha = 1;
}

/** What is left of a live run: up to its limit, with its likely end. */
function drawRest(pen, block, top, high, strong, soft) {
  const begin = x(data.now);
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

function write(pen, block, start, top, wide, high) {
  const left = Math.max(start, 0) + 4;
  const room = Math.min(start + wide, width()) - left - 2;
  if (room < 24) return;
  pen.save();
  pen.beginPath();
  pen.rect(left, top, room, high);
  pen.clip();
  pen.font = "10.5px system-ui, sans-serif";
  pen.fillStyle = LIVE.has(block.state) && !block.kind ? colours["on-accent"] : colours.ink;
  pen.fillText(title(block), left, top + high - 3);
  pen.restore();
}

const title = (block) => `${block.name ?? block.owner} #${block.job}`;

// --- pointing ---

function at(row, event) {
  const box = row.canvas.getBoundingClientRect();
  const [left, top] = [event.clientX - box.left, event.clientY - box.top];
  if (row.host !== null && !row.open) return null;
  const hit = (block) => {
    const end = Math.max(block.to ?? 0, block.until ?? 0, block.to ? 0 : data.now, block.from);
    const y = topOf(row, block);
    return top >= y && top < y + LANE && left >= x(block.from) - 2 && left <= Math.max(x(end), x(block.from) + 4);
  };
  return row.blocks.findLast(hit) ?? null;
}

function hover(row, event) {
  if (drag?.moved) return;
  const block = at(row, event);
  const share = block ? null : shareAt(row, event);
  tip.hidden = !block && share === null;
  row.canvas.style.cursor = block && block.name !== null ? "pointer" : "";
  if (tip.hidden) return;
  tip.replaceChildren(...(block ? told(block) : [element("div", "", word("held", { percent: Math.round(share * 100) }))]).map((line) => (typeof line === "string" ? element("div", "", line) : line)));
  const box = root.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX - box.left + 12, box.width - tip.offsetWidth - 8)}px`;
  tip.style.top = `${event.clientY - box.top + 14}px`;
}

function shareAt(row, event) {
  const bins = row.host === null ? null : data.bins?.[row.host];
  if (!bins) return null;
  const moment = from + ((event.clientX - row.canvas.getBoundingClientRect().left) / width()) * (to - from);
  return bins[Math.floor((moment - data.first) / data.step)] ?? 0;
}

function told(block) {
  const lines = [element("strong", "", title(block)), `${block.owner} · ${block.kind ? word(block.kind) : data.looks[block.state].label}`];
  lines.push(`${word("from")} ${exactly(block.from * 1000)}`);
  if (block.to) lines.push(`${word("to")} ${exactly(block.to * 1000)} (${duration(block.to - block.from)})`);
  if (!block.to && block.until) lines.push(`${word("limit")} ${exactly(block.until * 1000)}`);
  if (block.likely) lines.push(`${word("likely")} ${exactly(block.likely[0] * 1000)} – ${exactly(block.likely[1] * 1000)}`);
  return lines;
}

const fingers = new Map(); // pointer id → x
let drag = null;

function grab(event) {
  if (event.button || !(event.target instanceof HTMLCanvasElement)) return;
  fingers.set(event.pointerId, event.clientX);
  drag = { at: event.clientX, from, to, moved: false, spread: spread(), target: event.target };
}

const spread = () => { const all = [...fingers.values()]; return all.length === 2 ? Math.abs(all[0] - all[1]) : 0; };

function pull(event) {
  if (!drag || !fingers.has(event.pointerId)) return;
  fingers.set(event.pointerId, event.clientX);
  const now = spread();
  if (now && drag.spread) {
    const middle = (drag.from + drag.to) / 2;
    const half = ((drag.to - drag.from) / 2) * (drag.spread / Math.max(now, 10));
    drag.moved = true;
    show(middle - half, middle + half);
    return;
  }
  const by = ((event.clientX - drag.at) / width()) * (drag.to - drag.from);
  if (!drag.moved && Math.abs(event.clientX - drag.at) < 4) return;
  if (!drag.moved) body.setPointerCapture(event.pointerId);
  drag.moved = true;
  tip.hidden = true;
  show(drag.from - by, drag.to - by);
}

function drop(event) {
  if (!fingers.delete(event.pointerId)) return;
  const was = drag;
  drag = null;
  if (!was || was.moved || event.type !== "pointerup") return;
  const row = rows.find((found) => found.canvas === was.target);
  const block = row && at(row, event);
  if (block && block.name !== null) location.assign(`/jobs/${block.job}/`);
  else if (row && row.host !== null && !row.open && !data.bins) { row.open = true; size(row); draw(row); }
}

function wheel(event) {
  if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && !event.shiftKey) return;
  event.preventDefault();
  const by = event.shiftKey ? event.deltaY : event.deltaX;
  if (event.ctrlKey || event.metaKey) {
    const left = event.clientX - axis.getBoundingClientRect().left;
    zoom(Math.exp(event.deltaY / 300), from + (left / width()) * (to - from));
  } else {
    move(by / width());
  }
}

// --- the window ---

function show(begin, end) {
  const wide = Math.min(Math.max(end - begin, SHORTEST), LONGEST);
  const middle = (begin + end) / 2;
  [from, to] = [middle - wide / 2, middle + wide / 2];
  requestAnimationFrame(drawAll);
  ask(250);
}

const move = (part) => show(from + part * (to - from), to + part * (to - from));

function zoom(by, around = (from + to) / 2) {
  const wide = Math.min(Math.max((to - from) * by, SHORTEST), LONGEST);
  const part = (around - from) / (to - from);
  show(around - part * wide, around + (1 - part) * wide);
}

function wind(hours) {
  const now = serverNow() / 1000;
  const inside = now > from && now < to;
  const middle = inside ? now : (from + to) / 2;
  const ahead = hours <= 24 ? 0.5 : 0.15;
  show(middle - hours * 3600 * (1 - ahead), middle + hours * 3600 * ahead);
}

function toNow() {
  const wide = to - from;
  show(serverNow() / 1000 - wide / 2, serverNow() / 1000 + wide / 2);
}

const GO = { back: () => move(-0.5), on: () => move(0.5), now: toNow, in: () => zoom(0.5), out: () => zoom(2) };
const KEYS = { ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": GO.in, "=": GO.in, "-": GO.out, n: toNow };

function key(event) {
  if (event.target !== body || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
  event.preventDefault();
  event.stopPropagation();
  KEYS[event.key]();
}

function say() {
  const text = `${exactly(from * 1000)} – ${exactly(to * 1000)}`;
  const shown = document.getElementById("timeline-window");
  if (shown.textContent !== text) shown.textContent = text;
  root.querySelectorAll("[data-hours]").forEach((button) => button.setAttribute("aria-pressed", String(Math.abs((to - from) / 3600 / button.dataset.hours - 1) < 0.02)));
}

// --- data ---

let timer = 0;
let asked = 0;

function ask(delay) {
  clearTimeout(timer);
  timer = setTimeout(load, delay);
}

/** What the window needs, and as much again on both sides where it is short, so that a small move shows no gap. */
async function load() {
  const number = ++asked;
  const around = to - from < 14 * 86400 / 3 ? (to - from) / 2 : 0;
  const query = `from=${(from - around).toFixed(0)}&to=${(to + around).toFixed(0)}`;
  history.replaceState(null, "", `?from=${from.toFixed(0)}&to=${to.toFixed(0)}`);
  const answer = await fetch(`/timeline/data.json?${query}`).catch(() => null);
  if (!answer?.ok || answer.redirected || number !== asked) return;
  const found = await answer.json();
  if (number !== asked) return;
  take(found);
  const table = document.getElementById("timeline-table");
  if (table.open) loadTable();
}

async function loadTable() {
  const answer = await fetch(`/timeline/?table=1&from=${from.toFixed(0)}&to=${to.toFixed(0)}`).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const shown = document.getElementById("timeline-rows");
  shown.innerHTML = await answer.text();
  showTimes(shown);
}

function take(found) {
  const same = found.hosts.map((host) => host.name).join() === data.hosts.map((host) => host.name).join();
  data = found;
  setServerTime(found.now);
  if (!same) build();
  layout();
}

function layout() {
  for (const row of rows) {
    arrange(row);
    row.head.title = row.host === null ? "" : data.hosts[row.host].closed;
    row.head.classList.toggle("is-closed", row.host !== null && Boolean(data.hosts[row.host].closed));
    size(row);
  }
  drawAll();
}

root.hidden = false;
readColours();
setServerTime(data.now);
build();
layout();
history.replaceState(null, "", `?from=${from.toFixed(0)}&to=${to.toFixed(0)}`);
root.querySelectorAll("[data-go]").forEach((button) => button.addEventListener("click", GO[button.dataset.go]));
root.querySelectorAll("[data-hours]").forEach((button) => button.addEventListener("click", () => wind(Number(button.dataset.hours))));
document.getElementById("timeline-mine").addEventListener("change", drawAll);
document.getElementById("timeline-table").addEventListener("toggle", (event) => event.target.open && loadTable());
body.addEventListener("keydown", key);
body.addEventListener("pointerdown", grab);
body.addEventListener("pointermove", pull);
body.addEventListener("pointerup", drop);
body.addEventListener("pointercancel", drop);
body.addEventListener("wheel", wheel, { passive: false });
document.addEventListener("dockyard:theme", () => { readColours(); drawAll(); });
new ResizeObserver(() => { rows.forEach(size); drawAll(); }).observe(body);
let changed = 0;
document.body.addEventListener("dockyard:changed", () => { if (Date.now() - changed > 5000) { changed = Date.now(); ask(0); } });
setInterval(() => !document.hidden && ask(0), REFRESH);
setInterval(() => !document.hidden && drawAll(), 10000);
