// Search in the whole log, by the server: hits are listed as they are found, and a click leads to one.
import { word } from "./words.js";

export class LogSearch {
  #stop = null; // of the search that runs
  #current = -1;
  #from = 0; // where the next search goes on

  /** `on`: {jump(offset, hit), changed()}; `run()` is the run that is shown. */
  constructor(url, run, on) {
    Object.assign(this, { url, run, on, hits: [] });
    this.part = (name) => document.getElementById(`log-${name}`);
    this.part("search").addEventListener("submit", (event) => { event.preventDefault(); this.#submitted(); });
    this.part("query").addEventListener("keydown", (event) => this.#key(event));
    this.part("query").addEventListener("input", () => this.part("query").value || this.close());
    for (const name of ["regex", "case"]) this.part(name).addEventListener("click", () => this.#toggle(name));
    this.part("next").addEventListener("click", () => this.step(1));
    this.part("previous").addEventListener("click", () => this.step(-1));
    this.part("search-stop").addEventListener("click", () => this.stop());
    this.part("search-more").addEventListener("click", () => this.#start(this.#from));
    this.part("search-close").addEventListener("click", () => this.close());
    this.part("hits").addEventListener("click", (event) => this.#clicked(event));
  }

  focus() {
    this.part("query").focus();
    this.part("query").select();
  }

  /** The hits in the line that begins at `at`, of the text that it has. */
  hitsOf(line, next) {
    return this.hits.filter((hit) => hit.at >= line.at && hit.at < next && line.text.slice(hit.from, hit.to) === hit.text.slice(hit.from - hit.cut, hit.to - hit.cut));
  }

  step(by) {
    if (!this.hits.length) return;
    this.#show((this.#current + by + this.hits.length) % this.hits.length);
  }

  stop() {
    this.#stop?.abort();
  }

  close() {
    this.stop();
    this.hits = [];
    this.asked = "";
    this.#current = -1;
    this.part("found").hidden = true;
    this.part("hits").replaceChildren();
    this.on.changed();
  }

  #submitted() {
    const asked = this.#asked(0);
    if (asked === this.asked && this.hits.length) this.step(1);
    else if (this.part("query").value) this.#start(0);
  }

  #key(event) {
    if (event.key === "Enter" && event.shiftKey) {
      event.preventDefault();
      this.step(-1);
    }
    if (event.key === "Escape") {
      this.part("query").value = "";
      this.close();
      document.getElementById("log-rows").focus();
    }
  }

  #toggle(name) {
    const button = this.part(name);
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    if (this.part("query").value && this.asked) this.#start(0);
  }

  #asked(from) {
    const is = (name) => (this.part(name).getAttribute("aria-pressed") === "true" ? "1" : "");
    return String(new URLSearchParams({ run: this.run(), q: this.part("query").value, regex: is("regex"), case: is("case"), start: from }));
  }

  async #start(from) {
    if (from) this.stop();
    else this.close();
    this.asked = this.#asked(0);
    const stop = (this.#stop = new AbortController());
    this.part("found").hidden = false;
    this.#says({ at: from, end: 0 }, true);
    try {
      const answer = await fetch(`${this.url}log/search?${this.#asked(from)}`, { signal: stop.signal, headers: { Accept: "application/x-ndjson" } });
      if (!answer.ok || answer.redirected) throw new Error((await answer.json().catch(() => ({}))).error ?? word("search failed"));
      for await (const found of objects(answer.body)) if (stop === this.#stop) this.#take(found);
    } catch (error) {
      if (stop === this.#stop) this.#ended(stop.signal.aborted ? word("search stopped", this.#count()) : error.message || word("search failed"));
    }
  }

  #take(found) {
    if (found.error) throw new Error(found.error);
    if ("text" in found) this.#add(found);
    else if (found.done) this.#done(found);
    else this.#says(found, true);
  }

  #add(hit) {
    this.hits.push(hit);
    this.part("hits").append(item(hit, this.hits.length - 1));
    this.part("found-count").textContent = word("hits", this.#count());
    this.on.changed();
  }

  #done({ at, more }) {
    this.#from = at;
    this.#ended(this.hits.length ? word(more ? "hits and more" : "hits", this.#count()) : word("no hit"));
    this.part("search-more").hidden = !more;
  }

  #says({ at, end }, isRunning) {
    this.part("found-count").textContent = this.hits.length ? word("hits", this.#count()) : word("searching");
    this.part("search-progress").value = end ? at / end : 0;
    this.part("search-progress").hidden = !isRunning;
    this.part("search-stop").hidden = !isRunning;
    this.part("search-more").hidden = true;
  }

  #ended(sentence) {
    this.part("found-count").textContent = sentence;
    this.part("search-progress").hidden = true;
    this.part("search-stop").hidden = true;
  }

  #count() {
    return { count: this.hits.length };
  }

  #clicked(event) {
    const button = event.target.closest("[data-hit]");
    if (button) this.#show(Number(button.dataset.hit));
  }

  #show(index) {
    const buttons = this.part("hits").querySelectorAll("[data-hit]");
    buttons[this.#current]?.removeAttribute("aria-current");
    this.#current = index;
    buttons[index].setAttribute("aria-current", "true");
    buttons[index].scrollIntoView({ block: "nearest" });
    this.on.jump(this.hits[index].at, this.hits[index]);
  }
}

/** The JSON objects of a body of lines, as they come. */
async function* objects(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (held + (value ?? "")).split("\n");
    held = lines.pop();
    for (const line of lines) if (line) yield JSON.parse(line);
    if (done) return;
  }
}

function item(hit, index) {
  const row = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.hit = index;
  const context = (lines) => lines.map((text) => element("span", "log-context", text || " "));
  const line = element("span", "log-found", "");
  const [from, to] = [hit.from - hit.cut, hit.to - hit.cut];
  line.append(hit.text.slice(0, from), element("mark", "log-hit", hit.text.slice(from, to)), hit.text.slice(to));
  const number = hit.line === null ? [] : [element("span", "log-hit-line", (hit.line + 1).toLocaleString())];
  button.append(...number, ...context(hit.before), line, ...context(hit.after));
  row.append(button);
  return row;
}

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}
