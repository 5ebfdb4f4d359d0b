// The GPUs page: tiles and a table that follow every node's readings, once a second.
import "./styles/gpus.css";
import { chip, fill, kind, make, words } from "./gpucards.js";
import { down, heard, isDeaf, out, pinged } from "./live.js";
import { showAge } from "./readings.js";
import { Socket } from "./socket.js";
import { serverNow, setServerTime } from "./times.js";
import { word } from "./words.js";

const LINE_SECONDS = 300;
const GAP = 10; // seconds
const POLL = 3000;
const VIEW = "dockyard-gpus-view";
const first = JSON.parse(document.getElementById("gpus-data").textContent);
const nodes = new Map(); // name → {at, host, gpus: Map(uuid → gpu)}
const lines = new Map(); // uuid → [[at, utilisation], …]
const tiles = new Map(); // uuid → its tile
const rows = new Map(); // uuid → its row, while the table is shown

const BY_READING = new Set(["GPU_UNSAMPLED", "DRIVER", "GPU_UNHEALTHY", "GPU_BUSY_OUTSIDE"]); // a newer reading decides

const BLIND = new Set(["hung", "error", "driver_mismatch", "no_driver", "no_library", "unknown"]); // a reading of no GPU

const table = document.getElementById("gpu-table");
const search = document.getElementById("gpu-search");
const isTable = () => !table.hidden;
const sectionOf = (name) => document.querySelector(`[data-node="${CSS.escape(name)}"]`);

// --- lines of the last minutes ---

function spark(uuid) {
  const tile = tiles.get(uuid);
  if (!tile || isTable()) return;
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

function push(uuid, at, value) {
  const samples = lines.get(uuid) ?? [];
  if (samples.length && samples.at(-1)[0] >= at) return;
  samples.push([at, value ?? null]);
  while (samples.length && samples[0][0] < at - LINE_SECONDS) samples.shift();
  lines.set(uuid, samples);
  spark(uuid);
}

// --- readings ---

function take(reading, live) {
  const section = sectionOf(reading.node);
  if (!section) { again(); return; }
  const known = nodes.get(reading.node) ?? { at: null, gpus: new Map() };
  nodes.set(reading.node, known);
  if (reading.at && known.at && reading.at < known.at) return;
  const read = reading.at && !BLIND.has(reading.status);
  const blind = !read && known.at; // what was read last stays, with its age
  if (read) known.at = reading.at;
  known.host = reading.host ?? known.host;
  if (reading.host) dropOthers(known, reading.gpus);
  for (const gpu of reading.gpus) {
    const { job, holders, unavailable } = gpu;
    const whole = { ...known.gpus.get(gpu.uuid), ...(blind ? { job, holders, unavailable } : gpu) };
    if (live && !("unavailable" in gpu) && BY_READING.has(whole.unavailable?.code)) whole.unavailable = null;
    known.gpus.set(gpu.uuid, whole);
    tileOf(whole, reading.node, section);
    show(gpu.uuid, whole, known);
    if (live && read) push(gpu.uuid, reading.at, gpu.utilisation);
  }
  if (live && reading.at && reading.status) hostState(section, reading.status);
  section.querySelector('[data-bind="none"]').hidden = known.gpus.size > 0;
  const note = section.querySelector('[data-bind="message"]');
  note.hidden = !reading.message;
  note.textContent = reading.message ?? "";
}

/** What the host's last reading says of its driver: whoever is read is alive. */
function hostState(section, status) {
  const place = section.querySelector('[data-bind="host"]');
  const [tone, name] = { ok: ["green", "bi-check-circle"], simulated: ["green", "bi-check-circle"], no_gpu: ["grey", "bi-dash-circle"] }[status] ?? ["red", "bi-exclamation-octagon"];
  const label = first.statuses[status] ?? status;
  if (place.textContent === label) return;
  place.className = `state tone-${tone}`;
  place.querySelector(".bi").className = `bi ${name}`;
  place.querySelector("span").textContent = label;
}

function tileOf(gpu, nodeName, section) {
  if (tiles.has(gpu.uuid)) return;
  const tile = make("gpu-tile", gpu, nodeName);
  section.querySelector(".gpu-grid").append(tile);
  tiles.set(gpu.uuid, tile);
  if (isTable()) rowOf(gpu, nodeName);
}

function rowOf(gpu, nodeName) {
  const row = make("gpu-row", gpu, nodeName);
  row.dataset.href = `#${gpu.uuid}`;
  table.querySelector("tbody").append(row);
  rows.set(gpu.uuid, row);
}

/** Only what is on the screen is kept up: the other is filled when it is shown. */
function show(uuid, gpu, node) {
  const place = isTable() ? rows.get(uuid) : tiles.get(uuid);
  if (place) fill(place, gpu, node, first.fresh);
}

/** What a whole account of a host leaves out is no longer this reader's to see: a hidden GPU whose job has ended. */
function dropOthers(known, gpus) {
  const told = new Set(gpus.map((gpu) => gpu.uuid));
  for (const uuid of [...known.gpus.keys()].filter((found) => !told.has(found))) {
    known.gpus.delete(uuid);
    for (const places of [tiles, rows]) { places.get(uuid)?.remove(); places.delete(uuid); }
  }
}

/** A host that this page does not have: the whole page anew, not more than once in ten seconds. */
let leaving = false;
function again() {
  if (leaving) return;
  leaving = true;
  setTimeout(() => location.reload(), 10000);
}

// --- what moves by itself ---

function totals() {
  const all = [...nodes.values()].flatMap((node) => [...node.gpus.values()].map((gpu) => kind(gpu, node, first.fresh)));
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
  const places = isTable() ? rows : tiles;
  nodes.forEach((node, name) => {
    const section = sectionOf(name);
    if (section) showAge(section, node.at);
    node.gpus.forEach((gpu, uuid) => {
      const place = places.get(uuid);
      if (!place) return;
      chip(place, gpu, node, first.fresh);
      if (isTable()) showAge(place, node.at);
    });
  });
  totals();
}

// --- views ---

function setView(name) {
  table.hidden = name !== "table";
  document.getElementById("gpu-nodes").classList.toggle("is-table", isTable());
  document.querySelectorAll("[data-view]").forEach((button) => {
    button.classList.toggle("active", button.dataset.view === name);
    button.setAttribute("aria-pressed", button.dataset.view === name);
  });
  nodes.forEach((node, nodeName) => node.gpus.forEach((gpu, uuid) => {
    if (isTable() && !rows.has(uuid)) rowOf(gpu, nodeName);
    show(uuid, gpu, node);
    spark(uuid);
  }));
  find();
  ages();
}

/** Show only what matches the search; a host with nothing left goes too. */
function find() {
  const wanted = search.value.trim().toLowerCase();
  nodes.forEach((node, name) => {
    let left = 0;
    node.gpus.forEach((gpu, uuid) => {
      const hit = !wanted || words(gpu, name, node, first.fresh).includes(wanted);
      left += hit;
      for (const place of [tiles.get(uuid), rows.get(uuid)]) if (place) place.hidden = !hit;
    });
    const section = sectionOf(name);
    if (section) section.hidden = Boolean(wanted) && !left && !name.includes(wanted);
  });
}

const SORTS = {
  host: (gpu, name) => `${name}/${String(gpu.index).padStart(3, "0")}`, model: (gpu) => gpu.model,
  holder: (gpu) => gpu.owner ?? "", utilisation: (gpu) => gpu.utilisation ?? -1, memory: (gpu) => gpu.memory_used_mib ?? -1,
  power: (gpu) => gpu.power_w ?? -1, temperature: (gpu) => gpu.temperature_c ?? -1,
};

/** Sort once, by what is known now: rows that moved by themselves could not be read. */
function sort(header) {
  const by = SORTS[header.dataset.sort];
  const up = header.getAttribute("aria-sort") !== "ascending";
  table.querySelectorAll("[data-sort]").forEach((other) => other.removeAttribute("aria-sort"));
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  const all = [...nodes].flatMap(([name, node]) => [...node.gpus.values()].map((gpu) => [by(gpu, name), rows.get(gpu.uuid)]));
  all.sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0) * (up ? 1 : -1));
  table.querySelector("tbody").append(...all.map(([, row]) => row).filter(Boolean));
}

/** The GPU or host that the address names: its tile came after the browser looked for it. */
function target() {
  const found = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  document.querySelectorAll(".is-target").forEach((other) => other.classList.remove("is-target"));
  if (!found) return;
  if (found.matches(".gpu")) { setView("tiles"); found.classList.add("is-target"); }
  found.scrollIntoView();
}

// --- the line ---

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
setView(localStorage.getItem(VIEW) === "table" ? "table" : "tiles");
target();
sparklines();
search.addEventListener("input", find);
addEventListener("hashchange", target);
document.querySelectorAll("[data-view]").forEach((button) => button.addEventListener("click", () => {
  localStorage.setItem(VIEW, button.dataset.view);
  setView(button.dataset.view);
}));
table.querySelectorAll("[data-sort] button").forEach((button) => button.addEventListener("click", () => sort(button.closest("[data-sort]"))));
const socket = new Socket("/ws/gpus/", {
  check: "/gpus/now.json",
  open: () => sparklines(),
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
