// Keyboard first: `/` search, `g` then a letter to go, `c` to submit, `j` and `k` through rows, `?` for help.
import Modal from "bootstrap/js/dist/modal.js";

const PLACES = { d: "/", j: "/jobs/", q: "/queue/", g: "/gpus/", h: "/history/", t: "/timeline/" };
let waitsForPlace = 0;

function typing(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable], .modal.show");
}

function rows() {
  return [...document.querySelectorAll("[data-rows] [data-href]")].filter((row) => row.offsetParent);
}

function step(by) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.classList.contains("is-current"));
  all[now]?.classList.remove("is-current");
  const next = all[Math.min(Math.max(now + by, 0), all.length - 1)];
  next.classList.add("is-current");
  (next.querySelector("a") ?? next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

function help() {
  const element = document.getElementById("keys-help");
  if (element) Modal.getOrCreateInstance(element).show();
}

function search(event) {
  const box = document.querySelector("#search");
  if (!box) return;
  event.preventDefault();
  box.focus();
  box.select();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || typing(event.target)) return;
  if (isGoing()) {
    waitsForPlace = 0;
    event.preventDefault();
    if (PLACES[event.key]) location.assign(PLACES[event.key]);
    return;
  }
  const actions = {
    "/": () => search(event), g: () => (waitsForPlace = Date.now()), c: () => location.assign("/jobs/new/"),
    j: () => step(1), k: () => step(-1), "?": help,
    Enter: () => {
      if (event.target.closest("a, button, summary")) return;
      const row = document.querySelector("[data-rows] .is-current[data-href]");
      if (row) location.assign(row.dataset.href);
    },
  };
  actions[event.key]?.();
}

/** Whether `g` was pressed, so that the next key says where to go. */
export function isGoing() {
  return Date.now() - waitsForPlace < 1500;
}

export function startKeys() {
  if (!document.querySelector("[data-signed-in]")) return;
  document.addEventListener("keydown", onKey);
}
