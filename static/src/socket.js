// One WebSocket with back-off, kept for the page's life. What it is told, and whether it lives, goes to callbacks.

const MIN_DELAY = 500;
const MAX_DELAY = 15000;
const SILENCE = 45000; // the server pings at least every 25 s; silence for longer means a dead line
const FINAL = new Set([4401, 4404]); // signed out; no such object (any more): no use in trying again

export class Socket {
  #path;
  #on;
  #delay = MIN_DELAY;
  #socket = null;
  #timer = null;
  #watch = null;
  #closed = false;

  /** `on`: {open(socket), text(message), bytes(ArrayBuffer), down(), final(code)} */
  constructor(path, on) {
    this.#path = path;
    this.#on = on;
    addEventListener("online", () => this.#soon(0));
    document.addEventListener("visibilitychange", () => document.hidden || this.#soon(0));
    addEventListener("pagehide", () => this.#socket?.close());
    addEventListener("pageshow", (event) => event.persisted && this.#soon(0));
    this.#connect();
  }

  get isOpen() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  send(message) {
    if (this.isOpen) this.#socket.send(JSON.stringify(message));
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#watch);
    this.#socket?.close();
  }

  #connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${this.#path}`);
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.#delay = MIN_DELAY;
      this.#heard();
      this.#on.open?.(this);
    };
    socket.onmessage = (event) => this.#message(event.data);
    socket.onclose = (event) => socket === this.#socket && this.#down(event.code);
  }

  #message(data) {
    this.#heard();
    if (data instanceof ArrayBuffer) {
      this.#on.bytes?.(data);
      return;
    }
    const message = JSON.parse(data);
    if ("ping" in message) this.send({ pong: 1 });
    this.#on.text?.(message);
  }

  #heard() {
    clearTimeout(this.#watch);
    this.#watch = setTimeout(() => this.#socket?.close(), SILENCE);
  }

  #down(code) {
    clearTimeout(this.#watch);
    if (this.#closed) return;
    if (FINAL.has(code)) {
      this.#closed = true;
      this.#on.final?.(code);
      return;
    }
    this.#on.down?.();
    this.#soon(this.#delay * (0.75 + Math.random() / 2));
    this.#delay = Math.min(this.#delay * 2, MAX_DELAY);
  }

  #soon(delay) {
    const state = this.#socket?.readyState;
    if (this.#closed || state === WebSocket.OPEN || state === WebSocket.CONNECTING) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connect(), delay);
  }
}
