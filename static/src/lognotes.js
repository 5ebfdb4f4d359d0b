// When each byte of a log came, by which stream, and on what line: loaded for the part that is shown, on request.

const MOST = 100000; // entries kept

export class LogNotes {
  #times = []; // [offset, seconds since 1970]: from this byte on, until the next
  #streams = []; // [offset, 1 | 2 | 0 where nobody knows]
  #from = null;
  #to = null;
  #loading = false;

  constructor(url) {
    this.url = url;
    this.firstLine = null; // {at: offset, line: newlines before it}
    this.known = false; // whether there are any
  }

  clear() {
    this.#times = [];
    this.#streams = [];
    this.#from = this.#to = this.firstLine = null;
    this.known = false;
  }

  /** Have what there is of [start, end). True when something new came. */
  async cover(run, start, end) {
    if (this.#loading || end <= start) return false;
    if (this.#times.length + this.#streams.length > MOST || (this.#from !== null && (end < this.#from || start > this.#to))) this.clear();
    const [from, to] = this.#from === null ? [start, end] : start < this.#from ? [start, this.#from] : [this.#to, end];
    if (to <= from) return false;
    this.#loading = true;
    const answer = await fetch(`${this.url}log/notes?run=${run}&start=${from}&end=${to}`).catch(() => null);
    const found = answer?.ok && !answer.redirected ? await answer.json().catch(() => null) : null;
    this.#loading = false;
    if (!found || found.end <= found.start) return false;
    this.#add(found);
    return true;
  }

  #add(found) {
    const isAbove = this.#from !== null && found.end <= this.#from;
    for (const [kept, fresh] of [[this.#times, found.times], [this.#streams, found.streams]]) {
      if (isAbove) kept.unshift(...fresh);
      else kept.push(...fresh);
    }
    this.known ||= found.times.length > 0;
    if (!this.firstLine || isAbove) this.firstLine = { at: found.start, line: found.line };
    this.#from = Math.min(this.#from ?? found.start, found.start);
    this.#to = Math.max(this.#to ?? found.end, found.end);
  }

  /** Seconds since 1970 at which the byte at an offset came, to the second; null when nobody knows. */
  timeOf(offset) {
    return this.#covers(offset) ? (before(this.#times, offset)?.[1] ?? null) : null;
  }

  /** The offset at which what came at a time, or else next after it, begins; null when that is not loaded. */
  offsetAt(seconds) {
    const index = this.#times.findIndex(([, at]) => at !== null && at >= Math.floor(seconds));
    if (index < 0 || (index === 0 && this.#from > 0 && this.#times[0][1] > seconds)) return null; // it may be before
    return this.#times[index][0];
  }

  isError(offset) {
    return this.#covers(offset) && before(this.#streams, offset)?.[1] === 2;
  }

  #covers(offset) {
    return this.#from !== null && offset >= this.#from && offset < this.#to;
  }
}

/** The last entry that begins at `offset` or before. */
function before(entries, offset) {
  let [low, high] = [0, entries.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle][0] <= offset) low = middle + 1;
    else high = middle;
  }
  return entries[low - 1];
}
