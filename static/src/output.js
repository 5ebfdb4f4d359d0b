// What the program tells of itself: its progress as a bar, the numbers that it prints as small charts.
import { showTimes } from "./times.js";
import { word } from "./words.js";

const PERIOD = 10000;
const WIDTH = 200;
const HEIGHT = 44;
const SVG = "http://www.w3.org/2000/svg";
const language = document.documentElement.lang || "en";
const plain = new Intl.NumberFormat(language, { maximumSignificantDigits: 4 });
const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

const sayNumber = (value) => {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e7) ? value.toExponential(2) : plain.format(value);
};

/** The bar in the job's head; `output` as `status.output` has it. */
export function showOutput(output) {
  const box = document.getElementById("output-progress");
  if (!box) return;
  box.hidden = !output;
  if (!output) return;
  const bind = (name) => box.querySelector(`[data-bind="output-${name}"]`);
  bind("percent").textContent = `${output.percent} %`;
  bind("text").textContent = output.text;
  bind("left").hidden = !output.ends_at;
  if (output.ends_at) {
    bind("left").querySelector("time").dateTime = output.ends_at;
    showTimes();
  }
  const bar = box.querySelector(".progress-bar");
  bar.style.width = `${output.percent}%`;
  bar.parentElement.setAttribute("aria-valuenow", output.percent);
}

export class Metrics {
  #series = new Map();
  #cards = new Map();
  #busy = false;
  #isAsked = false; // again, while an answer was on its way
  #isLast = false;

  constructor(url, isLive) {
    this.url = url;
    this.root = document.getElementById("metrics");
    this.load();
    setInterval(() => isLive() && !document.hidden && this.load(), PERIOD);
    document.addEventListener("dockyard:time", ({ detail: { at, source, go } }) => source !== "metrics" && !go && this.#hear(at));
  }

  /** The run has ended: once more, for the last numbers. */
  last() {
    if (!this.#isLast) this.load();
    this.#isLast = true;
  }

  async load() {
    this.#isAsked = this.#busy;
    if (this.#busy) return;
    this.#busy = true;
    const answer = await fetch(`${this.url}metrics.json`).catch(() => null);
    this.#busy = false;
    if (this.#isAsked) this.load();
    if (!answer?.ok || answer.redirected) return;
    const found = (await answer.json()).series;
    this.root.hidden = !found.length;
    const names = new Set(found.map((series) => series.name));
    for (const [name, card] of this.#cards) if (!names.has(name)) { card.remove(); this.#cards.delete(name); }
    for (const { name, points } of found) this.#show(name, points);
  }

  #show(name, points) {
    this.#series.set(name, points);
    let card = this.#cards.get(name);
    if (!card) {
      card = this.#make(name);
      this.#cards.set(name, card);
      this.root.append(card);
    }
    this.#say(card, points.at(-1));
    const svg = card.querySelector("svg");
    svg.querySelector("path").setAttribute("d", line(points));
    svg.setAttribute("aria-label", word("metric from to", { name, first: sayNumber(points[0][2]), last: sayNumber(points.at(-1)[2]) }));
  }

  #make(name) {
    const card = document.createElement("figure");
    card.className = "card metric";
    const caption = document.createElement("figcaption");
    caption.append(Object.assign(document.createElement("span"), { textContent: name, title: name }), document.createElement("strong"));
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 -2 ${WIDTH} ${HEIGHT + 4}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.append(document.createElementNS(SVG, "path"), document.createElementNS(SVG, "line"));
    const at = document.createElement("small");
    card.append(caption, svg, at);
    svg.addEventListener("pointermove", (event) => this.#hover(name, card, event));
    svg.addEventListener("pointerleave", () => this.#leave(name, card));
    svg.addEventListener("click", (event) => this.#tell(this.#nearest(name, svg, event)[0], true));
    return card;
  }

  #nearest(name, svg, event) {
    const points = this.#series.get(name);
    const box = svg.getBoundingClientRect();
    return nearest(points, points[0][0] + ((event.clientX - box.left) / box.width) * (points.at(-1)[0] - points[0][0]));
  }

  #hover(name, card, event) {
    const point = this.#nearest(name, card.querySelector("svg"), event);
    this.#mark(name, card, point);
    this.#tell(point[0], false);
  }

  /** Another part of the page points at a time, or no longer. */
  #hear(at) {
    for (const [name, card] of this.#cards) {
      const points = this.#series.get(name);
      const isInside = at !== null && at >= points[0][0] - 1 && at <= points.at(-1)[0] + 1; // a log's times are whole seconds
      if (isInside) this.#mark(name, card, nearest(points, at));
      else this.#unmark(name, card);
    }
  }

  #mark(name, card, point) {
    const x = share(this.#series.get(name), point[0]) * WIDTH;
    const mark = card.querySelector("svg line");
    for (const [key, value] of Object.entries({ x1: x, x2: x, y1: 0, y2: HEIGHT })) mark.setAttribute(key, value);
    card.classList.add("is-read");
    this.#say(card, point);
  }

  #unmark(name, card) {
    if (!card.classList.contains("is-read")) return;
    card.classList.remove("is-read");
    this.#say(card, this.#series.get(name).at(-1));
  }

  #leave(name, card) {
    this.#unmark(name, card);
    this.#tell(null, false);
  }

  #say(card, [at, step, value]) {
    card.querySelector("strong").textContent = sayNumber(value);
    card.querySelector("small").textContent = step === null ? clock.format(at * 1000) : `${clock.format(at * 1000)} · ${word("step at", { step: plain.format(step) })}`;
  }

  #tell(at, go) {
    document.dispatchEvent(new CustomEvent("dockyard:time", { detail: { at, source: "metrics", go } }));
  }
}

const nearest = (points, at) => points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
const share = (points, at) => (points.length > 1 ? (at - points[0][0]) / (points.at(-1)[0] - points[0][0] || 1) : 0);

function line(points) {
  const values = points.map((point) => point[2]);
  const low = Math.min(...values);
  const height = Math.max(...values) - low || 1;
  return points.map((point, index) => `${index ? "L" : "M"}${(share(points, point[0]) * WIDTH).toFixed(1)} ${(HEIGHT - ((point[2] - low) / height) * HEIGHT).toFixed(1)}`).join("");
}
