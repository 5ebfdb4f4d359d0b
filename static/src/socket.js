// One WebSocket with back-off, kept for the page's life. What it is told, and whether it lives, goes to callbacks.
import { pinged, silentHosts } from "./live.js";
import { setServerTime } from "./times.js";

const MIN_DELAY = 500;
const MAX_DELAY = 15000;
const SILENCE = 45000; // the server pings at least every 25 s; silence for longer means a dead line
const ANSWER = 10000; // a handshake or a first message that takes longer is taken for a proxy that lets none through
const ASKED_AGAIN = 1500;
const FINAL = new Set([4401, 4404]); // signed out; no such object (any more)

export class Socket {
  #path;
  #on;
  #delay = MIN_DELAY;
  #socket = null;
  #timer = null;
  #watch = null;
  #closed = false;
  #answered = false; // by this socket, with a message

  /**
   * `on`: {open(socket), text(message), bytes(ArrayBuffer), down(), final(code)} and `check`, an address that
   * answers whether the socket may be opened at all: browsers don't tell why a handshake was refused.
   */
  constructor(path, on) {
    this.#path = path;
    this.#on = on;
    addEventListener("online", () => this.#soon(0));
    document.addEventListener("visibilitychange", () => document.hidden || this.#soon(0));
    addEventListener("pagehide", () => this.#socket?.close());
    addEventListener("pageshow", (event) => event.persisted && this.#soon(0));
    this.#connect();
  }

  /** Whether messages come: some proxies take the handshake and let nothing through. */
  get isOpen() {
    return this.#isConnected && this.#answered;
  }

  get #isConnected() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  send(message) {
    if (this.#isConnected) this.#socket.send(JSON.stringify(message));
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
    this.#answered = false;
    this.#expect(ANSWER);
    socket.binaryType = "arraybuffer";
    let opened = false;
    socket.onopen = () => {
      opened = true;
      this.#expect(ANSWER);
      this.#on.open?.(this);
    };
    socket.onmessage = (event) => this.#message(event.data);
    socket.onclose = (event) => socket === this.#socket && this.#down(event.code, opened);
  }

  #message(data) {
    this.#answered = true;
    this.#delay = MIN_DELAY;
    this.#expect(SILENCE);
    if (data instanceof ArrayBuffer) {
      this.#on.bytes?.(data);
      return;
    }
    const message = JSON.parse(data);
    if ("ping" in message) {
      this.send({ pong: 1 });
      setServerTime(message.ping);
      pinged(message);
    }
    if ("silent" in message) silentHosts(message.silent);
    this.#on.text?.(message);
  }

  /** Within so many milliseconds something must come, or the line is taken for dead. */
  #expect(within) {
    clearTimeout(this.#watch);
    const socket = this.#socket;
    this.#watch = setTimeout(() => this.#giveUp(socket), within);
  }

  /** A browser waits long for the other side to agree that the line is closed: not so we. */
  #giveUp(socket) {
    const opened = socket.readyState !== WebSocket.CONNECTING;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
    this.#socket = null;
    this.#down(1006, opened);
  }

  async #down(code, opened) {
    clearTimeout(this.#watch);
    if (this.#closed) return;
    this.#on.down?.();
    const refusal = FINAL.has(code) || !opened ? await this.#lastingRefusal() : 0;
    if (this.#closed) return;
    if (refusal) {
      this.#closed = true;
      this.#on.final?.(refusal);
      return;
    }
    this.#soon(this.#delay * (0.75 + Math.random() / 2));
    this.#delay = Math.min(this.#delay * 2, MAX_DELAY);
  }

  /** As `#refusal`, asked again before it is final: a new session's cookie may be on its way, after a new password. */
  async #lastingRefusal() {
    if (!(await this.#refusal())) return 0;
    await new Promise((done) => setTimeout(done, ASKED_AGAIN));
    return this.#refusal();
  }

  /** 4401 when the reader is signed out, 4404 when there is nothing (more) to see, 0 when trying again makes sense. */
  async #refusal() {
    const answer = await fetch(this.#on.check, { redirect: "manual", headers: { Accept: "application/json" } }).catch(() => null);
    if (!answer) return 0;
    if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) return 4401;
    return answer.status === 404 ? 4404 : 0;
  }

  #soon(delay) {
    const state = this.#socket?.readyState;
    if (this.#closed || state === WebSocket.OPEN || state === WebSocket.CONNECTING) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#connect(), delay);
  }
}
