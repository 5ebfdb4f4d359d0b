// The order of a log's bytes: pieces come over the socket or by ranges, and go on in order, each byte once.

const HEADER = 18; // run id (8 bytes), generation (2), offset (8), big endian

/** A binary frame of the job's socket as {run, generation, offset, data}. */
export function readFrame(buffer) {
  const view = new DataView(buffer);
  return {
    run: Number(view.getBigUint64(0)),
    generation: view.getUint16(8),
    offset: Number(view.getBigUint64(10)),
    data: new Uint8Array(buffer, HEADER),
  };
}

export class LogStream {
  /** `sink(data)` gets bytes in order. `next` is the offset of the byte to come. */
  constructor(run, generation, start, sink) {
    Object.assign(this, { run, generation, start, next: start, sink });
  }

  /** Take a piece. False when bytes before it are missing: ask again from `next`. */
  take({ run, generation, offset, data }) {
    if (run !== this.run || generation !== this.generation) return true; // of another run: not ours to show
    if (offset > this.next) return false;
    const fresh = data.subarray(this.next - offset);
    if (this.next - offset < data.length && fresh.length) {
      this.next += fresh.length;
      this.sink(fresh);
    }
    return true;
  }
}

/** Where text may begin in bytes cut out of the middle: after a line's end, at least not inside a character. */
export function cleanStart(data) {
  const newline = data.subarray(0, 16384).indexOf(10);
  if (newline >= 0) return newline + 1;
  let at = 0;
  while (at < 4 && at < data.length && (data[at] & 0xc0) === 0x80) at += 1;
  return at;
}
