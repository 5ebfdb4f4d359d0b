// A job's page: its head follows the state, its log the bytes, its charts the readings; by socket, else by polling.
import Tab from "bootstrap/js/dist/tab.js";
import "./styles/job.css";
import "./styles/log.css";
import { Charts } from "./charts.js";
import { down, heard, isDeaf, out, pinged } from "./live.js";
import { LogView } from "./log.js";
import { Metrics, showOutput } from "./output.js";
import { fillGpu, memory, showAge } from "./readings.js";
import { Socket } from "./socket.js";
import { startSplit } from "./split.js";
import { serverNow, setServerTime, showTimes } from "./times.js";

const POLL = 3000;
const page = JSON.parse(document.getElementById("job-data").textContent);
let version = page.status.version;
let readAt = null;
let fetching = false;
let isStale = false; // told of what the answer that is on its way may not have yet

const socket = new Socket(`/ws/jobs/${page.id}/`, {
  check: `${page.url}status.json`,
  open: () => log.resume(),
  text: (message) => {
    if (message.ping) { setServerTime(message.ping); pinged(message); }
    heard();
    if (message.job) setStatus(message.job);
    if (message.log) log.setHead(message.log);
    if (message.gpus) setReadings(message.gpus);
  },
  bytes: (buffer) => { heard(); log.frame(buffer); },
  down,
  final: out,
});
const log = new LogView(page.url, (message) => socket.send(message));
const charts = new Charts(page.url);
let isLive = page.status.is_live;
const metrics = new Metrics(page.url, () => isLive);

function setStatus(status) {
  setServerTime(status.server_time);
  log.setState(status);
  if (status.log) log.setHead(status.log);
  bind("place", status.place?.text);
  bind("ahead", status.place && (status.place.ahead?.text ?? " "));
  bind("sentence", status.headline);
  setProgress(status.progress);
  showOutput(status.output);
  isLive = status.is_live;
  if (status.version !== version) refresh();
  if (status.is_ended) metrics.last();
}

function bind(name, text) {
  if (text) document.querySelectorAll(`#job-head [data-bind="${name}"]`).forEach((place) => (place.textContent = text));
}

function setProgress(progress) {
  const bar = document.querySelector('#job-head [data-bind="progress"]');
  if (!bar || !progress) return;
  const known = progress.percent !== null;
  bar.classList.toggle("progress-bar-animated", !known);
  bar.classList.toggle("progress-bar-striped", !known);
  bar.classList.toggle("w-100", !known);
  if (!known) return;
  bar.style.width = `${progress.percent}%`;
  bar.parentElement.setAttribute("aria-valuenow", progress.percent);
}

const stateShown = () => document.querySelector("#job-head .state")?.textContent ?? "";

/** Put the parts that follow the state in place anew, and once more for what was told meanwhile. */
async function refresh() {
  isStale = true;
  if (fetching) return;
  fetching = true;
  try {
    while (isStale) {
      isStale = false;
      await renew();
    }
  } finally {
    fetching = false;
  }
}

/** What is focused, unfolded or typed in stays so. Where the server is away, it is asked again. */
async function renew() {
  const answer = await fetch(`${page.url}?part=head`).catch(() => null);
  if (!answer || answer.status >= 500) setTimeout(refresh, POLL);
  if (!answer?.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const focused = document.activeElement?.id;
  const before = stateShown();
  const unfolded = [...document.querySelectorAll("details[open][id]")].map((details) => details.id);
  const typed = [...document.querySelectorAll("#job-head details[open] :is(input, select)[id]")];
  fresh.querySelectorAll("[data-part]").forEach(replace);
  unfolded.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
  typed.forEach(({ id, value }) => document.getElementById(id) && (document.getElementById(id).value = value));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  version = document.getElementById("job-head").dataset.version;
  const runs = Number(document.getElementById("runs").dataset.count);
  document.getElementById("runs-tab-item").hidden = runs < 2;
  log.runsChanged();
  if (stateShown() !== before) document.getElementById("announcer").textContent = stateShown();
  showTimes();
  ticks();
  if (readings) setReadings(readings);
  filesAreOld = true;
  loadFiles();
  lookAgain();
}

/** What a job used is written a moment after its end. */
function lookAgain() {
  if (document.querySelector("#job-use [data-again]")) setTimeout(refresh, 3000);
}

function replace(part) {
  const old = document.getElementById(part.id);
  if (old && !old.isEqualNode(part)) old.replaceWith(document.adoptNode(part));
}

let readings = null;
const openedAt = Date.now();
const GRACE = 3000; // the first reading of a page without any may take that long before its absence is said

function setReadings(found) {
  readings = found;
  readAt = found.at;
  for (const gpu of found.gpus) {
    document.querySelectorAll(`#job-use [data-gpu="${CSS.escape(gpu.uuid)}"]`).forEach((element) => fillGpu(element, gpu));
  }
  const container = found.containers?.[0];
  put("cpu", container?.cpu_percent, (value) => `${Math.round(value)} %`);
  put("ram", container?.memory_mib, (value, place) => `${memory(value)} / ${memory(Number(place.dataset.limitMib))}`);
  charts.add(found);
  ticks();
}

function put(name, value, say) {
  const place = document.querySelector(`#job-head [data-bind="${name}"]`);
  if (!place) return;
  document.querySelector(`#job-head [data-bind="${name}-box"]`).hidden = value === null || value === undefined;
  if (value !== null && value !== undefined) place.textContent = say(value, place);
}

/** What moves by itself, by the server's clock. */
function ticks() {
  document.querySelectorAll("#job-head [data-from]").forEach((bar) => {
    const [from, to] = [Date.parse(bar.dataset.from), Date.parse(bar.dataset.to)];
    const percent = Math.min(100, Math.max(0, (100 * (serverNow() - from)) / (to - from)));
    bar.style.width = `${percent}%`;
    bar.classList.toggle("is-late", percent > 90);
    bar.parentElement.setAttribute("aria-valuenow", Math.round(percent));
  });
  document.querySelectorAll("#job-use [data-gpu]").forEach((element) => (readAt || Date.now() - openedAt > GRACE) && showAge(element, readAt));
}

async function poll() {
  if ((socket.isOpen && !isDeaf()) || document.hidden) return;
  const answer = await fetch(`${page.url}status.json`, { headers: { Accept: "application/json" } }).catch(() => null);
  if (!answer) return;
  if (answer.redirected || answer.status === 404) { out(); return; }
  if (!answer.ok) return;
  const status = await answer.json();
  heard(socket.isOpen ? "live" : "polling");
  setStatus(status);
  if (status.gpus_now) setReadings(status.gpus_now);
  await log.poll();
}

let filesAreOld = true;

async function loadFiles() {
  const visible = document.getElementById("pane-files").classList.contains("active");
  if (!visible || !filesAreOld) return;
  filesAreOld = false;
  const answer = await fetch(`${page.url}?part=files`).catch(() => null);
  if (!answer?.ok || answer.redirected) { filesAreOld = true; return; }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("files");
  document.getElementById("files").replaceWith(document.adoptNode(fresh));
  showTimes();
}

function tabs() {
  const named = location.hash && document.getElementById(`tab-${location.hash.slice(1)}`);
  document.getElementById("job-tabs").addEventListener("shown.bs.tab", (event) => {
    history.replaceState(null, "", `#${event.target.id.replace("tab-", "")}`);
    if (event.target.id === "tab-log") log.fit();
    if (event.target.id === "tab-files") { filesAreOld = true; loadFiles(); }
  });
  if (named) Tab.getOrCreateInstance(named).show();
  addEventListener("hashchange", () => {
    const tab = document.getElementById(`tab-${location.hash.slice(1)}`);
    if (tab) Tab.getOrCreateInstance(tab).show();
  });
}

log.setState(page.status);
if (page.status.log) log.setHead(page.status.log);
if (page.gpus_now) setReadings(page.gpus_now);
tabs();
startSplit(() => charts.load());
ticks();
lookAgain();
setInterval(ticks, 1000);
setInterval(poll, POLL);
setTimeout(poll, 1500); // a browser without WebSockets does not wait long
