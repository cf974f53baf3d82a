// The page of a node: logs in, receives snapshots, once a second at most, and shows them.

import { attempt, drain, join, pause, resume, setLimits } from "./actions.js";
import { setHome } from "./dialog.js";
import { Table, button, byId, make, offer, setClass, setText, sync } from "./dom.js";
import { FamilyCard } from "./family.js";
import { bytes, clock, peerName } from "./format.js";
import { Live } from "./live.js";
import { PEER_COLUMNS } from "./peers.js";
import { RunCard } from "./run.js";
import { codeFromLink, isLoggedIn, logIn, logOut } from "./session.js";

const STATES = { SOLO: "warn", CONNECTED: "calm", "IN-ROUND": "good", SPLIT: "bad" };

const ACTS = [ // label, what it does, whether it is offered
  ["Join a run…", join, () => true],
  ["Pause…", pause, ({ pause: now }) => !now.codes.includes("asked")],
  ["Resume…", resume, ({ pause: now }) => now.codes.includes("asked")],
  ["Limits and hours…", setLimits, () => true],
  ["Stop after the rounds…", drain, ({ draining, ending }) => !draining && !ending],
];

const cards = new Map(); // run id -> RunCard or FamilyCard
const peers = new Table(byId("peers"), PEER_COLUMNS);
const live = new Live({ onSnapshot: show, onState: showConnection, onRefused: enter });

/** Show the dashboard if we are logged in, else the login. */
async function enter() {
  try {
    if (!(await isLoggedIn())) return showLogin("");
  } catch {
    return live.watch(2000); // the node is not there: it may be starting again
  }
  byId("login").hidden = true;
  byId("dashboard").hidden = byId("logout").hidden = byId("live").hidden = false;
  live.open();
}

async function tryToken(token) {
  try {
    await logIn({ token });
    byId("token").value = "";
    await enter();
  } catch (error) {
    showLogin(error.message);
  }
}

/** Log in by a link; one that was used before still opens the page, if the browser is logged in. */
async function followLink(code) {
  try {
    await logIn({ code });
  } catch (error) {
    if (!(await isLoggedIn().catch(() => false))) return showLogin(error.message);
  }
  await enter();
}

function showLogin(error) {
  live.close();
  byId("dashboard").hidden = byId("logout").hidden = byId("live").hidden = true;
  byId("login").hidden = false;
  setText(byId("login-error"), error);
  byId("token").focus();
}

function showConnection(isLive) {
  setText(byId("live"), isLive ? "live" : "connection lost");
  setClass(byId("live"), isLive ? "live on" : "live");
}

function show({ now, status, peers: others, peer_count: count, more_peers: more, rounds, curves, families, actions }) {
  document.title = `${status.state} · Shoal ${peerName(status.peer)}`;
  setText(byId("node"), peerName(status.peer));
  byId("node").title = status.peer;
  setText(byId("state-word"), status.state);
  setClass(byId("state-word"), `badge ${STATES[status.state] ?? ""}`);
  setText(byId("headline"), status.headline);
  const parting = status.ending ? "It is ending." : status.draining ? "It stops once the rounds under way are over." : "";
  setText(byId("warnings"), status.warnings.map((each) => each.words).join("; "));
  setText(byId("advice"), [parting, status.advice ?? ""].join(" ").trim());
  showRuns(status.runs, rounds, curves, families, now);
  const names = new Map(status.runs.map(({ run, name }) => [run, name]));
  peers.update(others.map((peer) => ({ ...peer, name: names.get(peer.run) })));
  setText(byId("peer-count"), String(count || ""));
  setText(byId("no-peers"), more ? `and ${more} more` : "No other peer is known.");
  byId("no-peers").hidden = others.length > 0 && !more;
  offer(byId("acts").children, ACTS, status);
  byId("empty").hidden = status.runs.length > 0;
  showActions(actions);
  showFacts(status);
  setHome(status.home);
}

function showActions(actions) {
  byId("actions-card").hidden = !actions.length;
  sync(byId("actions"), actions, () => make("li", ""), (line, { at, words, error }) => {
    setText(line, `${clock(at)}  ${words}${error ? `; it failed: ${error}` : ""}`);
    setClass(line, error ? "bad" : "");
  });
}

function showRuns(rows, rounds, curves, families, now) {
  const present = new Set(rows.map(({ run }) => run));
  for (const [run, card] of cards) {
    if (present.has(run)) continue;
    card.remove();
    cards.delete(run);
  }
  for (const row of rows) {
    const parts = families[row.run];
    if (!cards.has(row.run)) cards.set(row.run, new (parts ? FamilyCard : RunCard)(byId("runs")));
    if (parts) cards.get(row.run).update(row, parts);
    else cards.get(row.run).update(row, rounds[row.run] ?? [], curves[row.run], now);
  }
}

function showFacts({ peer, addresses, reachability, version, room, memory, home, today: done, day }) {
  const left = (free, total) => `${bytes(free)} free of ${bytes(total)}`;
  const facts = [
    ["PeerID", peer],
    ["Addresses", addresses.join("\n")],
    ["Reachability", reachability],
    ["Memory", `${room ? `${left(room.memory_free, room.memory_total)}; ` : ""}the node takes ${bytes(memory)}`],
    ...(room ? [["Disk", left(room.disk_free, room.disk_total)]] : []),
    ["Today", `${done.rounds} rounds; ${bytes(done.sent)} sent, ${bytes(done.received)} received`],
    ...(day ? [["A day costs", `about ${bytes(day.sent)} up and ${bytes(day.received)} down, at the present pace`]] : []),
    ["Folder", home],
    ["Version", version],
  ];
  const fact = () => make("div", "", make("dt"), make("dd"));
  sync(byId("about"), facts, fact, (node, texts) => texts.forEach((text, index) => setText(node.children[index], text)));
}

byId("acts").append(...ACTS.map(([label, act]) => button(label, () => attempt(act))));
byId("empty-acts").append(button("Join a run…", () => attempt(join), ""));
byId("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  tryToken(byId("token").value);
});
byId("logout").addEventListener("click", async () => {
  await logOut();
  showLogin("");
});

/** `isOpen`: a link with a code was opened in a tab in which the page is open already. */
function start(isOpen) {
  const code = codeFromLink();
  if (code !== null) followLink(code);
  else if (!isOpen) enter();
}

window.addEventListener("hashchange", () => start(true));
start(false);
