// Theme menu, language menu, questions before what can't be undone, copy buttons.
import { word } from "./words.js";

function markTheme() {
  const theme = document.documentElement.dataset.theme;
  document.querySelectorAll("[data-set-theme]").forEach((button) => {
    const chosen = button.dataset.setTheme === theme;
    button.classList.toggle("active", chosen);
    button.setAttribute("aria-pressed", String(chosen));
  });
}

function onClick(event) {
  const theme = event.target.closest("[data-set-theme]");
  if (theme) {
    document.dispatchEvent(new CustomEvent("dockyard:set-theme", { detail: theme.dataset.setTheme }));
    markTheme();
  }
  const copy = event.target.closest("[data-copy]");
  if (copy) copyText(copy);
}

async function copyText(button) {
  const text = button.dataset.copy || document.querySelector(button.dataset.copyFrom)?.textContent || "";
  const said = await navigator.clipboard.writeText(text).then(() => word("copied"), () => word("could not copy"));
  const before = button.getAttribute("aria-label");
  button.setAttribute("aria-label", said);
  button.classList.add("was-copied");
  document.getElementById("announcer")?.replaceChildren(said);
  setTimeout(() => {
    button.classList.remove("was-copied");
    if (before !== null) button.setAttribute("aria-label", before);
  }, 1500);
}

function onSubmit(event) {
  const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
}

export function startMenus() {
  markTheme();
  document.addEventListener("click", onClick);
  document.addEventListener("submit", onSubmit);
}
