// What befell a run, as small flags above a chart's axis of time: hovered they say what, clicked they mark the time.
import { exactly } from "./times.js";

const NEAR = 9; // pixels: flags closer than that are one

/** Put the flags of `events` ([{at, kind, text}], oldest first) where `plot` (of uPlot) has their times. */
export function placeFlags(plot, events) {
  let place = plot.over.querySelector(".chart-flags");
  if (!place) {
    place = document.createElement("div");
    place.className = "chart-flags";
    place.setAttribute("aria-hidden", "true"); // the list below the charts has them all
    plot.over.append(place);
  }
  const groups = grouped(plot, events);
  while (place.children.length > groups.length) place.lastChild.remove();
  while (place.children.length < groups.length) place.append(document.createElement("i"));
  groups.forEach((group, index) => fill(place.children[index], group));
}

function grouped(plot, events) {
  const width = plot.over.clientWidth;
  const groups = [];
  for (const event of events) {
    const left = plot.valToPos(event.at, "x");
    if (left < -1 || left > width + 1) continue;
    const last = groups.at(-1);
    if (last && left - last.left < NEAR) last.events.push(event);
    else groups.push({ left, events: [event] });
  }
  return groups;
}

function fill(flag, { left, events }) {
  const last = events.at(-1);
  flag.className = `chart-flag is-${last.kind.toLowerCase()}`;
  flag.style.left = `${left}px`;
  flag.dataset.at = events[0].at;
  flag.title = events.map((event) => `${exactly(event.at * 1000)} · ${event.text}`).join("\n");
}
