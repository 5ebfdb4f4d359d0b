// The form and the lists: what makes them quicker to use. All of them work without this file.
import "./styles/pages.css";
import { startDraft } from "./drafts.js";
import { isDragging, startReorder } from "./reorder.js";

document.documentElement.classList.add("js");
document.cookie = `dockyard_zone=${Intl.DateTimeFormat().resolvedOptions().timeZone};path=/;max-age=31536000;samesite=lax`;

// --- lists ---

/** A row opens by a click anywhere that is no link of its own. */
function openRow(event) {
  const row = event.target.closest("tr[data-href]");
  if (!row || event.target.closest("a, button, input, label, summary") || getSelection()?.toString()) return;
  location.assign(row.dataset.href);
}

/** A fresh part that says the same as the one shown is left out; else the row in hand stays in hand. */
function keepPlace(event) {
  const list = event.detail.target;
  if (!list?.matches?.("[data-live-list]")) return;
  if (list.shown === event.detail.serverResponse || isDragging()) {
    event.detail.shouldSwap = false;
    return;
  }
  list.shown = event.detail.serverResponse;
  list.currentRow = list.querySelector(".is-current")?.dataset.href;
  list.hadFocus = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
}

function restorePlace(event) {
  const list = event.detail.target;
  if (!list?.matches?.("[data-live-list]")) return;
  const of = (attribute, value) => value && list.querySelector(`[${attribute}="${CSS.escape(value)}"]`);
  of("data-href", list.currentRow)?.classList.add("is-current");
  of("href", list.hadFocus)?.focus({ preventScroll: true });
}

// --- the form ---

function startForm(form) {
  const field = (name) => form.elements.namedItem(name);
  const showCommand = () => {
    const kind = form.querySelector("[name=command_kind]:checked")?.value ?? "script";
    form.querySelectorAll("[data-command]").forEach((part) => (part.hidden = part.dataset.command !== kind));
  };
  const fill = (event) => {
    const preset = event.target.closest("[data-preset]");
    if (!preset) return;
    event.preventDefault();
    for (const name of ["gpus", "cpus", "memory"]) field(name).value = preset.dataset[name];
    field("gpus").dispatchEvent(new Event("change", { bubbles: true }));
  };
  const showGpus = () => {
    for (const name of ["gpu_model", "gpu_memory", "gpu_percent", "gpu_profile", "least_gpus"]) {
      if (field(name)) field(name).disabled = field("gpus").value.trim() === "0";
    }
  };
  form.addEventListener("change", () => (showCommand(), showGpus()));
  form.addEventListener("click", fill);
  startDraft(form, startRows(form));
  showCommand();
  showGpus();
  document.getElementById("error-summary")?.focus();
}

/** Rows of environment variables; returns what adds a blank one. */
function startRows(form) {
  const rows = form.querySelector("[data-env-rows]");
  let next = rows.children.length;
  const add = () => {
    const blank = form.querySelector("[data-env-blank]").innerHTML.replaceAll("__n__", String(next++));
    rows.insertAdjacentHTML("beforeend", blank);
  };
  form.querySelector("[data-env-add]").addEventListener("click", () => {
    add();
    rows.lastElementChild.querySelector("input").focus();
  });
  rows.addEventListener("change", (event) => {
    if (!event.target.name.endsWith("-secret")) return;
    event.target.closest(".env-row").querySelector("textarea").classList.toggle("masked", event.target.checked);
  });
  return add;
}

/** A preview that fails says why, in the panel. */
function sayWhyNot(event) {
  if (event.detail.target?.id !== "preview") return;
  const status = event.detail.xhr?.status ?? 0;
  const known = document.querySelector(`template[data-preview-error~="${status}"]`);
  const said = known ?? document.querySelector("template[data-preview-error=else]");
  event.detail.target.replaceChildren(said.content.cloneNode(true));
}

/** A second press while the first is on its way does nothing. (The submission's id guards the server's side.) */
function once(event) {
  const form = event.target;
  if (!form.matches("[data-once]") || event.defaultPrevented) return;
  if (form.sent) event.preventDefault();
  form.sent = true;
  setTimeout(() => (form.sent = false), 5000);
}

export function startPages() {
  startReorder();
  document.addEventListener("click", openRow);
  document.addEventListener("submit", once);
  document.addEventListener("htmx:beforeSwap", keepPlace);
  document.addEventListener("htmx:afterSwap", restorePlace);
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
  });
  document.addEventListener("htmx:responseError", sayWhyNot);
  document.addEventListener("htmx:sendError", sayWhyNot);
  const form = document.getElementById("job-form");
  if (form) startForm(form);
}
