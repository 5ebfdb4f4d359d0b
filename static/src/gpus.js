// The GPUs page: every tile follows its node's readings, once a second.
import "./styles/gpus.css";
import { down, heard, isDeaf, out, pinged } from "./live.js";
import { fillGpu, memory, showAge } from "./readings.js";
import { Socket } from "./socket.js";
import { serverNow, setServerTime } from "./times.js";
import { word } from "./words.js";

const LINE_SECONDS = 300;
const GAP = 10; // seconds
const POLL = 3000;
const first = JSON.parse(document.getElementById("gpus-data").textContent);
const nodes = new Map(); // name → {at, gpus: Map(uuid → gpu)}
const lines = new Map(); // uuid → [[at, utilisation], …]

const BY_READING = new Set(["GPU_UNSAMPLED", "DRIVER", "GPU_UNHEALTHY", "GPU_BUSY_OUTSIDE"]); // a newer reading decides

const byId = (uuid) => document.getElementById(uuid);

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

const icon = (name) => {
  const made = element("i", `bi ${name}`);
  made.setAttribute("aria-hidden", "true");
  return made;
};

/** What the GPU is to who looks for one. Free is only what a fresh reading shows to be free. */
function kind(gpu, node) {
  const why = gpu.unavailable?.code;
  if (gpu.health !== "ok" && gpu.health !== "unknown") return "sick";
  if (gpu.job) return "used";
  if (gpu.hidden) return "hidden";
  if (gpu.busy_outside) return "outside";
  if (why && why !== "GPU_UNSAMPLED") return "closed";
  if (why || !node.at || serverNow() / 1000 - node.at > first.fresh) return "unknown";
  return node.host?.cordoned ? "cordoned" : "free";
}

/** Whose the GPU is, each owner once: several where it is shared. */
const owners = (gpu) => [...new Set((gpu.holders ?? []).map((held) => held.owner))].join(", ");

/** Whose the GPU is, as a chip: colour, icon and word. */
const CHIPS = {
  sick: (gpu) => ["tone-red", "bi-exclamation-octagon-fill", word(`health ${gpu.health}`)],
  used: (gpu) => ["tone-accent", "bi-play-circle-fill", owners(gpu) || word("in use")],
  hidden: () => ["tone-grey", "bi-eye-slash", word("why GPU_HIDDEN")],
  outside: () => ["tone-violet", "bi-person-exclamation", word("busy outside")],
  closed: (gpu) => ["tone-orange", "bi-sign-stop", word(`why ${gpu.unavailable.code}`)],
  cordoned: () => ["tone-orange", "bi-sign-stop", word("cordoned")],
  unknown: () => ["tone-grey", "bi-question-circle", word("no chart")],
  free: () => ["tone-green", "bi-check-circle", word("free")],
};

function fillHolder(tile, gpu, node) {
  const [tone, name, text] = CHIPS[kind(gpu, node)](gpu);
  const place = tile.querySelector('[data-bind="holder"]');
  if (place.dataset.said === `${tone} ${text}`) return;
  place.dataset.said = `${tone} ${text}`;
  place.className = `state ${tone}`;
  place.replaceChildren(icon(name), element("span", "", text));
}

/** A GPU that is hidden and still has a job says both. */
function fillMark(tile, gpu, node) {
  tile.querySelector('[data-bind="hidden"]').hidden = !gpu.hidden || kind(gpu, node) === "hidden";
}

function fillFoot(tile, gpu) {
  const place = tile.querySelector('[data-bind="foot"]');
  const held = gpu.holders ?? [];
  const said = held.length ? JSON.stringify(held) : gpu.message || gpu.unavailable?.why || "";
  if (place.dataset.said === said) return;
  place.dataset.said = said;
  place.replaceChildren(...(held.length ? held.map(holder) : [said]));
}

/** A job that the GPU is given to. Whoever may not see the job has no use for its address. */
function holder({ job, job_name: name }) {
  if (!name) return element("div", "", word("job", { id: job }));
  const link = element("a", "", element("bdi", "", name));
  link.href = `/jobs/${job}/`;
  return element("div", "", link, ` #${job}`);
}

/** A process; of the only job that holds the GPU it need not say whose it is. */
function process(found, job) {
  const who = found.job ? word("job", { id: found.job }) : found.user ?? found.owner ?? word("somebody");
  const row = element("li", `is-${found.kind}`);
  const said = found.job && found.job === job ? [found.name ?? word("a process")] : [found.name, who];
  const name = element("span", "", said.filter(Boolean).join(" · "));
  if (found.pid) name.title = `PID ${found.pid}`;
  row.append(icon(found.kind === "foreign" ? "bi-person-exclamation" : "bi-terminal"), name, element("span", "gpu-value", memory(found.memory_mib)));
  return row;
}

function fillProcesses(tile, gpu) {
  const list = tile.querySelector('[data-bind="processes"]');
  const shown = gpu.processes ?? [];
  const only = (gpu.holders ?? []).length > 1 ? null : gpu.job;
  const said = JSON.stringify([only, shown]);
  if (list.dataset.said === said) return;
  list.dataset.said = said;
  list.hidden = !shown.length;
  list.replaceChildren(...shown.slice(0, 8).map((found) => process(found, only)));
  if (shown.length > 8) list.append(element("li", "", word("more", { count: shown.length - 8 })));
}

function spark(uuid) {
  const tile = byId(uuid);
  if (!tile) return;
  const pieces = read(lines.get(uuid) ?? []);
  const drawn = pieces.map((points) => points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L"));
  tile.querySelector(".spark-line").setAttribute("d", drawn.map((piece) => `M${piece}`).join(""));
  const closed = drawn.map((piece, i) => `M${piece}L${pieces[i].at(-1)[0].toFixed(1)} 40L${pieces[i][0][0].toFixed(1)} 40Z`);
  tile.querySelector(".spark-fill").setAttribute("d", closed.join(""));
}

/** The points of a line, 150 by 40, in pieces: none goes through what was not read. */
function read(samples) {
  const end = samples.at(-1)?.[0] ?? 0;
  const pieces = [];
  let before = -Infinity;
  for (const [at, value] of samples) {
    const x = 150 - ((end - at) * 150) / LINE_SECONDS;
    if (value === null || value === undefined) before = -Infinity;
    if (x < 0 || value === null || value === undefined) continue;
    if (at - before > GAP) pieces.push([]);
    pieces.at(-1).push([x, 38.5 - value * 0.37]);
    before = at;
  }
  return pieces;
}

function take(reading, live) {
  const known = nodes.get(reading.node) ?? { at: null, gpus: new Map() };
  nodes.set(reading.node, known);
  if (reading.at && known.at && reading.at < known.at) return;
  const blind = !reading.at && known.at; // what was read last stays, with its age
  known.at = reading.at ?? known.at;
  known.host = reading.host ?? known.host;
  if (reading.host) dropOthers(known, reading.gpus);
  for (const gpu of reading.gpus) {
    const tile = byId(gpu.uuid);
    if (!tile) { again(); continue; }
    const { job, holders, unavailable } = gpu;
    const whole = { ...known.gpus.get(gpu.uuid), ...(blind ? { job, holders, unavailable } : gpu) };
    if (live && !("unavailable" in gpu) && BY_READING.has(whole.unavailable?.code)) whole.unavailable = null;
    known.gpus.set(gpu.uuid, whole);
    fillGpu(tile, whole);
    fillHolder(tile, whole, known);
    fillMark(tile, whole, known);
    fillFoot(tile, whole);
    fillProcesses(tile, whole);
    if (live && reading.at) push(gpu.uuid, reading.at, gpu.utilisation);
  }
  const section = document.querySelector(`[data-node="${CSS.escape(reading.node)}"]`);
  if (!section) { again(); return; }
  const note = section.querySelector('[data-bind="message"]');
  note.hidden = !reading.message;
  note.textContent = reading.message ?? "";
}

/** What a whole account of a host leaves out is no longer this reader's to see: a hidden GPU whose job has ended. */
function dropOthers(known, gpus) {
  const told = new Set(gpus.map((gpu) => gpu.uuid));
  for (const uuid of [...known.gpus.keys()].filter((uuid) => !told.has(uuid))) {
    known.gpus.delete(uuid);
    byId(uuid)?.remove();
  }
}

function push(uuid, at, value) {
  const samples = lines.get(uuid) ?? [];
  if (samples.length && samples.at(-1)[0] >= at) return;
  samples.push([at, value ?? null]);
  while (samples.length && samples[0][0] < at - LINE_SECONDS) samples.shift();
  lines.set(uuid, samples);
  spark(uuid);
}

/** A host or GPU that this page does not have: the whole page anew, not more than once in ten seconds. */
let leaving = false;
function again() {
  if (leaving) return;
  leaving = true;
  setTimeout(() => location.reload(), 10000);
}

function totals() {
  const all = [...nodes.values()].flatMap((node) => [...node.gpus.values()].map((gpu) => kind(gpu, node)));
  const of = (...kinds) => all.filter((found) => kinds.includes(found)).length;
  const parts = [word("gpus used", { count: of("used") }), word("gpus free", { count: of("free") })];
  for (const [name, count] of [["unknown", of("unknown")], ["hidden", of("hidden")]]) {
    if (count) parts.push(word(`gpus ${name}`, { count }));
  }
  parts.push(word("gpus all", { count: all.length - of("hidden") }));
  const said = all.length ? parts.join(" · ") : "";
  const place = document.getElementById("gpu-totals");
  if (place.textContent !== said) place.textContent = said;
}

function ages() {
  nodes.forEach((node, name) => {
    const section = document.querySelector(`[data-node="${CSS.escape(name)}"]`);
    if (section) showAge(section, node.at);
    node.gpus.forEach((gpu, uuid) => byId(uuid) && fillHolder(byId(uuid), gpu, node));
  });
  totals();
}

async function ask(path) {
  const answer = await fetch(path).catch(() => null);
  if (answer?.redirected) out();
  return answer?.ok && !answer.redirected ? answer.json() : null;
}

async function sparklines() {
  const found = await ask("/gpus/recent.json");
  if (!found) return;
  for (const [uuid, samples] of Object.entries(found.gpus)) {
    lines.set(uuid, samples);
    spark(uuid);
  }
}

async function poll() {
  if ((socket.isOpen && !isDeaf()) || document.hidden) return;
  const found = await ask("/gpus/now.json");
  if (!found) return;
  heard(socket.isOpen ? "live" : "polling");
  setServerTime(found.server_time);
  found.nodes.forEach((node) => take(node, true));
  ages();
}

setServerTime(first.server_time);
first.nodes.forEach((node) => take(node, false));
ages();
sparklines();
const socket = new Socket("/ws/gpus/", {
  check: "/gpus/now.json",
  open: () => { heard(); sparklines(); },
  text: (message) => {
    if (message.ping) { setServerTime(message.ping); pinged(message); }
    heard();
    message.nodes?.forEach((node) => take(node, true));
    ages();
  },
  down,
  final: out,
});
setInterval(ages, 1000);
setInterval(poll, POLL);
setTimeout(poll, 1500);
