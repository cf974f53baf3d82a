// The base of the cards of runs and families: a title, what holds it up, tiles, a table that scrolls.

import { Table, make, setClass, setText, sync } from "./dom.js";
import { digest } from "./format.js";

const PHASES = { // between rounds; all others are within a round
  failed: "bad", finished: "good", training: "calm", waiting: "calm", syncing: "warn", restoring: "warn", paused: "warn",
};

/** Whether a phase is between rounds. */
export const isBetween = (phase) => phase in PHASES;

export class Card {
  constructor(parent) {
    this.name = make("h2");
    this.id = make("span", "mono muted");
    this.waiting = make("span", "waiting minor");
    this.phase = make("span", "badge");
    this.notice = make("p", "notice");
    this.warnings = make("p", "notice");
    this.tiles = make("dl", "tiles");
    const title = make("div", "title", this.name, this.id, this.waiting, this.phase);
    this.card = make("section", "card run", title, this.notice, this.warnings, this.tiles);
    parent.append(this.card);
  }

  /** A table at the end of the card. */
  addTable(columns, caption, kind) {
    const table = make("table", kind);
    const scroll = make("div", "scroll", table);
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", caption);
    this.card.append(scroll);
    return new Table(table, columns, caption);
  }

  /** Show the title and what holds the run up; `isQuiet`: that is no reason to worry. */
  showState(row, isQuiet) {
    setText(this.name, row.name ?? row.run.slice(0, 8));
    setText(this.id, digest(row.run));
    this.id.title = row.run;
    setText(this.phase, row.phase);
    setClass(this.phase, `badge ${PHASES[row.phase] ?? "good"}`);
    setClass(this.card, row.trains === false ? "card run idle" : "card run");
    const waiting = row.failure ? "" : (row.waiting_for ?? "");
    setText(this.waiting, isQuiet ? waiting : "");
    this.waiting.title = this.waiting.textContent;
    setText(this.notice, row.failure ? `It has failed on this node: ${row.failure}` : isQuiet ? "" : waiting);
    setClass(this.notice, row.failure || row.worker_failure ? "notice bad" : "notice");
    setText(this.warnings, (row.warnings ?? []).map((each) => each.words).join("; "));
  }

  /** Show tiles, each [name, value]. */
  showTiles(pairs) {
    const tile = () => make("div", "", make("dt"), make("dd"));
    sync(this.tiles, pairs, tile, (node, texts) => texts.forEach((text, index) => setText(node.children[index], text)));
  }

  remove() {
    this.card.remove();
  }
}
