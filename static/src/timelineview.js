// What every part of the timeline sees: its data, its window of time, its rows, and where on them things stand.

export const LANE = 16; // pixels
export const HOST = 24;
export const SHORTEST = 300; // seconds
export const LONGEST = 800 * 86400;

export const root = document.getElementById("timeline");
export const body = document.getElementById("timeline-body");
export const axis = document.getElementById("timeline-axis");

/** `from`, `to`: seconds since 1970; `rows`: {name, canvas, open, lanes, host, blocks, marks}. */
export const view = { data: JSON.parse(document.getElementById("timeline-data").textContent), from: 0, to: 0, colours: {}, rows: [] };
view.from = view.data.from;
view.to = view.data.to;

const LIVE = new Set(["PLACED", "STARTING", "RUNNING", "STOPPING"]);
const label = () => parseFloat(getComputedStyle(body).getPropertyValue("--label"));

let wide = 50;

/** Look again how wide the window of time is: it is asked for too often to be read from the page each time. */
export function measure() {
  wide = Math.max(body.clientWidth - label(), 50);
}

/** Pixels of time. */
export const width = () => wide;
export const x = (at) => ((at - view.from) / (view.to - view.from)) * width();
export const isLive = (block) => LIVE.has(block.state);
export const title = (block) => `${block.name ?? block.owner} #${block.job}`;

export function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["accent", "accent-soft", "green", "green-soft", "red", "red-soft", "amber", "amber-soft", "orange", "orange-soft", "violet", "violet-soft", "grey", "grey-soft", "line", "ink", "ink-2", "on-accent"];
  view.colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** The strong and the soft colour of a block. */
export function tone(block) {
  const { colours, data } = view;
  if (block.kind) return [colours.amber, colours["amber-soft"]];
  const name = data.looks[block.state]?.tone ?? "grey";
  return [colours[name], colours[`${name}-soft`]];
}

export function topOf(row, lane) {
  return (row.host === null ? 4 : HOST) + Math.min(lane, row.lanes - 1) * LANE;
}
