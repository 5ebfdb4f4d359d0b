// The rows of the timeline: which there are, which blocks lie on which lane of them, and how high they are.
import { word } from "./words.js";
import { HOST, LANE, view, width } from "./timelineview.js";

const UNFOLDED = 8; // hosts, at most, whose GPUs are shown at first

export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** One row a host, and one for what is expected; built once for the same hosts. `on`: toggled(row), watch(row), hover(row, event), leave(). */
export function build(on) {
  view.rows.length = 0;
  const wide = view.data.hosts.length > UNFOLDED;
  const made = [{ name: word("expected row"), host: null, open: true }, ...view.data.hosts.map((host, at) => ({ name: host.name, host: at, open: !wide }))];
  document.getElementById("timeline-lanes").replaceChildren(...made.map((row) => rowOf(row, on)));
}

function rowOf(row, on) {
  const head = element(row.host === null ? "span" : "button", "timeline-name");
  row.canvas = document.createElement("canvas");
  row.canvas.setAttribute("aria-hidden", "true");
  row.names = element("div", "timeline-gpus");
  row.names.setAttribute("aria-hidden", "true"); // the table below says it in words
  row.box = element("div", "timeline-row", element("div", "", head, row.names), row.canvas);
  if (row.host !== null) {
    head.type = "button";
    const sign = element("i", "bi bi-chevron-right");
    sign.setAttribute("aria-hidden", "true");
    head.append(sign, element("span", "", row.name));
    head.addEventListener("click", () => { row.open = !row.open; on.toggled(row); });
  } else {
    head.append(row.name);
  }
  row.head = head;
  view.rows.push(row);
  on.watch(row);
  row.canvas.addEventListener("pointermove", (event) => on.hover(row, event));
  row.canvas.addEventListener("pointerleave", on.leave);
  return row.box;
}

/** The blocks of a row, each with its lane: a host's GPUs, then as many lanes as its jobs without GPUs need. */
export function arrange(row) {
  row.blocks = [];
  if (row.host === null) {
    const dated = view.data.expected.filter((job) => job.from !== null);
    const ends = pack(dated, (job) => [job.from, job.to ?? job.from]);
    row.blocks = dated.map((job, at) => ({ ...job, lane: ends.lanes[at], kind: "expected" }));
    row.lanes = Math.min(Math.max(ends.count, 1), 6);
    return;
  }
  const gpus = view.data.hosts[row.host].gpus.length;
  const mine = (view.data.blocks ?? []).filter((block) => block.host === row.host);
  for (const block of mine) block.lanes.forEach((lane) => row.blocks.push({ ...block, lane }));
  const without = mine.filter((block) => !block.lanes.length);
  const packed = pack(without, (block) => [block.from, block.to ?? block.until ?? view.data.now]);
  without.forEach((block, at) => row.blocks.push({ ...block, lane: gpus + packed.lanes[at] }));
  row.lanes = gpus + Math.min(packed.count, 4);
  for (const job of view.data.expected) {
    if (job.kept !== row.name) continue;
    row.blocks.push({ ...job, from: job.kept_from ?? view.data.now, to: (job.kept_from ?? view.data.now) + (job.lasts ?? 3600), lane: 0, lanes: [], kind: "kept" });
  }
}

/** As few lanes as keep spans from lying over each other. */
function pack(items, span) {
  const free = [];
  const lanes = items.map((item) => {
    const [begin, end] = span(item);
    let lane = free.findIndex((until) => until <= begin);
    if (lane < 0) lane = free.length;
    free[lane] = end;
    return lane;
  });
  return { lanes, count: free.length };
}

export function size(row) {
  const folded = row.host !== null && !row.open;
  const gpus = folded || row.host === null ? [] : view.data.hosts[row.host].gpus;
  if (row.names.childElementCount !== gpus.length) row.names.replaceChildren(...gpus.map((gpu) => element("div", "", `GPU ${gpu.index} ${gpu.profile}`)));
  const height = folded || !row.lanes ? HOST : (row.host === null ? 8 : HOST) + row.lanes * LANE;
  const ratio = devicePixelRatio || 1;
  row.height = height;
  row.box.style.height = `${height}px`;
  if (row.host !== null) row.head.setAttribute("aria-expanded", String(!folded));
  row.head.classList.toggle("is-open", !folded);
  row.canvas.style.width = `${width()}px`;
  row.canvas.style.height = `${height}px`;
  row.canvas.width = Math.round(width() * ratio);
  row.canvas.height = Math.round(height * ratio);
}
