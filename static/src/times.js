// Times as people say them, by the server's clock: right after a laptop's sleep and with a wrong local clock.
import { word } from "./words.js";

let offset = serverOffset();
const language = document.documentElement.lang || "en";
const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto" });
const absolute = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const STEPS = [["day", 86400], ["hour", 3600], ["minute", 60]];

function serverOffset() {
  const at = Number(document.body?.dataset.serverTime);
  return at ? at * 1000 - Date.now() : 0;
}

/** Correct the clock by a time the server has just sent (seconds). */
export function setServerTime(seconds) {
  offset = seconds * 1000 - Date.now();
}

/** Milliseconds since the epoch by the server's clock. */
export function serverNow() {
  return Date.now() + offset;
}

/** "3 minutes ago", "in 2 hours"; a date beyond a week. */
export function ago(milliseconds) {
  const seconds = Math.round((milliseconds - serverNow()) / 1000);
  if (Math.abs(seconds) > 7 * 86400) return new Intl.DateTimeFormat(language, { dateStyle: "medium" }).format(milliseconds);
  for (const [unit, size] of STEPS) {
    if (Math.abs(seconds) >= size) return relative.format(Math.trunc(seconds / size), unit);
  }
  return Math.abs(seconds) < 10 ? word("just now") : relative.format(Math.trunc(seconds / 10) * 10, "second");
}

/** "2 h 5 min", "14 s": the two largest parts. */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = parts.findIndex(([, size]) => whole >= size);
  if (first < 0) return `0 ${word("s")}`;
  return parts.slice(first, first + 2)
    .map(([unit, size], index) => [Math.floor((index ? whole % parts[first][1] : whole) / size), unit])
    .filter(([amount], index) => amount || !index)
    .map(([amount, unit]) => `${amount} ${word(unit)}`)
    .join(" ");
}

/** Date and time in the reader's zone. */
export function exactly(milliseconds) {
  return absolute.format(milliseconds);
}

function show(element) {
  const at = Date.parse(element.dateTime);
  if (Number.isNaN(at)) return;
  const text = {
    ago: () => ago(at),
    since: () => duration((serverNow() - at) / 1000),
    until: () => duration((at - serverNow()) / 1000),
    at: () => exactly(at),
  }[element.dataset.when]?.();
  if (text !== undefined && element.textContent !== text) element.textContent = text;
  if (element.dataset.when !== "at") element.title = exactly(at);
}

/** Bring every <time data-when="ago|since|until|at"> under `root` up to date. */
export function showTimes(root = document) {
  root.querySelectorAll("time[data-when]").forEach(show);
}

export function startTimes() {
  offset = serverOffset();
  showTimes();
  setInterval(showTimes, 1000);
  document.addEventListener("visibilitychange", () => showTimes());
  document.addEventListener("htmx:afterSwap", () => showTimes());
}
