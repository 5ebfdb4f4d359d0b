// Charts of a run, from its start to its end: its GPUs, its container, and what befell it on one axis of time.
import { Plot, tones } from "./chartplot.js";
import { exactly } from "./times.js";
import { word } from "./words.js";

const GAP = 10; // seconds without a reading: no line goes through them
const MOST_POINTS = 2400; // a line that has grown so long is asked for again, thinned
const HOVER_EVERY = 100; // milliseconds
const GPU_KEYS = {
  utilisation: "utilisation", memory_mib: "memory_used_mib", power_w: "power_w", temperature_c: "temperature_c",
  sm_clock_mhz: "sm_clock_mhz", mem_clock_mhz: "mem_clock_mhz",
};
const THROTTLES = ["power_cap", "heat", "power_brake", "hardware", "sync"]; // the bits of `throttle`, as gpus/readings.py has them
const CONTAINER_KEYS = ["cpu_percent", "memory_mib", "read_kib_s", "written_kib_s", "received_kib_s", "sent_kib_s"];

const mask = (codes) => (codes ? codes.reduce((bits, code) => bits | (1 << Math.max(0, THROTTLES.indexOf(code))), 0) : null);

/** Put one more reading at the end of a line. */
function push(line, at, values) {
  if (line.at.length && line.at.at(-1) >= at) return;
  if (line.at.length && at - line.at.at(-1) > GAP) {
    line.at.push(at - 0.001);
    Object.keys(values).forEach((name) => line[name].push(null));
  }
  line.at.push(at);
  for (const [name, value] of Object.entries(values)) line[name].push(value ?? null);
}

/** Take away what is older than a time. */
function drop(line, before) {
  const count = line.at.findIndex((at) => at >= before);
  if (count > 0) Object.values(line).filter(Array.isArray).forEach((column) => column.splice(0, count));
}

export class Charts {
  #data = null; // the answer of charts.json
  #plots = [];
  #view = { last: null, from: null, to: null }; // all of the run; its last seconds; or a window
  #dirty = false;
  #asked = 0;
  #pinned = null;
  #pointed = null; // the time that the log points at
  #hovered = 0;

  constructor(jobUrl) {
    this.jobUrl = jobUrl;
    this.root = document.getElementById("charts");
    if (!this.root) return;
    document.getElementById("tab-charts").addEventListener("shown.bs.tab", () => this.load());
    document.addEventListener("dockyard:theme", () => this.#build());
    document.addEventListener("dockyard:time", (event) => this.#hear(event.detail));
    document.addEventListener("change", (event) => event.target.id === "chart-run" && this.#showRun());
    this.root.addEventListener("click", (event) => this.#press(event));
    new ResizeObserver(() => this.#plots.forEach((plot) => plot.resize())).observe(this.root);
    setInterval(() => this.#redraw(), 1000);
  }

  get #visible() {
    return this.root?.offsetParent && !document.hidden;
  }

  #showRun() {
    this.#pin(null);
    this.#look({});
  }

  async load() {
    const asked = ++this.#asked;
    const run = document.getElementById("chart-run")?.value;
    const { last, from, to } = this.#view;
    const end = this.#data?.to ?? Date.now() / 1000;
    const query = new URLSearchParams(run ? { run } : {});
    if (last) query.set("from", Math.max(0, end - last));
    if (from) { query.set("from", from); query.set("to", to); }
    const answer = await fetch(`${this.jobUrl}charts.json?${query}`).catch(() => null);
    if (!answer?.ok || answer.redirected || asked !== this.#asked) return;
    this.#data = await answer.json();
    this.#build();
  }

  /** A reading of the job's GPUs and container, as it comes. */
  add(reading) {
    if (!this.#data || !reading?.at || this.#view.to) return;
    if (!this.#fits(reading)) { this.#data = null; if (this.#visible) this.load(); return; }
    for (const gpu of reading.gpus) {
      const line = this.#data.gpus.find((found) => found.uuid === gpu.uuid);
      const values = Object.fromEntries(Object.entries(GPU_KEYS).map(([name, key]) => [name, gpu[key]]));
      push(line, reading.at, { ...values, throttle: mask(gpu.throttle) });
    }
    for (const found of reading.containers ?? []) {
      push(this.#data.container, reading.at, Object.fromEntries(CONTAINER_KEYS.map((name) => [name, found[name]])));
    }
    this.#data.to = Math.max(this.#data.to, reading.at);
    this.#slide();
    this.#dirty = true;
  }

  /** Whether the reading goes on with what is shown: the same run, on the same GPUs, and no line too long. */
  #fits(reading) {
    const { run, container, gpus } = this.#data;
    if (!container || reading.containers?.some((found) => found.run !== run)) return false;
    if (container.at.length > MOST_POINTS || gpus.some((line) => line.at.length > MOST_POINTS)) return false;
    return reading.gpus.every((gpu) => gpus.some((line) => line.uuid === gpu.uuid));
  }

  #slide() {
    if (!this.#view.last) return;
    this.#data.from = Math.max(this.#data.from, this.#data.to - this.#view.last);
    [...this.#data.gpus, this.#data.container].forEach((line) => drop(line, this.#data.from));
  }

  // --- drawing ---

  #build() {
    if (!this.#data || !this.#visible) return;
    const lines = [...this.#data.gpus, ...(this.#data.container ? [this.#data.container] : [])];
    const none = !lines.some((line) => line.at.length);
    document.getElementById("charts-empty").hidden = !none;
    this.root.querySelector(".chart-body-all").hidden = none;
    this.#plots.forEach((plot) => plot.destroy());
    this.#plots = [];
    if (none) return;
    this.#legend();
    this.root.querySelectorAll("[data-figure]").forEach((figure) => this.#plot(figure));
    this.#missing();
    this.#events();
    this.#buttons();
    this.#read(this.#pinned);
    this.#point();
  }

  #plot(figure) {
    const plot = new Plot(figure, {
      data: () => this.#data,
      hover: (at) => this.#hover(at),
      pick: (at) => this.#pin(at),
      zoom: (from, to) => this.#look({ from, to }),
      pinned: () => this.#pinned,
    });
    figure.hidden = plot.isEmpty;
    if (plot.isEmpty) return;
    plot.draw();
    this.#plots.push(plot);
  }

  #redraw() {
    if (!this.#visible) return;
    if (!this.#data || !this.#plots.length) { if (this.#dirty) { this.#dirty = false; this.#build(); } return; }
    if (!this.#dirty) return;
    this.#dirty = false;
    const hidden = [...this.root.querySelectorAll("[data-figure][hidden]")];
    if (hidden.some((figure) => !new Plot(figure, { data: () => this.#data }).isEmpty)) { this.#build(); return; } // a value more
    this.#plots.forEach((plot) => plot.renew());
    this.#point();
  }

  /** Keep the mark of a time that the log points at where that time is now. */
  #point() {
    if (this.#pointed === null) return;
    this.#plots.forEach((plot) => plot.point(this.#pointed));
    this.#read(this.#pointed);
  }

  #legend() {
    const { gpus } = this.#data;
    document.getElementById("chart-legend").replaceChildren(...gpus.map((gpu, i) => {
      const item = document.createElement("span");
      const mark = document.createElement("i");
      mark.style.background = tones()[i % tones().length];
      const name = document.createElement("span");
      name.textContent = `${gpu.node}/${gpu.index} ${gpu.model}${gpu.profile ? ` · MIG ${gpu.profile}` : ""}`;
      name.title = gpu.uuid;
      item.append(mark, name);
      return item;
    }));
    this.root.querySelectorAll("[data-of-gpus]").forEach((part) => (part.hidden = !gpus.length));
  }

  /** What none of the run's GPUs tells is said, and not drawn as nothing. */
  #missing() {
    const hidden = [...this.root.querySelectorAll("[data-of-gpus] [data-figure][hidden]")];
    const place = document.getElementById("chart-missing");
    const told = this.#data.gpus.some((gpu) => gpu.at.length);
    place.hidden = !hidden.length || !told;
    place.textContent = word("not reported", { names: hidden.map((figure) => figure.dataset.name).join(", ") });
  }

  #events() {
    const list = document.getElementById("chart-events");
    list.replaceChildren(...this.#data.events.map((event) => {
      const item = document.createElement("li");
      const button = document.createElement("button");
      button.type = "button";
      button.className = `chart-event is-${event.kind.toLowerCase()}`;
      button.dataset.at = event.at;
      const time = document.createElement("span");
      time.className = "text-secondary";
      time.textContent = exactly(event.at * 1000);
      button.append(time, ` ${event.text}`);
      item.append(button);
      return item;
    }));
    list.parentElement.hidden = !this.#data.events.length;
  }

  #buttons() {
    const { last, from } = this.#view;
    this.root.querySelectorAll("[data-last]").forEach((button) => {
      const is = !from && Number(button.dataset.last || 0) === (last ?? 0);
      button.setAttribute("aria-pressed", is);
      button.classList.toggle("active", is);
    });
  }

  // --- what people do ---

  #press(event) {
    const last = event.target.closest("[data-last]");
    if (last) this.#look({ last: Number(last.dataset.last) || null });
    const marked = event.target.closest("[data-at]");
    if (marked) this.#pin(Number(marked.dataset.at));
    if (event.target.closest("#chart-to-log")) this.#toLog();
    if (event.target.closest("#chart-unpin")) this.#pin(null);
  }

  #look({ last = null, from = null, to = null }) {
    this.#view = { last, from, to };
    this.load();
  }

  #hover(at) {
    const now = Date.now();
    this.#read(at ?? this.#pinned);
    if (at !== null && now - this.#hovered < HOVER_EVERY) return;
    this.#hovered = now;
    document.dispatchEvent(new CustomEvent("dockyard:time", { detail: { at, source: "charts", go: false } }));
  }

  /** Mark a time on every chart, and offer to go there in the log. */
  #pin(at) {
    this.#pinned = at;
    this.#read(at);
    this.#plots.forEach((plot) => plot.redraw());
  }

  /** The time and what happened then, in words. */
  #read(at) {
    const place = document.getElementById("chart-at");
    place.classList.toggle("is-empty", at === null);
    if (at === null || !this.#data) return;
    const near = Math.max(2, (this.#data.to - this.#data.from) / 200);
    const found = this.#data.events.filter((event) => Math.abs(event.at - at) <= near);
    place.querySelector("span").textContent = [exactly(at * 1000), ...found.map((event) => event.text)].join(" · ");
    place.querySelectorAll("button").forEach((button) => (button.hidden = this.#pinned === null));
  }

  #toLog() {
    document.dispatchEvent(new CustomEvent("dockyard:time", { detail: { at: this.#pinned, source: "charts", go: true } }));
    document.getElementById("tab-log").click();
  }

  /** The log tells of a time. */
  #hear({ at, source, go }) {
    if (source === "charts" || !this.root) return;
    if (go) { this.#pin(at); return; }
    this.#pointed = at;
    if (!this.#visible || !this.#data) return;
    this.#plots.forEach((plot) => plot.point(at));
    this.#read(at ?? this.#pinned);
  }
}

