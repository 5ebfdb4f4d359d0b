// The dot in the top bar: live, stale (with its age) or offline; and the banner while live is not live.
import { duration } from "./times.js";
import { word } from "./words.js";

let state = "waiting"; // waiting | live | polling | offline | out
let heardAt = Date.now();
let downSince = 0;
let pollingSince = 0;
let deaf = false; // the server itself hears no news: what it says is true, but late
let silent = []; // hosts that were not heard of for a while: what is shown of them may be old

const PATIENCE = 1500; // milliseconds without a line before the banner says so
const BLOCKED = 5000; // of asking in place of it
const UNANSWERED = 20000; // of asking without an answer
const NAMED = 3; // silent hosts, at most; of more only the first two are

/** News of any kind has come, over the socket or by polling. */
export function heard(by = "live") {
  heardAt = Date.now();
  downSince = 0;
  pollingSince = by === "polling" ? pollingSince || Date.now() : 0;
  state = by;
  show();
}

/** What a ping says: whether the server hears news. */
export function pinged({ live = true }) {
  deaf = !live;
}

/** Which hosts are silent, by name. */
export function silentHosts(names) {
  silent = names;
  show();
}

/** Whether asking now and then is needed, since no news come by themselves. */
export const isDeaf = () => deaf;

/** The line is down; polling may still work. */
export function down() {
  if (state === "out") return;
  downSince ||= Date.now();
  if (state !== "polling") state = "offline";
  show();
}

/** Signed out, or the object is gone: nothing more will come. */
export function out() {
  state = "out";
  show();
}

function show() {
  const age = (Date.now() - heardAt) / 1000;
  if (state === "polling" && age * 1000 > UNANSWERED) state = "offline";
  const stale = state === "polling" || (state === "live" && deaf) || ((state === "live" || state === "waiting") && age > 50);
  const look = state === "out" || state === "offline" ? "offline" : stale ? "stale" : state === "live" ? "live" : "waiting";
  const says = {
    live: () => word("live"),
    stale: () => (deaf ? word("no news") : age < 10 ? word("refreshing") : word("{age} old", { age: duration(age) })),
    offline: () => word(state === "out" ? "signed out" : "offline"),
    waiting: () => word("connecting"),
  }[look]();
  document.body.dataset.line = look;
  document.querySelectorAll("[data-live]").forEach((element) => {
    element.dataset.live = look;
    element.querySelector(".live-word").textContent = says;
  });
  banner();
}

function silentSentence() {
  if (silent.length <= NAMED) return word(silent.length > 1 ? "silent hosts" : "silent host", { hosts: silent.join(", ") });
  return word("silent many", { hosts: silent.slice(0, 2).join(", "), count: silent.length - 2 });
}

/** What is wrong with the line, as [look, icon, sentence, whether the page of hosts tells more]; null: nothing. */
function trouble() {
  const now = Date.now();
  if (state === "out") return ["offline", "bi-box-arrow-right", word("signed out long")];
  if (state === "offline" && now - downSince > PATIENCE) return ["offline", "bi-wifi-off", word("reconnecting long")];
  if (state === "polling" && now - pollingSince > BLOCKED) return ["late", "bi-arrow-repeat", word("asking long")];
  if (state === "live" && deaf) return ["late", "bi-arrow-repeat", word("no news long")];
  if (silent.length) return ["late", "bi-hdd-network", silentSentence(), true];
  return null;
}

function banner() {
  const element = document.getElementById("offline-banner");
  if (!element) return;
  const found = trouble();
  element.hidden = !found;
  if (!found) element.dataset.said = "";
  if (!found || element.dataset.said === found.join()) return;
  const [look, icon, sentence, ofHosts = false] = found;
  element.dataset.said = found.join();
  element.classList.toggle("banner-offline", look === "offline");
  element.querySelector("i").className = `bi ${icon}`;
  element.querySelector("span").textContent = sentence;
  element.querySelector("a").hidden = !ofHosts;
}

export function startLiveDot() {
  if (document.querySelector("[data-live]")) setInterval(show, 1000);
}
