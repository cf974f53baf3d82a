// The stream of the node's events. A lost connection is reopened by the browser; a silent one is closed and opened anew.
// A browser has six connections to a host, for all pages together, so a hidden page closes its own.

const SILENCE = 15000; // milliseconds without an event; the node sends one every five seconds
const PAUSE = 2000; // milliseconds until the next try, once the browser has given up

/** Calls `onSnapshot(data)` for each snapshot, `onState(isLive)` with each change of the connection, and `onRefused()`. */
export class Live {
  constructor({ onSnapshot, onState, onRefused }) {
    this.handlers = { onSnapshot, onState, onRefused };
    this.source = null;
    this.timer = 0;
    this.isWanted = false;
    document.addEventListener("visibilitychange", () => {
      if (this.isWanted) document.hidden ? this.hangUp() : this.open();
    });
  }

  open() {
    this.hangUp();
    this.isWanted = true;
    if (document.hidden) return;
    const source = (this.source = new EventSource("/v1/events"));
    source.addEventListener("snapshot", (event) => {
      this.hear();
      this.handlers.onSnapshot(JSON.parse(event.data));
    });
    source.addEventListener("beat", () => this.hear());
    source.addEventListener("error", () => this.lose(source.readyState === EventSource.CLOSED));
    this.watch(SILENCE);
  }

  close() {
    this.hangUp();
    this.isWanted = false;
  }

  hangUp() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  hear() {
    this.handlers.onState(true);
    this.watch(SILENCE);
  }

  lose(isRefused) {
    this.handlers.onState(false);
    if (isRefused) this.watch(PAUSE);
  }

  /** After `delay` milliseconds without an event, check whether we are still logged in, and try again. */
  watch(delay) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.handlers.onState(false);
      this.handlers.onRefused();
    }, delay);
  }
}
