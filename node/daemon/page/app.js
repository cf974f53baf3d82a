// The page of a node: logs in, receives snapshots, once a second at most, and shows them.

import { Table, byId, make, setClass, setText, sync } from "./dom.js";
import { FamilyCard } from "./family.js";
import { digest, fixed, peerName, rate } from "./format.js";
import { Live } from "./live.js";
import { RunCard } from "./run.js";
import { codeFromLink, isLoggedIn, logIn, logOut } from "./session.js";

const STATES = { SOLO: "warn", CONNECTED: "calm", "IN-ROUND": "good", SPLIT: "bad" };
const PEER_COLUMNS = [
  { title: "Peer", text: ({ peer }) => peerName(peer), kind: "mono", hint: ({ peer }) => peer },
  { title: "Run", text: ({ run, name }) => name ?? digest(run), kind: "minor" },
  { title: "Phase", text: ({ phase }) => phase ?? "–", kind: "minor" },
  { title: "Round", text: ({ round }) => String(round ?? "–"), kind: "number" },
  { title: "Loss", text: ({ loss }) => fixed(loss, 3), kind: "number" },
  { title: "Path", text: ({ path }) => path ?? "no connection", hint: ({ reason }) => reason ?? "" },
  { title: "Why", text: ({ reason }) => reason ?? "–", kind: "minor" },
  { title: "RTT", text: ({ rtt_ms }) => (rtt_ms == null ? "–" : `${fixed(rtt_ms, 1)} ms`), kind: "number" },
  { title: "Sends", text: ({ send_rate }) => rate(send_rate), kind: "number" },
  { title: "Receives", text: ({ receive_rate }) => rate(receive_rate), kind: "number" },
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

function show({ now, status, peers: others, more_peers: more, rounds, curves, families }) {
  document.title = `${status.state} · Shoal ${peerName(status.peer)}`;
  setText(byId("node"), peerName(status.peer));
  byId("node").title = status.peer;
  setText(byId("state-word"), status.state);
  setClass(byId("state-word"), `badge ${STATES[status.state] ?? ""}`);
  setText(byId("headline"), status.headline);
  setText(byId("advice"), status.advice ?? "");
  showRuns(status.runs, rounds, curves, families, now);
  const names = new Map(status.runs.map(({ run, name }) => [run, name]));
  peers.update(others.map((peer) => ({ ...peer, name: names.get(peer.run) })));
  setText(byId("no-peers"), more ? `and ${more} more` : "No other peer is known.");
  byId("no-peers").hidden = others.length > 0 && !more;
  showFacts(status);
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

function showFacts({ peer, addresses, reachability, version }) {
  const facts = [
    ["PeerID", peer],
    ["Addresses", addresses.join("\n")],
    ["Reachability", reachability],
    ["Version", version],
  ];
  const fact = () => make("div", "", make("dt"), make("dd"));
  sync(byId("about"), facts, fact, (node, texts) => texts.forEach((text, index) => setText(node.children[index], text)));
}

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
