// The base of the cards of runs and families: a title, what holds it up, tiles, a table that scrolls.

import { attempt, invite, leave, showCheckpoints, write } from "./actions.js";
import { Table, button, make, offer, setClass, setText, sync } from "./dom.js";
import { clock, digest } from "./format.js";

const PHASES = { // between rounds; all others are within a round
  failed: "bad", finished: "good", training: "calm", waiting: "calm", syncing: "warn", restoring: "warn", paused: "warn",
};

/** Whether a phase is between rounds. */
export const isBetween = (phase) => phase in PHASES;

const isOpen = (row) => row.members != null;
const ACTS = [ // label, what it does, whether it is offered
  ["Invite…", invite, (row) => isOpen(row) && row.phase !== "finished" && !row.failure],
  ["Write something…", write, (row) => isOpen(row) && row.writes_text === true && !row.failure],
  ["Checkpoints…", showCheckpoints, (row) => !row.experts],
  ["Leave…", leave, () => true],
];

/** What is best done next, if somebody should do something. */
function nextStep(row) {
  const name = row.name ?? row.run.slice(0, 8);
  if (row.failure && row.may_be_opened_again) return "It is tried again by itself, as the cause may pass.";
  if (row.failure) {
    return "To try again, restart the node (shoal node stop, shoal node start); its last checkpoint is safe. To give it up, leave it.";
  }
  if (row.phase !== "finished") return "";
  const kept = row.checkpoint ? `The result is kept as the checkpoint of round ${row.checkpoint}. ` : "";
  const uses = row.writes_text ? `Write something with it, or serve it: shoal serve ${name}. ` : "";
  return `${kept}${uses}When you need it here no longer, leave the run.`;
}

export class Card {
  constructor(parent) {
    this.name = make("h2");
    this.id = make("span", "mono muted");
    this.waiting = make("span", "waiting minor");
    this.phase = make("span", "badge");
    this.notice = make("p", "notice");
    this.warnings = make("p", "notice");
    this.history = make("p", "muted minor history");
    this.next = make("p", "next");
    this.tiles = make("dl", "tiles");
    const title = make("div", "title", this.name, this.id, this.waiting, this.phase);
    this.row = {};
    this.acts = ACTS.map(([label, act]) => button(label, () => attempt(act, this.row)));
    const acts = make("div", "acts", ...this.acts);
    this.card = make("section", "card run", title, this.notice, this.warnings, this.history, this.next, acts, this.tiles);
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
    this.row = row;
    offer(this.acts, ACTS, row);
    setText(this.next, nextStep(row));
    setText(this.name, row.name ?? row.run.slice(0, 8));
    setText(this.id, digest(row.run));
    this.id.title = row.run;
    setText(this.phase, row.phase);
    setClass(this.phase, `badge ${PHASES[row.phase] ?? "good"}`);
    setClass(this.card, isOpen(row) ? (row.trains === false ? "card run idle" : "card run") : "card run closed");
    const waiting = row.failure ? "" : (row.waiting_for ?? "");
    setText(this.waiting, isQuiet ? waiting : "");
    this.waiting.title = this.waiting.textContent;
    setText(this.notice, row.failure ? `It has failed on this node: ${row.failure}` : isQuiet ? "" : waiting);
    setClass(this.notice, row.failure || row.worker_failure ? "notice bad" : "notice");
    const warnings = (row.warnings ?? []).map((each) => each.words);
    setText(this.warnings, [...(row.branch ? [row.branch] : []), ...warnings].join("; "));
    setText(this.history, row.branch_event ? `${clock(row.branch_event_at)}: ${row.branch_event}` : "");
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
