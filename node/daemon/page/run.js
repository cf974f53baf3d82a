// One run: how far it is, what holds it up, its curves, its last rounds.

import { Card, isBetween } from "./card.js";
import { Chart } from "./charts.js";
import { make, setText } from "./dom.js";
import { ago, bytes, count, digest, fixed, peerName, percent, seconds } from "./format.js";

const LOSSES = [
  { label: "this node", name: "own", hint: "training loss here" },
  { label: "swarm", name: "swarm", hint: "mean of the members' training losses" },
  { label: "validation", name: "validation", hint: "of the committed state, on held-out data, as last measured here" },
];
const SPEEDS = [
  { label: "training here", name: "own", hint: "while it trains" },
  { label: "committed by all", name: "swarm", hint: "tokens behind a round, by the time since the one before" },
];

const ROUND_COLUMNS = [
  { title: "Round", text: ({ round }) => String(round), kind: "number" },
  { title: "When", text: ({ age }) => ago(age), kind: "number" },
  {
    title: "Counted",
    text: ({ contributors, members, partner, lapse }) =>
      partner ? `with ${peerName(partner)}` : lapse ? "none" : `${contributors} of ${members}`,
    kind: "number",
    hint: ({ words }) => words ?? "",
    isOdd: ({ isMissed }) => isMissed,
  },
  { title: "Took", text: (round) => (round.seconds > 0 ? seconds(round.seconds) : "–"), kind: "number" },
  { title: "Sent", text: (round) => bytes(round.bytes), kind: "number minor" },
  { title: "Tokens", text: ({ round_samples }) => count(round_samples), kind: "number minor" },
  { title: "Waited for", text: waitedFor, kind: "wide", hint: ({ waited_for }) => Object.keys(waited_for).join(" ") },
  { title: "History", text: (round) => digest(round.digest), kind: "mono minor", hint: (round) => round.digest },
];

const WORTH_TELLING = 1; // seconds; shorter waits are normal

function waitedFor({ waited_for, called, took_part, lapse, words }) {
  const late = Object.entries(waited_for)
    .filter(([, time], _, [[, longest]]) => time >= Math.max(WORTH_TELLING, longest / 4))
    .map(([peer, time]) => `${peerName(peer)} ${seconds(time)}`);
  if (called) late.unshift("this node");
  if (lapse) late.unshift(words);
  else if (!took_part) late.unshift("not in the group");
  return late.join(", ") || "–";
}

/** Rounds for the table, the last one first. `isMissed`: more members than usual did not contribute (some never train). */
function told(rounds, now) {
  const uncounted = ({ members, contributors }) => members - contributors;
  const always = Math.min(...rounds.map(uncounted));
  return rounds.map((round) => ({ ...round, age: now - round.applied_at, isMissed: uncounted(round) > always })).reverse();
}

const OVERDUE = 3; // times the usual time between two rounds
const UNKNOWN = 20; // assumed seconds between two rounds, until there are two

/** Whether what the run waits for is normal: at the beginning of each round everybody waits for everybody for a while. */
function isUsual({ phase }, rounds, now) {
  const ends = rounds.map((round) => round.applied_at);
  const gaps = ends.slice(1).map((end, index) => end - ends[index]).sort((one, other) => one - other);
  const usual = Math.max(5, gaps[Math.floor(gaps.length / 2)] ?? UNKNOWN);
  return !isBetween(phase) && !(now - ends.at(-1) > OVERDUE * usual);
}

function tiles(row, now) {
  const target = row.last ? ` / ${row.last}` : "";
  const training = [
    ["Loss", fixed(row.loss, 3)],
    ["Inner step", count(row.step)],
    ["Tokens/s here", count(row.tokens_per_second)],
    ["Trains", percent(row.utilisation)],
    ["MFU here", percent(row.model_flops_utilization)],
  ];
  return [
    ["Round", `${row.round}${target}`],
    ...(row.seconds_left > 0 ? [["Left, about", seconds(row.seconds_left)]] : []),
    ["Members", count(row.members)],
    ...(row.exchanges ? [["Exchanges here", count((row.exchanges.mutual ?? 0) + (row.exchanges["one-sided"] ?? 0))]] : []),
    ...(row.validation_loss == null ? [] : [[`Validation, round ${row.validation_round}`, fixed(row.validation_loss, 3)]]),
    ...(row.trains === false ? [] : training),
    ...(row.checkpoint ? [[`Since checkpoint ${row.checkpoint}`, seconds(Math.max(0, now - row.checkpoint_at))]] : []),
    ["Tokens in all", count(row.samples)],
    ["Sent", bytes(row.bytes_sent)],
    ["Received", bytes(row.bytes_received)],
  ];
}

/** What the worker computes on, and how much memory it takes. */
function worker({ device, worker_memory: own, device_memory: devices }) {
  const taken = [...(own ? [bytes(own)] : []), ...(devices ? [`${bytes(devices)} on the device`] : [])].join(", and ");
  return device ? `Trains on ${device}${taken ? `; its worker takes ${taken}` : ""}.` : "";
}

export class RunCard extends Card {
  constructor(parent) {
    super(parent);
    this.worker = make("p", "worker muted");
    const charts = make("div", "charts");
    this.card.append(this.worker, charts);
    const loss = (value) => fixed(value, 2);
    this.loss = new Chart(charts, { title: "Loss", series: LOSSES, format: loss, fromZero: false });
    this.speed = new Chart(charts, { title: "Tokens per second", series: SPEEDS, format: count, fromZero: true });
    this.rounds = this.addTable(ROUND_COLUMNS, "Last rounds", "rounds");
    this.points = [];
  }

  update(row, rounds, news, now) {
    this.showState(row, isUsual(row, rounds, now));
    this.showTiles(tiles(row, now));
    setText(this.worker, worker(row));
    this.rounds.update(told(rounds, now));
    if (news) this.draw(news);
  }

  draw({ anew, points }) {
    this.points = anew ? points : this.points.concat(points);
    const column = (index) => this.points.map((point) => point[index]);
    this.loss.update([column(0), column(1), column(2), column(5)]);
    this.speed.update([column(0), column(3), column(4)]);
  }
}
