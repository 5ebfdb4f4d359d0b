// Charts of a run's GPUs: one chart a metric, one line a GPU, live at their right end.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

const COLOURS = {
  light: ["#3b5bdb", "#0b7285", "#b4540a", "#862e9c", "#2b8a3e", "#c2255c", "#5c6b7a", "#8a6d00"],
  dark: ["#93a8ff", "#66d9e8", "#ffa94d", "#da9bf0", "#8ce99a", "#faa2c1", "#b6c2cf", "#ffe066"],
};
const FROM_READING = { utilisation: "utilisation", memory_mib: "memory_used_mib", power_w: "power_w", temperature_c: "temperature_c" };
const SCALE = { utilisation: { range: [0, 100] }, memory_mib: { range: (u, low, high) => [0, Math.max((high || 1) * 1.1, 1)] }, power_w: { range: (u, low, high) => [0, Math.max((high || 1) * 1.1, 10)] }, temperature_c: { range: (u, low, high) => [Math.min(20, low ?? 20), Math.max((high ?? 60) + 5, 60)] } };
const MOST_POINTS = 4000;
const GAP = 10; // seconds
const LABEL = 80; // pixels: no narrower than the widest label, with seconds
const language = document.documentElement.lang || "en";
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const clockSeconds = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(language, { month: "short", day: "numeric" });

/** Tick labels of the time axis: the coarser the ticks, the coarser the words. */
function ticks(plot, splits, axis, space, apart) {
  return splits.map((at) => (apart >= 86400 ? day : apart < 60 ? clockSeconds : clock).format(at * 1000));
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const palette = () => COLOURS[document.documentElement.dataset.bsTheme === "dark" ? "dark" : "light"];

export class Charts {
  #gpus = []; // [{uuid, index, node, at: [], utilisation: [], …}]
  #plots = new Map();
  #loaded = false;
  #dirty = false;

  constructor(jobUrl) {
    this.jobUrl = jobUrl;
    this.root = document.getElementById("charts");
    if (!this.root) return;
    document.getElementById("tab-charts").addEventListener("shown.bs.tab", () => this.load());
    document.addEventListener("dockyard:theme", () => this.#build());
    new ResizeObserver(() => this.#resize()).observe(this.root);
    setInterval(() => this.#redraw(), 1000);
  }

  get #visible() {
    return this.root?.offsetParent && !document.hidden;
  }

  async load() {
    const answer = await fetch(`${this.jobUrl}charts.json`).catch(() => null);
    if (!answer?.ok || answer.redirected) return;
    this.#gpus = (await answer.json()).gpus;
    this.#loaded = true;
    this.#build();
  }

  /** A reading of the job's GPUs. */
  add(reading) {
    if (!this.#loaded || !reading?.at) return;
    for (const gpu of reading.gpus) {
      const line = this.#gpus.find((found) => found.uuid === gpu.uuid);
      if (!line) { this.#loaded = false; if (this.#visible) this.load(); return; }
      if (line.at.length && line.at.at(-1) >= reading.at) continue;
      if (line.at.length && reading.at - line.at.at(-1) > GAP) { // no line through what was not read
        line.at.push(reading.at - 0.001);
        Object.keys(FROM_READING).forEach((metric) => line[metric].push(null));
      }
      line.at.push(reading.at);
      for (const [metric, key] of Object.entries(FROM_READING)) line[metric].push(gpu[key] ?? null);
      if (line.at.length > MOST_POINTS) ["at", ...Object.keys(FROM_READING)].forEach((key) => line[key].shift());
    }
    this.#dirty = true;
  }

  #data(metric) {
    const factor = metric === "memory_mib" ? 1024 : 1;
    const tables = this.#gpus.map((gpu) => [gpu.at, gpu[metric].map((value) => (value === null ? null : value / factor))]);
    return uPlot.join(tables);
  }

  #build() {
    if (!this.#loaded || !this.#visible) return;
    const none = !this.#gpus.some((gpu) => gpu.at.length);
    document.getElementById("charts-empty").hidden = !none;
    this.root.querySelector(".chart-grid").hidden = none;
    this.#legend(none);
    this.#plots.forEach((plot) => plot.destroy());
    this.#plots.clear();
    if (none) return;
    this.root.querySelectorAll("[data-metric]").forEach((figure) => this.#plot(figure));
  }

  #legend(none) {
    const legend = document.getElementById("chart-legend");
    legend.replaceChildren(...(none ? [] : this.#gpus.map((gpu, i) => {
      const item = document.createElement("span");
      const mark = document.createElement("i");
      mark.style.background = palette()[i % palette().length];
      item.append(mark, `${gpu.node}/${gpu.index} ${gpu.model}`);
      return item;
    })));
  }

  #plot(figure) {
    const { metric } = figure.dataset;
    const body = figure.querySelector(".chart-body");
    const axis = { stroke: style("--ink-2"), grid: { stroke: style("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const options = {
      width: body.clientWidth, height: 170, legend: { show: false }, padding: [8, 8, 0, 0],
      cursor: { sync: { key: "job" }, drag: { x: true, y: false }, points: { size: 6 } },
      scales: { x: { time: true }, y: SCALE[metric] },
      axes: [{ ...axis, values: ticks, size: 28, space: LABEL }, { ...axis, size: 44 }],
      series: [{}, ...this.#gpus.map((gpu, i) => ({
        label: `${gpu.node}/${gpu.index}`, stroke: palette()[i % palette().length], width: 1.5, points: { show: false }, spanGaps: false,
      }))],
      hooks: { setCursor: [(plot) => this.#read(figure, plot)] },
    };
    this.#plots.set(metric, new uPlot(options, this.#data(metric), body));
    this.#read(figure, this.#plots.get(metric));
  }

  /** The values under the pointer, or the last ones, in the caption. */
  #read(figure, plot) {
    if (!plot) return;
    const at = plot.cursor.idx ?? plot.data[0].length - 1;
    const unit = figure.querySelector("figcaption span");
    unit.dataset.unit ||= unit.textContent;
    const values = plot.data.slice(1).map((line) => line[at]).filter((value) => value !== null && value !== undefined);
    const shown = values.map((value) => (value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)));
    unit.textContent = `${shown.slice(0, 8).join(" · ")} ${unit.dataset.unit}`;
  }

  #redraw() {
    if (!this.#dirty || !this.#visible) return;
    this.#dirty = false;
    if (!this.#plots.size) { this.#build(); return; }
    this.#plots.forEach((plot, metric) => {
      plot.setData(this.#data(metric));
      this.#read(this.root.querySelector(`[data-metric="${metric}"]`), plot);
    });
  }

  #resize() {
    this.#plots.forEach((plot) => {
      const width = plot.root.parentElement.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: 170 });
    });
  }
}
