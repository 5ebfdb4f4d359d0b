// The dot in the top bar: live, stale (with its age) or offline; and the banner while offline.
import { duration } from "./times.js";
import { word } from "./words.js";

let state = "waiting"; // waiting | live | polling | offline | out
let heardAt = Date.now();
let downSince = 0;
let deaf = false; // the server itself hears no news: what it says is true, but late

/** News of any kind has come, over the socket or by polling. */
export function heard(by = "live") {
  heardAt = Date.now();
  downSince = 0;
  state = by;
  show();
}

/** What a ping says: whether the server hears news. */
export function pinged({ live = true }) {
  deaf = !live;
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

function banner() {
  const element = document.getElementById("offline-banner");
  if (!element) return;
  const away = state === "out" || (downSince && Date.now() - downSince > 1500 && state === "offline");
  element.hidden = !away;
  if (away) element.querySelector("span").textContent = word(state === "out" ? "signed out long" : "reconnecting long");
}

export function startLiveDot() {
  if (document.querySelector("[data-live]")) setInterval(show, 1000);
}
