// Lists stay fresh: on news of changed jobs the page hears "dockyard:changed" (htmx fragments listen to it),
// at most every 1.5 s; without a socket, every few seconds.
import { down, heard, isDeaf, out, pinged } from "./live.js";
import { Socket } from "./socket.js";
import { setServerTime } from "./times.js";

const APART = 1500;
const POLL = 5000;
let last = 0;
let timer = null;

function changed() {
  if (timer || document.hidden) return;
  timer = setTimeout(() => {
    timer = null;
    last = Date.now();
    document.body.dispatchEvent(new CustomEvent("dockyard:changed", { bubbles: true }));
  }, Math.max(0, last + APART - Date.now()));
}

export function startChanges() {
  if (document.body.dataset.socket !== "changes") return;
  const socket = new Socket("/ws/changes/", {
    check: "/gpus/now.json",
    open: () => changed(),
    text: (message) => {
      if (message.ping) { setServerTime(message.ping); pinged(message); }
      heard();
      if (message.jobs) changed();
    },
    down,
    final: out,
  });
  setInterval(() => (socket.isOpen && !isDeaf()) || changed(), POLL);
  document.addEventListener("visibilitychange", () => document.hidden || changed());
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!socket.isOpen && event.detail.successful) heard("polling");
  });
}
