// The timeline of hosts and GPUs: canvases drawn only where they are seen, one window of time for all of them.
import "./styles/timeline.css";
import { draw, drawAxis } from "./timelinedraw.js";
import { hideTip, hover, leads, markAt } from "./timelinepoint.js";
import { arrange, build, size } from "./timelinerows.js";
import { LONGEST, SHORTEST, axis, body, measure, readColours, root, view, width } from "./timelineview.js";
import { exactly, serverNow, setServerTime, showTimes } from "./times.js";

const REFRESH = 30000;

// --- drawing ---

const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const row = view.rows.find((found) => found.box === entry.target);
    if (!row) continue;
    row.seen = entry.isIntersecting;
    if (row.seen && row.stale) draw(row);
  }
}, { rootMargin: "200px" });

const ON = {
  toggled: (row) => { size(row); draw(row); },
  watch: (row) => watch.observe(row.box),
  hover: (row, event) => !drag?.moved && hover(row, event),
  leave: hideTip,
};

function drawAll() {
  drawAxis();
  for (const row of view.rows) {
    row.stale = true;
    if (row.seen) draw(row);
  }
  say();
}

// --- pointing ---

const fingers = new Map(); // pointer id → x
let drag = null;

function grab(event) {
  if (event.button || !(event.target instanceof HTMLCanvasElement)) return;
  fingers.set(event.pointerId, event.clientX);
  drag = { at: event.clientX, from: view.from, to: view.to, moved: false, spread: spread(), target: event.target };
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
  hideTip();
  show(drag.from - by, drag.to - by);
}

function drop(event) {
  if (!fingers.delete(event.pointerId)) return;
  const was = drag;
  drag = null;
  if (!was || was.moved || event.type !== "pointerup") return;
  const row = view.rows.find((found) => found.canvas === was.target);
  const mark = row && markAt(row, event);
  if (mark && leads(mark)) go(mark.blocks);
  else if (row && row.host !== null && !row.open && !view.data.bins) { row.open = true; size(row); draw(row); }
}

/** To the job of a block; of several, so close that they part. */
function go(blocks) {
  if (blocks.length === 1) { location.assign(`/jobs/${blocks[0].job}/`); return; }
  const [first, last] = [Math.min(...blocks.map((block) => block.from)), Math.max(...blocks.map((block) => block.to))];
  const spare = Math.max((last - first) * 0.1, 1);
  show(first - spare, last + spare);
}

function wheel(event) {
  if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && !event.shiftKey) return;
  event.preventDefault();
  const by = event.shiftKey ? event.deltaY : event.deltaX;
  if (event.ctrlKey || event.metaKey) {
    const left = event.clientX - axis.getBoundingClientRect().left;
    zoom(Math.exp(event.deltaY / 300), view.from + (left / width()) * (view.to - view.from));
  } else {
    move(by / width());
  }
}

// --- the window ---

function show(begin, end) {
  const wide = Math.min(Math.max(end - begin, SHORTEST), LONGEST);
  const middle = (begin + end) / 2;
  [view.from, view.to] = [middle - wide / 2, middle + wide / 2];
  requestAnimationFrame(drawAll);
  ask(250);
}

const move = (part) => show(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));

function zoom(by, around = (view.from + view.to) / 2) {
  const wide = Math.min(Math.max((view.to - view.from) * by, SHORTEST), LONGEST);
  const part = (around - view.from) / (view.to - view.from);
  show(around - part * wide, around + (1 - part) * wide);
}

function wind(hours) {
  const now = serverNow() / 1000;
  const inside = now > view.from && now < view.to;
  const middle = inside ? now : (view.from + view.to) / 2;
  const ahead = hours <= 24 ? 0.5 : 0.15;
  show(middle - hours * 3600 * (1 - ahead), middle + hours * 3600 * ahead);
}

function toNow() {
  const wide = view.to - view.from;
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
  const text = `${exactly(view.from * 1000)} – ${exactly(view.to * 1000)}`;
  const shown = document.getElementById("timeline-window");
  if (shown.textContent !== text) shown.textContent = text;
  root.querySelectorAll("[data-hours]").forEach((button) => button.setAttribute("aria-pressed", String(Math.abs((view.to - view.from) / 3600 / button.dataset.hours - 1) < 0.02)));
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
  const around = view.to - view.from < 14 * 86400 / 3 ? (view.to - view.from) / 2 : 0;
  const query = `from=${(view.from - around).toFixed(0)}&to=${(view.to + around).toFixed(0)}`;
  history.replaceState(null, "", `?from=${view.from.toFixed(0)}&to=${view.to.toFixed(0)}`);
  const answer = await fetch(`/timeline/data.json?${query}`).catch(() => null);
  if (!answer?.ok || answer.redirected || number !== asked) return;
  const found = await answer.json();
  if (number !== asked) return;
  take(found);
  const table = document.getElementById("timeline-table");
  if (table.open) loadTable();
}

async function loadTable() {
  const answer = await fetch(`/timeline/?table=1&from=${view.from.toFixed(0)}&to=${view.to.toFixed(0)}`).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const shown = document.getElementById("timeline-rows");
  shown.innerHTML = await answer.text();
  showTimes(shown);
}

function take(found) {
  const same = found.hosts.map((host) => host.name).join() === view.data.hosts.map((host) => host.name).join();
  view.data = found;
  setServerTime(found.now);
  if (!same) build(ON);
  layout();
}

function layout() {
  for (const row of view.rows) {
    arrange(row);
    row.head.title = row.host === null ? "" : view.data.hosts[row.host].closed;
    row.head.classList.toggle("is-closed", row.host !== null && Boolean(view.data.hosts[row.host].closed));
    size(row);
  }
  drawAll();
}

root.hidden = false;
measure();
readColours();
setServerTime(view.data.now);
build(ON);
layout();
history.replaceState(null, "", `?from=${view.from.toFixed(0)}&to=${view.to.toFixed(0)}`);
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
new ResizeObserver(() => { measure(); view.rows.forEach(size); drawAll(); }).observe(body);
let changed = 0;
document.body.addEventListener("dockyard:changed", () => { if (Date.now() - changed > 5000) { changed = Date.now(); ask(0); } });
setInterval(() => !document.hidden && ask(0), REFRESH);
setInterval(() => !document.hidden && drawAll(), 10000);
