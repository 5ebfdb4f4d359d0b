// Drag one of one's own waiting jobs onto another of the same line: it takes its place. The buttons beside do the same.

let dragged = null;

const rowOf = (event) => event.target.closest?.("tr[data-line]");
const mayTake = (row) => row && dragged && row !== dragged && row.dataset.line === dragged.dataset.line;

function begin(event) {
  if (!event.target.closest?.(".grip")) return;
  dragged = rowOf(event);
  dragged.classList.add("dragged");
  event.dataTransfer.effectAllowed = "move";
  event.dataTransfer.setData("text/plain", dragged.dataset.job);
  event.dataTransfer.setDragImage(dragged, 16, 16);
}

function over(event) {
  const row = rowOf(event);
  document.querySelector("tr.drop-here")?.classList.remove("drop-here");
  if (!mayTake(row)) return;
  event.preventDefault();
  event.dataTransfer.dropEffect = "move";
  row.classList.add("drop-here");
}

function drop(event) {
  const row = rowOf(event);
  if (!mayTake(row)) return;
  event.preventDefault();
  const form = dragged.querySelector("form.moves");
  const target = form.closest("[data-live-list]");
  const values = { ...Object.fromEntries(new FormData(form)), to: row.dataset.job };
  end();
  window.htmx.ajax("POST", form.getAttribute("hx-post"), { target, values });
}

function end() {
  dragged?.classList.remove("dragged");
  document.querySelector("tr.drop-here")?.classList.remove("drop-here");
  dragged = null;
}

/** A list is not replaced under somebody's hand. */
export const isDragging = () => dragged !== null;

export function startReorder() {
  document.addEventListener("dragstart", begin);
  document.addEventListener("dragover", over);
  document.addEventListener("drop", drop);
  document.addEventListener("dragend", end);
}
