// One chart: what it shows of a run's readings, and how it is drawn.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { placeFlags } from "./chartflags.js";
import { word } from "./words.js";

const COLOURS = {
  light: ["#3b5bdb", "#0b7285", "#b4540a", "#862e9c", "#2b8a3e", "#c2255c", "#5c6b7a", "#8a6d00"],
  dark: ["#93a8ff", "#66d9e8", "#ffa94d", "#da9bf0", "#8ce99a", "#faa2c1", "#b6c2cf", "#ffe066"],
};
const EVENT_TONES = { ENDED: "--red", WARNED: "--amber", SIGNALLED: "--orange", WISHED: "--orange" };
const HEIGHT = 170;
const LABEL = 80; // pixels: no narrower than the widest label, with seconds
const SYNC = "dockyard-job";
const LANES = ["power_cap", "heat", "power_brake", "hardware", "sync"];

const upTo = (least) => (plot, low, high) => [0, Math.max((high || 0) * 1.1, least)];
/** `of`: whose values; `names`: the lines of each; `factor`: what they are divided by; `range`: of the axis. */
export const FIGURES = {
  utilisation: { of: "gpus", names: ["utilisation"], range: [0, 100] },
  memory: { of: "gpus", names: ["memory_mib"], factor: 1024, range: upTo(1) },
  power: { of: "gpus", names: ["power_w"], range: upTo(10) },
  temperature: { of: "gpus", names: ["temperature_c"], range: (plot, low, high) => [Math.min(20, low ?? 20), Math.max((high ?? 60) + 5, 60)] },
  clocks: { of: "gpus", names: ["sm_clock_mhz", "mem_clock_mhz"], range: upTo(100) },
  throttle: { of: "gpus", names: ["throttle"], lanes: true, range: [0, LANES.length] },
  cpu: { of: "container", names: ["cpu_percent"], range: upTo(10) },
  ram: { of: "container", names: ["memory_mib"], factor: 1024, range: upTo(0.1) },
  disk: { of: "container", names: ["read_kib_s", "written_kib_s"], factor: 1024, range: upTo(0.1) },
  network: { of: "container", names: ["received_kib_s", "sent_kib_s"], factor: 1024, range: upTo(0.1) },
};

const language = document.documentElement.lang || "en";
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const clockSeconds = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(language, { month: "short", day: "numeric" });
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const known = (value) => value !== null && value !== undefined;

/** The colours of lines, in order. */
export const tones = () => COLOURS[document.documentElement.dataset.bsTheme === "dark" ? "dark" : "light"];

/** Tick labels of the time axis: the coarser the ticks, the coarser the words. */
function ticks(plot, splits, axis, space, apart) {
  return splits.map((at) => (apart >= 86400 ? day : apart < 60 ? clockSeconds : clock).format(at * 1000));
}

function number(value) {
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(value < 1 ? 2 : 1);
}

export class Plot {
  #plot = null;

  /** `link`: data(), pinned(), and what to call: hover(at|null), pick(at), zoom(from, to). */
  constructor(figure, link) {
    this.figure = figure;
    this.link = link;
    this.kind = FIGURES[figure.dataset.figure];
    this.body = figure.querySelector(".chart-body");
  }

  get #lines() {
    const found = this.link.data()[this.kind.of];
    return Array.isArray(found) ? found : found ? [found] : [];
  }

  /** Whether there is nothing to draw: no value of it was ever read. */
  get isEmpty() {
    return !this.#lines.some((line) => this.kind.names.some((name) => line[name].some(known)));
  }

  #table() {
    const { names, factor = 1 } = this.kind;
    const columns = this.#lines.map((line) => [line.at, ...names.map((name) => line[name].map((value) => (known(value) ? value / factor : null)))]);
    return uPlot.join(columns);
  }

  draw() {
    const axis = { stroke: style("--ink-2"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const lanes = this.kind.lanes ? { splits: () => LANES.map((_, i) => i + 0.5), values: () => LANES.map((code) => word(`throttle ${code}`)), size: 92, grid: { show: false } } : { size: 48 };
    const options = {
      width: this.body.clientWidth, height: HEIGHT, legend: { show: false }, padding: [10, 8, 0, 0],
      cursor: { sync: { key: SYNC, setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { size: 6, show: !this.kind.lanes } },
      scales: { x: { time: true, range: () => this.#span() }, y: { range: this.kind.range } },
      axes: [{ ...axis, values: ticks, size: 28, space: LABEL }, { ...axis, ...lanes }],
      series: [{}, ...this.#series()],
      hooks: {
        setCursor: [(plot) => this.#hovered(plot)], setSelect: [(plot) => this.#selected(plot)],
        drawClear: [(plot) => this.kind.lanes && this.#bands(plot)], draw: [(plot) => this.#marks(plot)],
        ready: [(plot) => plot.over.addEventListener("click", () => this.#picked(plot))],
      },
    };
    this.#plot = new uPlot(options, this.#table(), this.body);
    this.#read(this.#plot);
  }

  #series() {
    const { names, of, lanes } = this.kind;
    const colours = tones();
    return this.#lines.flatMap((line, i) => names.map((name, n) => {
      const tone = colours[(of === "gpus" ? i : n) % colours.length];
      const dash = of === "gpus" && n ? [4, 4] : undefined;
      return { label: name, stroke: lanes ? "transparent" : tone, width: 1.5, dash, points: { show: false }, spanGaps: false };
    }));
  }

  #span() {
    const { from, to } = this.link.data();
    return [from, Math.max(to, from + 1)];
  }

  /** The values under the pointer, or the last ones, in the caption. */
  #read(plot) {
    const place = this.figure.querySelector("figcaption .chart-now");
    const at = plot.cursor.idx ?? plot.data[0].length - 1;
    const values = plot.data.slice(1).map((line) => line[at]).filter(known);
    place.textContent = this.kind.lanes ? this.#reasons(values) : values.slice(0, 8).map(number).join(" · ");
  }

  #reasons(masks) {
    const all = masks.reduce((bits, value) => bits | value, 0);
    return LANES.filter((_, bit) => all & (1 << bit)).map((code) => word(`throttle ${code}`)).join(" · ");
  }

  #hovered(plot) {
    this.#read(plot);
    if (!plot.over.matches(":hover")) return; // it follows another chart, or the log
    this.link.hover(known(plot.cursor.idx) && plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : null);
  }

  #selected(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.zoomedAt = Date.now();
    this.link.zoom(from, to);
  }

  #picked(plot) {
    if (Date.now() - (this.zoomedAt ?? 0) < 300 || plot.cursor.left < 0) return; // the end of a drag
    this.link.pick(plot.posToVal(plot.cursor.left, "x"));
  }

  /** Events and the pinned time as upright lines, the limit as one across. */
  #marks(plot) {
    const { ctx, bbox } = plot;
    const upright = (at, colour, dash) => {
      const x = Math.round(plot.valToPos(at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) return;
      this.#stroke(ctx, colour, dash, [x, bbox.top], [x, bbox.top + bbox.height]);
    };
    ctx.save();
    for (const event of this.link.data().events) upright(event.at, style(EVENT_TONES[event.kind] ?? "--ink-2"), [3, 3]);
    if (known(this.link.pinned())) upright(this.link.pinned(), style("--accent"), []);
    const limit = Number(this.figure.dataset.limit ?? 0) / (this.kind.factor ?? 1);
    const y = limit ? Math.round(plot.valToPos(limit, "y", true)) : -1;
    if (y > bbox.top) this.#stroke(ctx, style("--ink-2"), [8, 4], [bbox.left, y], [bbox.left + bbox.width, y]);
    ctx.restore();
    placeFlags(plot, this.link.data().events);
  }

  #stroke(ctx, colour, dash, from, to) {
    ctx.beginPath();
    ctx.strokeStyle = colour || "gray";
    ctx.setLineDash(dash);
    ctx.lineWidth = 1.5;
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    ctx.stroke();
  }

  /** A bar in the lane of each reason for as long as it held, the GPUs of a lane one above the other. */
  #bands(plot) {
    const { ctx } = plot;
    const [times, ...lines] = plot.data;
    const height = 0.8 / lines.length;
    const colours = tones();
    const y = (value) => plot.valToPos(value, "y", true);
    const x = (value) => plot.valToPos(value, "x", true);
    ctx.save();
    lines.forEach((line, i) => {
      ctx.fillStyle = colours[i % colours.length];
      line.forEach((bits, at) => {
        for (let lane = 0; bits >> lane; lane++) {
          if (!(bits & (1 << lane))) continue;
          const low = lane + 0.1 + height * i;
          const right = at + 1 < times.length && known(line[at + 1]) ? x(times[at + 1]) : x(times[at]) + 2;
          ctx.fillRect(x(times[at]), y(low + height), Math.max(2, right - x(times[at])), Math.max(1, y(low) - y(low + height)));
        }
      });
    });
    ctx.restore();
  }

  /** Set the pointer to a time that something else tells, to the second; null: take it away. */
  point(at) {
    const { from, to } = this.link.data();
    const isInside = known(at) && at > from - 1 && at < to + 1;
    const place = isInside ? Math.min(Math.max(at, from), to) : null;
    this.#plot.setCursor(isInside ? { left: this.#plot.valToPos(place, "x"), top: 10 } : { left: -10, top: -10 }, false);
    this.#read(this.#plot);
  }

  /** The data has grown. */
  renew() {
    this.#plot.setData(this.#table());
    this.#read(this.#plot);
  }

  redraw() {
    this.#plot.redraw(false);
  }

  resize() {
    const width = this.body.clientWidth;
    if (this.#plot && width && width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT });
  }

  destroy() {
    this.#plot?.destroy();
  }
}
